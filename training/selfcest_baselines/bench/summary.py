"""Means that say how sure they are: interquartile means with stratified bootstrap intervals, and performance profiles.

Source: Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice (arXiv 2108.13264).
Scores are team returns, 0 for random and 1 for optimal play of their scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfcest_baselines.bench.runs import Results
from selfcest_env.seeding import stream_seed
from selfcest_env.symbolic.scenarios import scenario

Scores = NDArray[np.float64]
RESAMPLES = 10_000


class Interval(NamedTuple):
    """A statistic and its 95 % interval, `nan` where a single run of each scenario says nothing of others."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if np.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]")


def scores(results: Results, entry: str) -> dict[str, Scores]:
    """Of an entry the scores at the end, by scenario, [runs]."""
    found: dict[str, list[float]] = {}
    for cell, run in results.items():
        if cell.entry == entry:
            found.setdefault(cell.scenario, []).append(scenario(cell.scenario).normalised(run.last))
    return {name: np.array(values) for name, values in found.items()}


def paired(results: Results, entry: str, other: str) -> dict[str, Scores]:
    """Of an entry the scores at the end less those of another, of the seeds that both have played, by scenario."""
    found: dict[str, list[float]] = {}
    for cell, run in results.items():
        against = results.get(replace(cell, entry=other))
        if cell.entry == entry and against is not None:
            normalised = scenario(cell.scenario).normalised
            found.setdefault(cell.scenario, []).append(normalised(run.last) - normalised(against.last))
    return {name: np.array(values) for name, values in found.items()}


def mean(values: Scores) -> Scores:
    """Along the last axis."""
    found: Scores = values.mean(axis=-1)
    return found


def interquartile_mean(values: Scores) -> Scores:
    """The mean of the middle half along the last axis: a quarter, rounded down, is left out at either end."""
    left_out = values.shape[-1] // 4
    middle: Scores = np.sort(values, axis=-1)[..., left_out : values.shape[-1] - left_out].mean(axis=-1)
    return middle


def aggregate(by_scenario: Sequence[Scores], statistic: Callable[[Scores], Scores] = interquartile_mean) -> Interval:
    """A statistic of all runs of all scenarios; runs are resampled within their scenario.

    Args:
        by_scenario: [runs] each.
        statistic: takes the last axis away.
    """
    value = float(statistic(np.concatenate(by_scenario)))
    if max(map(len, by_scenario)) < 2:
        return Interval(value, np.nan, np.nan)
    rng = np.random.default_rng(stream_seed("benchmark", *map(len, by_scenario)))
    resampled = [values[rng.integers(len(values), size=(RESAMPLES, len(values)))] for values in by_scenario]
    low, high = np.quantile(statistic(np.concatenate(resampled, axis=1)), [0.025, 0.975])
    return Interval(value, float(low), float(high))


def profile(by_scenario: Sequence[Scores], thresholds: Scores) -> Scores:
    """The share of runs, scenarios weighing alike, whose score is above each threshold, [thresholds]."""
    shares: Scores = np.mean([(values > thresholds[:, None]).mean(axis=1) for values in by_scenario], axis=0)
    return shares
