"""The benchmark: learners on named scenarios under one budget of CPU time, resumable, in a layout that others read."""

from selfcest_training.marl.bench.entries import ENTRIES, Entry
from selfcest_training.marl.bench.runs import Cell, Results, Run, play
from selfcest_training.marl.bench.summary import Interval, aggregate, interquartile_mean, profile, scores

__all__ = [
    "ENTRIES",
    "Cell",
    "Entry",
    "Interval",
    "Results",
    "Run",
    "aggregate",
    "interquartile_mean",
    "play",
    "profile",
    "scores",
]
