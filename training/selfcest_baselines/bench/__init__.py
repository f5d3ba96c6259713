"""The benchmark of learners on named scenarios under an equal budget of CPU time; see `docs/benchmark.md`."""

from selfcest_baselines.bench.entries import ENTRIES
from selfcest_baselines.bench.runs import BenchmarkCell, Results, Run, play
from selfcest_baselines.bench.summary import Interval, aggregate, interquartile_mean, profile, scores

__all__ = [
    "ENTRIES",
    "BenchmarkCell",
    "Interval",
    "Results",
    "Run",
    "aggregate",
    "interquartile_mean",
    "play",
    "profile",
    "scores",
]
