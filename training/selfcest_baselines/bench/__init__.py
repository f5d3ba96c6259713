"""The benchmark: learners on named scenarios under one budget of CPU time, resumable, in a layout that others read."""

from selfcest_baselines.bench.entries import ENTRIES
from selfcest_baselines.bench.runs import Cell, Results, Run, play
from selfcest_baselines.bench.summary import Interval, aggregate, interquartile_mean, profile, scores

__all__ = [
    "ENTRIES",
    "Cell",
    "Interval",
    "Results",
    "Run",
    "aggregate",
    "interquartile_mean",
    "play",
    "profile",
    "scores",
]
