"""Accuracy-cost frontiers, and who is ahead of whom at which cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from selfcest_training.evaluation.results import TOKEN_COSTS
from selfcest_training.evaluation.statistics import Estimate, Resampler, Values

GRID = 41  # costs at which two frontiers are compared
MIN_INSTANCES = 20  # with fewer an interval is too rough for a verdict


@dataclass(frozen=True)
class Point:
    """A strategy at one budget on one cell, instance by instance.

    Attributes:
        correct: 1 or 0, [instances, seeds].
        costs: by name, [instances, seeds].
        notes: how often the grader gave a floor, by its reason.
        scores: what else was measured on the cell, by name of `SCORES`, [instances, seeds].
    """

    budget: int
    correct: Values
    costs: Mapping[str, Values]
    notes: Mapping[str, int] = field(default_factory=dict)
    scores: Mapping[str, Values] = field(default_factory=dict)


def envelope(costs: Values, accuracies: Values, at: Values) -> Values:
    """The best accuracy within reach at a mean cost: the upper concave envelope of points, flat after the dearest.

    Between two points it is reached by tossing a coin between their budgets, below the cheapest by tossing one between
    its budget and none, which costs nothing and answers nothing.

    Args:
        costs, accuracies: of the points, [..., points].
        at: costs >= 0, [grid].

    Returns:
        [..., grid]
    """
    costs, accuracies = (np.concatenate([np.zeros((*x.shape[:-1], 1)), x], axis=-1) for x in (costs, accuracies))
    best = np.where(costs[..., :, None] <= at, accuracies[..., :, None], 0.0).max(axis=-2)
    for i in range(costs.shape[-1]):
        for j in range(costs.shape[-1]):
            left, right = costs[..., i, None], costs[..., j, None]
            inside = (left <= at) & (at <= right) & (left < right)
            share = np.divide(at - left, right - left, out=np.zeros(inside.shape), where=inside)
            line = accuracies[..., i, None] + share * (accuracies[..., j, None] - accuracies[..., i, None])
            best = np.where(inside, np.maximum(best, line), best)
    return np.asarray(best)


class Verdict(StrEnum):
    """What two frontiers say of each other, at the confidence of a band around their whole difference."""

    AHEAD = "ahead somewhere"  # and behind nowhere
    BEHIND = "behind somewhere"
    BOTH = "ahead and behind"  # at different costs
    NO_DIFFERENCE = "no clear difference"  # that these instances could show
    TOO_FEW = "too few instances"


@dataclass(frozen=True)
class Comparison:
    """Two frontiers over one cost.

    Attributes:
        cost: its name.
        at: costs of the grid, [grid].
        gap: accuracy of the first minus the second at equal cost, one estimate per cost of the grid. The intervals are
            a band: the truth is in all of them at once, at the confidence.
        average: of the gap over the grid.
        verdict: see `Verdict`.
    """

    cost: str
    at: Values
    gap: tuple[Estimate, ...]
    average: Estimate
    verdict: Verdict

    @property
    def ahead(self) -> list[tuple[float, float]]:
        """Ranges of cost in which the first is ahead."""
        return _ranges(self.at, [gap.low > 0 for gap in self.gap])

    @property
    def behind(self) -> list[tuple[float, float]]:
        return _ranges(self.at, [gap.high < 0 for gap in self.gap])


def compare_frontiers(first: Sequence[Point], second: Sequence[Point], cost: str, resampler: Resampler) -> Comparison:
    """Compare two strategies that played the same instances with the same seeds, at equal mean cost.

    The grid runs from the cheaper of the two cheapest points to the dearest point of either.
    """
    ends = [float(point.costs[cost].mean()) for point in (*first, *second)]
    at = np.linspace(min(ends), max(ends), GRID)
    gap = _measured(first, cost, at) - _measured(second, cost, at)
    drawn = _drawn(first, cost, at, resampler) - _drawn(second, cost, at, resampler)
    gaps = resampler.band(gap, drawn)
    average = resampler.around(float(gap.mean()), drawn.mean(axis=1))
    return Comparison(cost, at, gaps, average, _verdict(gaps, len(first[0].correct)))


def _measured(strategy: Sequence[Point], cost: str, at: Values) -> Values:
    """Its envelope, [grid]."""
    costs = np.array([point.costs[cost].mean() for point in strategy])
    return envelope(costs, np.array([point.correct.mean() for point in strategy]), at)


def _drawn(strategy: Sequence[Point], cost: str, at: Values, resampler: Resampler) -> Values:
    """Its envelope in every resample, [resamples, grid]."""
    costs = np.stack([resampler.means(point.costs[cost]) for point in strategy], axis=-1)
    return envelope(costs, np.stack([resampler.means(point.correct) for point in strategy], axis=-1), at)


def _verdict(gaps: Sequence[Estimate], instances: int) -> Verdict:
    ahead, behind = any(gap.low > 0 for gap in gaps), any(gap.high < 0 for gap in gaps)
    if instances < MIN_INSTANCES:
        return Verdict.TOO_FEW
    if ahead and behind:
        return Verdict.BOTH
    return Verdict.AHEAD if ahead else Verdict.BEHIND if behind else Verdict.NO_DIFFERENCE


def _ranges(at: Values, there: Sequence[bool]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for i, (cost, inside) in enumerate(zip(at, there, strict=True)):
        if inside and i and there[i - 1]:
            found[-1] = found[-1][0], float(cost)
        elif inside:
            found.append((float(cost), float(cost)))
    return found


@dataclass(frozen=True)
class Match:
    """Two strategies at the same budget.

    Attributes:
        gap: accuracy of the first minus the second.
        ratios: of their mean costs, first over second, by name.
        verdict: of the gap alone.
    """

    budget: int
    gap: Estimate
    ratios: Mapping[str, Estimate]
    verdict: Verdict


def match(first: Point, second: Point, resampler: Resampler) -> Match:
    """Compare two strategies at one budget."""
    gap = resampler.estimate(first.correct - second.correct)
    ratios = {
        cost: resampler.around(
            float(_ratio(first.costs[cost].mean(), second.costs[cost].mean())),
            _ratio(resampler.means(first.costs[cost]), resampler.means(second.costs[cost])),
        )
        for cost in TOKEN_COSTS
    }
    return Match(first.budget, gap, ratios, _verdict([gap], len(first.correct)))


def _ratio(first: ArrayLike, second: ArrayLike) -> Values:
    """Of costs; two that are 0 are equal, as where no prompt fits its budget."""
    first, second = np.asarray(first, float), np.asarray(second, float)
    return np.asarray(np.divide(first, second, out=np.where(first == 0, 1.0, np.inf), where=second > 0))
