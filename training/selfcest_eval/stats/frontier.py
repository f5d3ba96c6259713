"""Accuracy-cost frontiers, and comparisons of two strategies at equal cost and at equal budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from selfcest_env.tasks import Style
from selfcest_env.types import Status
from selfcest_eval.stats.statistics import MISSING, ROUNDING, Estimate, Resampler, Values, with_equal_differences

GRID = 41  # number of costs at which two frontiers are compared
MIN_INSTANCES = 20  # fewer instances give an interval that is too rough for a verdict


@dataclass(frozen=True)
class PerfectExecution:
    """The costs of the perfect player of a strategy at a point, see `play.perfect_execution`.

    Attributes:
        costs: costs by name, [instances]; `nan` for an instance on which the player made a mistake.
        lifted: number of the other instances for which these limits had to be lifted.
    """

    costs: Mapping[str, Values]
    lifted: Mapping[tuple[str, ...], int] = field(default_factory=dict)

    @property
    def instances(self) -> int:
        """The number of instances that were played without a mistake."""
        return max((int((~np.isnan(values)).sum()) for values in self.costs.values()), default=0)


@dataclass(frozen=True)
class Point:
    """The results of a strategy at one budget on one eval set, instance by instance.

    Attributes:
        budget: swept limit in tokens; `None`: the limits of the study without a sweep.
        correct: 1 or 0, [instances, seeds].
        costs: costs by name, [instances, seeds]; `nan` where no prompt fitted.
        notes: number of answers by the reason why the grader gave the lowest score.
        scores: other scores by the names of `SCORES`, [instances, seeds].
        endings: number of episodes by the ending of the root.
        executed: 1 where the strategy's script was played, else 0, [instances, seeds]; `nan` where no script was
            planned, as a router may do. `None` if the strategy never plays one.
        perfect_execution: perfect players by the style of their expert; empty if the strategy names none.
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
        """The sort key of budgets: the limits of the study come last, since a swept budget lowers one of them."""
        return self.budget is None, self.budget or 0

    def cost(self, name: str) -> Values:
        return self.costs.get(name, np.full_like(self.correct, np.nan))

    def spent(self, cost: str) -> Values:
        """Return the cost, [instances, seeds], as 0 where no prompt fitted: then nothing was spent or answered."""
        return np.nan_to_num(self.cost(cost))

    def mean_costs(self, style: Style, cost: str) -> tuple[float, float] | None:
        """Return the mean cost of the strategy and of its perfect player, over the instances for which both have one.

        `None` if there is no such instance.
        """
        costs = self.cost(cost)
        perfect_costs = self.perfect_execution[style].costs.get(cost)
        if perfect_costs is None:
            return None
        perfect_costs = np.broadcast_to(perfect_costs[:, None], costs.shape)
        has_both = ~np.isnan(costs) & ~np.isnan(perfect_costs)
        if not has_both.any():
            return None
        return float(costs[has_both].mean()), float(perfect_costs[has_both].mean())


def envelope(costs: Values, accuracies: Values, grid: Values) -> Values:
    """Return the best accuracy that can be reached at a mean cost: the upper concave envelope of points.

    A cost between two points is reached by tossing a coin between their budgets. A cost below the cheapest point is
    reached by tossing a coin between its budget and no attempt, which costs nothing and answers nothing. Above the
    dearest point the envelope is flat.

    Args:
        costs: mean costs of the points, [..., points].
        accuracies: accuracies of the points, [..., points].
        grid: costs >= 0, [grid].

    Returns:
        [..., grid]
    """
    # The origin is the point of no attempt.
    origin = np.zeros((*costs.shape[:-1], 1))
    costs = np.concatenate([origin, costs], axis=-1)
    accuracies = np.concatenate([origin, accuracies], axis=-1)
    best = np.where(costs[..., :, None] <= grid, accuracies[..., :, None], 0.0).max(axis=-2)
    # The envelope is the maximum of the lines through all pairs of points, each between its two points.
    for i, j in product(range(costs.shape[-1]), repeat=2):
        left = costs[..., i, None]
        right = costs[..., j, None]
        is_between = (left <= grid) & (grid <= right) & (left < right)
        share = np.divide(grid - left, right - left, out=np.zeros(is_between.shape), where=is_between)
        line = accuracies[..., i, None] + share * (accuracies[..., j, None] - accuracies[..., i, None])
        best = np.where(is_between, np.maximum(best, line), best)
    return np.asarray(best)


class Verdict(StrEnum):
    """The result of a comparison, at the confidence of the band around the whole difference."""

    AHEAD = "ahead somewhere"  # and behind nowhere
    BEHIND = "behind somewhere"  # and ahead nowhere
    BOTH = "ahead and behind"  # at different costs
    NO_DIFFERENCE = "no clear difference"  # the interval includes 0, or the difference is below `min_difference`
    TOO_FEW = "too few instances"
    NO_COST = "no prompt fitted"  # for one of the two strategies, at any budget


@dataclass(frozen=True)
class FrontierComparison:
    """Two frontiers over one cost.

    Attributes:
        cost: name of the cost.
        grid: costs at which the frontiers are compared, [grid].
        gap: accuracy of the first minus the second at equal cost, one estimate per cost of the grid. The intervals are
            a simultaneous band: at the confidence, the truth is in all of them.
        average: mean of the gap over the grid.
        verdict: see `Verdict`.
        ahead: ranges of cost in which the first is ahead.
        behind: ranges of cost in which the first is behind.
    """

    cost: str
    grid: Values
    gap: tuple[Estimate, ...]
    average: Estimate
    verdict: Verdict
    ahead: Sequence[tuple[float, float]] = ()
    behind: Sequence[tuple[float, float]] = ()


def compare_frontiers(
    first: Sequence[Point], second: Sequence[Point], cost: str, resampler: Resampler, min_difference: float = 0.0
) -> FrontierComparison:
    """Compare two strategies that played the same instances with the same seeds, at equal mean cost.

    The grid runs from the cheaper of the two cheapest points to the dearest point of either. Points without a cost are
    left out.

    Args:
        first: points of the first strategy.
        second: points of the second strategy.
        cost: name of the cost.
        resampler: resampler of the instances and seeds.
        min_difference: smallest difference of accuracies that a verdict counts.
    """
    first = _select_with_cost(first, cost)
    second = _select_with_cost(second, cost)
    if not first or not second:
        return FrontierComparison(cost, np.zeros(0), (), MISSING, Verdict.NO_COST)
    mean_costs = [float(point.spent(cost).mean()) for point in (*first, *second)]
    grid = np.linspace(min(mean_costs), max(mean_costs), GRID)
    gap = _compute_frontier(first, cost, grid) - _compute_frontier(second, cost, grid)
    resampled_gaps = _compute_resampled_frontiers(first, cost, grid, resampler)
    resampled_gaps -= _compute_resampled_frontiers(second, cost, grid, resampler)
    band = resampler.band(gap, resampled_gaps)
    average = resampler.estimate_from(float(gap.mean()), resampled_gaps.mean(axis=1))
    signs = [sign_of(estimate, min_difference) for estimate in band]
    return FrontierComparison(
        cost,
        grid,
        band,
        average,
        _judge_signs(signs, len(first[0].correct)),
        ahead=_find_ranges(grid, [sign == 1 for sign in signs]),
        behind=_find_ranges(grid, [sign == -1 for sign in signs]),
    )


def _select_with_cost(points: Sequence[Point], cost: str) -> list[Point]:
    return [point for point in points if not np.isnan(point.cost(cost)).all()]


def _compute_frontier(points: Sequence[Point], cost: str, grid: Values) -> Values:
    """Return the envelope of a strategy's points, [grid]."""
    costs = np.array([point.spent(cost).mean() for point in points])
    accuracies = np.array([point.correct.mean() for point in points])
    return envelope(costs, accuracies, grid)


def _compute_resampled_frontiers(points: Sequence[Point], cost: str, grid: Values, resampler: Resampler) -> Values:
    """Return the envelope of a strategy's points in every resample, [resamples, grid]."""
    costs = np.stack([resampler.resampled_means(point.spent(cost)) for point in points], axis=-1)
    accuracies = np.stack([resampler.resampled_means(point.correct) for point in points], axis=-1)
    return envelope(costs, accuracies, grid)


def sign_of(gap: Estimate, min_difference: float) -> int:
    """Return 1 or -1 for a difference whose interval excludes 0 and that is large enough to count, else 0."""
    if abs(gap.mean) < min_difference:
        return 0
    return int(gap.low > 0) - int(gap.high < 0)


def _judge_signs(signs: Sequence[int], num_instances: int) -> Verdict:
    if num_instances < MIN_INSTANCES:
        return Verdict.TOO_FEW
    if 1 in signs and -1 in signs:
        return Verdict.BOTH
    if 1 in signs:
        return Verdict.AHEAD
    return Verdict.BEHIND if -1 in signs else Verdict.NO_DIFFERENCE


def _find_ranges(grid: Values, mask: Sequence[bool]) -> list[tuple[float, float]]:
    """Return the first and last cost of each run of masked costs."""
    ranges: list[tuple[float, float]] = []
    for i, cost in enumerate(grid):
        if not mask[i]:
            continue
        if i > 0 and mask[i - 1]:
            ranges[-1] = (ranges[-1][0], float(cost))
        else:
            ranges.append((float(cost), float(cost)))
    return ranges


@dataclass(frozen=True)
class PointComparison:
    """Two strategies at the same budget.

    Attributes:
        budget: swept limit in tokens, see `Point`.
        gap: accuracy of the first minus the second.
        ratios: mean cost of the first over the second, by name, on the instances for which both have one. A cost
            without such an instance is left out.
        verdict: verdict on the gap.
        accuracies: accuracies of both.
    """

    budget: int | None
    gap: Estimate
    ratios: Mapping[str, Estimate]
    verdict: Verdict
    accuracies: tuple[float, float]

    def equally_accurate(self, min_difference: float) -> bool:
        """Whether the interval of the gap lies within `min_difference` of 0, with enough instances for a verdict."""
        is_within = max(-self.gap.low, self.gap.high) <= min_difference + ROUNDING
        return is_within and self.verdict is not Verdict.TOO_FEW


def compare_points(
    first: Point, second: Point, resampler: Resampler, costs: Sequence[str], min_difference: float = 0.0
) -> PointComparison:
    """Compare two strategies at one budget, in accuracy and in these costs.

    Args:
        first: point of the first strategy.
        second: point of the second strategy.
        resampler: resampler of the instances and seeds.
        costs: names of the costs.
        min_difference: smallest difference of accuracies that the verdict counts.
    """
    differences = first.correct - second.correct
    gap = with_equal_differences(resampler.estimate(differences), differences)
    ratios = {}
    for cost in costs:
        has_both = ~np.isnan(first.cost(cost)) & ~np.isnan(second.cost(cost))
        if not has_both.any():
            continue
        first_costs = np.where(has_both, first.cost(cost), np.nan)
        second_costs = np.where(has_both, second.cost(cost), np.nan)
        ratio = _divide(np.nanmean(first_costs), np.nanmean(second_costs))
        resampled_ratios = _divide(resampler.resampled_means(first_costs), resampler.resampled_means(second_costs))
        ratios[cost] = resampler.estimate_from(float(ratio), resampled_ratios)
    verdict = _judge_signs([sign_of(gap, min_difference)], len(first.correct))
    accuracies = (float(first.correct.mean()), float(second.correct.mean()))
    return PointComparison(first.budget, gap, ratios, verdict, accuracies)


def _divide(first: ArrayLike, second: ArrayLike) -> Values:
    """Return the ratio of costs. Two costs of 0 are equal; a cost that a study adds may be 0."""
    dividend = np.asarray(first, float)
    divisor = np.asarray(second, float)
    ratio = np.divide(dividend, divisor, out=np.where(dividend == 0, 1.0, np.inf), where=divisor != 0)
    return np.asarray(np.where(np.isnan(dividend), np.nan, ratio))
