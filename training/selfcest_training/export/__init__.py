"""Doors out: episodes and credit of this project as rows of other trainers. Nothing else here imports this package."""
