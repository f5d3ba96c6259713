"""Runs experiments: jobs, their folders, checkpoints, metrics and display."""
