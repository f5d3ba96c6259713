"""Multi-agent learners for the symbolic game in plain PyTorch, each in one file that reads from top to bottom.

Call `train`, or run `python -m selfcest_baselines coma --loss one_pass` (`--help` lists the options).
"""
