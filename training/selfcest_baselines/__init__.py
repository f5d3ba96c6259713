"""Multi-agent learners for the symbolic game in plain PyTorch: a grid of credit and loss, each in one file to read.

`train` runs any cell of it; `python -m selfcest_baselines coma --loss one_pass` does too (`--help` says how).
"""
