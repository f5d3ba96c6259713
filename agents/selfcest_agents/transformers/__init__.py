"""An engine over a model of transformers, and its parts."""
