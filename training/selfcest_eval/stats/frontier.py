"""Accuracy-cost frontiers, and who is ahead of whom at which cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from selfcest_env.tasks import Style
from selfcest_env.types import Status
from selfcest_eval.stats.statistics import MISSING, ROUNDING, Estimate, Resampler, Values

GRID = 41  # costs at which two frontiers are compared
MIN_INSTANCES = 20  # with fewer an interval is too rough for a verdict


@dataclass(frozen=True)
class PerfectExecution:
    """What the perfect player of a strategy spends at a point, see `perfect_execution`.

    Attributes:
        costs: by name, [instances]; `nan` where it made a mistake.
        lifted: of these instances how many needed which limits lifted.
    """

    costs: Mapping[str, Values]
    lifted: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    @property
    def instances(self) -> int:
        """On how many instances it made no mistake."""
        return max((int((~np.isnan(values)).sum()) for values in self.costs.values()), default=0)


@dataclass(frozen=True)
class Point:
    """A strategy at one budget on one cell, instance by instance.

    Attributes:
        budget: `None` for the limits as they are.
        correct: 1 or 0, [instances, seeds].
        costs: by name, [instances, seeds]; `nan` where no prompt fitted.
        notes: how often the grader gave a floor, by its reason.
        scores: what else was measured on the cell, by name of `SCORES`, [instances, seeds].
        endings: how often the root ended how.
        executed: 1 where the strategy's script was played, else 0, `nan` where none was to be, as by a router,
            [instances, seeds]; `None` if there was none anywhere.
        perfect_execution: by the style of the expert; empty if the strategy names none.
    """

    budget: int | None
    correct: Values
    costs: Mapping[str, Values]
    notes: Mapping[str, int] = field(default_factory=dict)
    scores: Mapping[str, Values] = field(default_factory=dict)
    endings: Mapping[Status, int] = field(default_factory=dict)
    executed: Values | None = None
    perfect_execution: Mapping[Style, PerfectExecution] = field(default_factory=dict)

    @property
    def order(self) -> tuple[bool, int]:
        return self.budget is not None, self.budget or 0

    def cost(self, name: str) -> Values:
        return self.costs.get(name, np.full_like(self.correct, np.nan))

    def spent(self, cost: str) -> Values:
        """What was spent, [instances, seeds]: nothing where no prompt fitted, which then brought no answer either."""
        return np.nan_to_num(self.cost(cost))

    def beside(self, style: Style, cost: str) -> tuple[float, float] | None:
        """Its mean cost and that of its perfect player, over the instances of which both have one."""
        own, other = self.cost(cost), self.perfect_execution[style].costs.get(cost)
        if other is None:
            return None
        there = ~np.isnan(own) & ~np.isnan(other[:, None])
        shared = np.broadcast_to(other[:, None], own.shape)
        return (float(own[there].mean()), float(shared[there].mean())) if there.any() else None


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
    NO_DIFFERENCE = "no clear difference"  # that these instances could show, or that is large enough to matter
    TOO_FEW = "too few instances"
    NO_COST = "no prompt fitted"  # of one of the two, at any budget


@dataclass(frozen=True)
class FrontierComparison:
    """Two frontiers over one cost.

    Attributes:
        cost: its name.
        at: costs of the grid, [grid].
        gap: accuracy of the first minus the second at equal cost, one estimate per cost of the grid. The intervals are
            a band: the truth is in all of them at once, at the confidence.
        average: of the gap over the grid.
        verdict: see `Verdict`.
        ahead, behind: ranges of cost in which the first is.
    """

    cost: str
    at: Values
    gap: tuple[Estimate, ...]
    average: Estimate
    verdict: Verdict
    ahead: Sequence[tuple[float, float]] = ()
    behind: Sequence[tuple[float, float]] = ()


def compare_frontiers(
    first: Sequence[Point], second: Sequence[Point], cost: str, resampler: Resampler, least: float = 0.0
) -> FrontierComparison:
    """Compare two strategies that played the same instances with the same seeds, at equal mean cost.

    The grid runs from the cheaper of the two cheapest points to the dearest point of either. Points without a cost are
    none; below `least` a difference counts for nothing.
    """
    first, second = ([p for p in points if not np.isnan(p.cost(cost)).all()] for points in (first, second))
    if not first or not second:
        return FrontierComparison(cost, np.zeros(0), (), MISSING, Verdict.NO_COST)
    ends = [float(point.spent(cost).mean()) for point in (*first, *second)]
    at = np.linspace(min(ends), max(ends), GRID)
    gap = _measured(first, cost, at) - _measured(second, cost, at)
    drawn = _drawn(first, cost, at, resampler) - _drawn(second, cost, at, resampler)
    gaps = resampler.band(gap, drawn)
    average = resampler.around(float(gap.mean()), drawn.mean(axis=1))
    ahead, behind = ([sign_of(gap, least) == side for gap in gaps] for side in (1, -1))
    verdict = _verdict(gaps, len(first[0].correct), least)
    return FrontierComparison(cost, at, gaps, average, verdict, _ranges(at, ahead), _ranges(at, behind))


def _measured(strategy: Sequence[Point], cost: str, at: Values) -> Values:
    """Its envelope, [grid]."""
    costs = np.array([point.spent(cost).mean() for point in strategy])
    return envelope(costs, np.array([point.correct.mean() for point in strategy]), at)


def _drawn(strategy: Sequence[Point], cost: str, at: Values, resampler: Resampler) -> Values:
    """Its envelope in every resample, [resamples, grid]."""
    costs = np.stack([resampler.means(point.spent(cost)) for point in strategy], axis=-1)
    return envelope(costs, np.stack([resampler.means(point.correct) for point in strategy], axis=-1), at)


def sign_of(gap: Estimate, least: float) -> int:
    """1 or -1 for a difference whose interval excludes 0 and that is not below `least`, else 0."""
    return 0 if abs(gap.mean) < least else int(gap.low > 0) - int(gap.high < 0)


def _verdict(gaps: Sequence[Estimate], instances: int, least: float) -> Verdict:
    sides = {sign_of(gap, least) for gap in gaps}
    if instances < MIN_INSTANCES:
        return Verdict.TOO_FEW
    if {1, -1} <= sides:
        return Verdict.BOTH
    return Verdict.AHEAD if 1 in sides else Verdict.BEHIND if -1 in sides else Verdict.NO_DIFFERENCE


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
        ratios: of their mean costs where both have some, first over second, by name; empty if that is nowhere.
        verdict: of the gap alone.
        accuracies: of both.
    """

    budget: int | None
    gap: Estimate
    ratios: Mapping[str, Estimate]
    verdict: Verdict
    accuracies: tuple[float, float]

    def equally_accurate(self, least: float) -> bool:
        """Whether the interval of the gap lies within `least` of 0, and there are instances enough to say so."""
        within = max(-self.gap.low, self.gap.high) <= least + ROUNDING
        return within and self.verdict is not Verdict.TOO_FEW


def match(first: Point, second: Point, resampler: Resampler, costs: Sequence[str], least: float = 0.0) -> Match:
    """Compare two strategies at one budget, in accuracy and in these costs."""
    gap = resampler.estimate(first.correct - second.correct)
    ratios = {}
    for cost in costs:
        there = ~np.isnan(first.cost(cost)) & ~np.isnan(second.cost(cost))
        pair = [np.where(there, point.cost(cost), np.nan) for point in (first, second)]
        if there.any():
            own, other = (float(np.nanmean(values)) for values in pair)
            drawn, against = (resampler.means(values) for values in pair)
            ratios[cost] = resampler.around(float(_ratio(own, other)), _ratio(drawn, against))
    verdict = _verdict([gap], len(first.correct), least)
    return Match(first.budget, gap, ratios, verdict, (float(first.correct.mean()), float(second.correct.mean())))


def _ratio(first: ArrayLike, second: ArrayLike) -> Values:
    """Of costs; two that are 0 are equal, as those of one's own may be."""
    first, second = np.asarray(first, float), np.asarray(second, float)
    ratio = np.divide(first, second, out=np.where(first == 0, 1.0, np.inf), where=second != 0)
    return np.asarray(np.where(np.isnan(first), np.nan, ratio))
