"""The engine over a model of transformers, and its helpers."""
