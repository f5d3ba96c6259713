"""The stages of a training step, and the warm start."""
