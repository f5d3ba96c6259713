"""Multi-agent learners for the symbolic game in plain PyTorch, each in one file that tells the whole algorithm.

`train` runs any of them by name; `python -m selfcest_training.marl coma` runs one (`--help` says how).
"""
