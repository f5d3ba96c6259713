"""A run: configs, jobs, folders, checkpoints, logs."""
