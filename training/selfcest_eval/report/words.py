"""What a comparison says, as sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from selfcest_eval.play.costs import cost_name
from selfcest_eval.stats.frontier import MIN_INSTANCES, FrontierComparison, Match, Verdict
from selfcest_eval.stats.statistics import Estimate


def sentence(comparison: FrontierComparison, first: str, second: str) -> str:
    """Who is ahead of whom over which range of one cost, and by how much."""
    name, average = cost_name(comparison.cost), f"on average {comparison.average.signed}"
    match comparison.verdict:
        case Verdict.TOO_FEW:
            return f"{name}: fewer than {MIN_INSTANCES} instances, no verdict on {first} and {second}"
        case Verdict.NO_COST:
            return f"{name}: no prompt of {first} or of {second} fitted, so there is nothing to compare"
        case Verdict.NO_DIFFERENCE:
            return f"{name}: no clear difference between {first} and {second} at any equal cost; {average}"
        case _:
            parts = []
            if comparison.ahead:
                best = max(comparison.gap, key=lambda gap: gap.low)
                parts.append(f"ahead {_at(comparison.ahead)} (by up to {best.signed})")
            if comparison.behind:
                worst = min(comparison.gap, key=lambda gap: gap.high)
                parts.append(f"behind {_at(comparison.behind)} (by up to {worst.signed})")
            return f"{name}: {first} is {' and '.join(parts)} against {second} at equal cost; {average}"


def matched(pair: Match, first: str, second: str) -> str:
    """How two strategies compare under one budget, in accuracy and in every cost that is compared."""
    ratios = list(pair.ratios.values())
    cheaper, dearer = all(ratio.high < 1 for ratio in ratios), all(ratio.low > 1 for ratio in ratios)
    match pair.verdict:
        case Verdict.TOO_FEW:
            said = f"fewer than {MIN_INSTANCES} instances, no verdict"
        case Verdict.AHEAD:
            dominates = ratios and all(ratio.high <= 1 for ratio in ratios)
            said = f"{first} is more accurate" + (" and dearer in no cost: it dominates" if dominates else "")
        case Verdict.BEHIND:
            dominated = ratios and all(ratio.low >= 1 for ratio in ratios)
            said = f"{first} is less accurate" + (" and cheaper in no cost: it is dominated" if dominated else "")
        case _:
            ending = f"; {first} is cheaper in every cost" if ratios and cheaper else ""
            ending = f"; {first} is dearer in every cost" if ratios and dearer else ending
            said = f"no clear difference of accuracy{ending}"
    costs = ", ".join(f"{cost_name(cost)} {times(ratio.mean)}" for cost, ratio in pair.ratios.items())
    return f"against {second}: {said} ({pair.gap.signed}; {costs or 'no instance whose prompt fitted both'})"


def at_equal_accuracy(pair: Match, first: str, second: str, least: float) -> str:
    """What the first costs over the second if they are equally accurate, or that they cannot be compared."""
    if not pair.equally_accurate(least):
        return f"{first} against {second}: costs are {not_comparable(pair, least)}"
    costs = ", ".join(f"{cost_name(cost)} {times(ratio)}" for cost, ratio in pair.ratios.items())
    return f"{first} against {second}, equally accurate: {costs or 'no instance whose prompt fitted both'}"


def times(ratio: Estimate | float) -> str:
    """A ratio of two costs, as `x1.50`; what has no ratio, since the other spends none, is said to have none."""
    mean = ratio.mean if isinstance(ratio, Estimate) else ratio
    if math.isinf(mean):
        return "where the other has none"
    return f"x{ratio}" if isinstance(ratio, Estimate) else f"x{ratio:.2f}"


def not_comparable(pair: Match, least: float) -> str:
    """Why not."""
    if pair.verdict is Verdict.TOO_FEW:
        return f"not comparable: fewer than {MIN_INSTANCES} instances"
    said = "not comparable: accuracies {:.2f} and {:.2f}".format(*pair.accuracies)
    open_ = pair.gap.low <= least and pair.gap.high >= -least
    return said + (f", whose difference, {pair.gap.signed}, may be more than {least:g}" if open_ else "")


def _at(ranges: Sequence[tuple[float, float]]) -> str:
    return " and ".join(f"at {low:.4g}" if low == high else f"from {low:.4g} to {high:.4g}" for low, high in ranges)
