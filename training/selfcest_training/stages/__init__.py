"""The stages of a step of training."""
