"""Multi-agent learners for the symbolic game in plain PyTorch, each in one file that reads from top to bottom.

`train` runs any of them; `python -m selfcest_baselines coma --loss one_pass` does too (`--help` says how).
"""
