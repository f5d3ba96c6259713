"""Statistics of the benchmark: interquartile means with stratified bootstrap intervals, and performance profiles.

Source: Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice (arXiv 2108.13264).
Scores are normalised team returns: 0 for random and 1 for optimal play of the scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfcest_baselines.bench.runs import Results
from selfcest_env.seeding import stream_seed
from selfcest_env.symbolic.scenarios import get_scenario

Scores = NDArray[np.float64]
RESAMPLES = 10_000


class Interval(NamedTuple):
    """A statistic and its 95 % interval, which is `nan` if every scenario has a single run."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if np.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]")


def scores(results: Results, entry: str) -> dict[str, Scores]:
    """Return the final scores of an entry's runs, [runs], by scenario."""
    by_scenario: dict[str, list[float]] = {}
    for cell, run in results.items():
        if cell.entry == entry:
            by_scenario.setdefault(cell.scenario, []).append(get_scenario(cell.scenario).normalize_return(run.last))
    return {name: np.array(values) for name, values in by_scenario.items()}


def paired(results: Results, entry: str, baseline: str) -> dict[str, Scores]:
    """Return the final scores of an entry minus those of a baseline entry with the same seed, [seeds], by scenario."""
    by_scenario: dict[str, list[float]] = {}
    for cell, run in results.items():
        baseline_run = results.get(replace(cell, entry=baseline))
        if cell.entry == entry and baseline_run is not None:
            normalize_return = get_scenario(cell.scenario).normalize_return
            difference = normalize_return(run.last) - normalize_return(baseline_run.last)
            by_scenario.setdefault(cell.scenario, []).append(difference)
    return {name: np.array(values) for name, values in by_scenario.items()}


def mean(values: Scores) -> Scores:
    """Return the mean along the last axis."""
    means: Scores = values.mean(axis=-1)
    return means


def interquartile_mean(values: Scores) -> Scores:
    """Return the mean of the middle half along the last axis, without a quarter, rounded down, at either end."""
    num_cut = values.shape[-1] // 4
    middle = np.sort(values, axis=-1)[..., num_cut : values.shape[-1] - num_cut]
    means: Scores = middle.mean(axis=-1)
    return means


def aggregate(by_scenario: Sequence[Scores], statistic: Callable[[Scores], Scores] = interquartile_mean) -> Interval:
    """Return a statistic over all runs of all scenarios, with a bootstrap interval stratified by scenario.

    Args:
        by_scenario: the scores of each scenario, [runs].
        statistic: reduces the last axis.
    """
    value = float(statistic(np.concatenate(by_scenario)))
    if max(map(len, by_scenario)) < 2:
        return Interval(value, np.nan, np.nan)
    # The seed depends on the numbers of runs only, so a table is the same whenever it is printed.
    rng = np.random.default_rng(stream_seed("benchmark", *map(len, by_scenario)))
    resampled = [values[rng.integers(len(values), size=(RESAMPLES, len(values)))] for values in by_scenario]
    low, high = np.quantile(statistic(np.concatenate(resampled, axis=1)), [0.025, 0.975])
    return Interval(value, float(low), float(high))


def profile(by_scenario: Sequence[Scores], thresholds: Scores) -> Scores:
    """Return the share of runs whose score is above each threshold, [thresholds]; scenarios have equal weight."""
    shares: Scores = np.mean([(values > thresholds[:, None]).mean(axis=1) for values in by_scenario], axis=0)
    return shares
