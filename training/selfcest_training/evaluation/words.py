"""What a comparison says, as sentences."""

from __future__ import annotations

from collections.abc import Sequence

from selfcest_training.evaluation.frontier import MIN_INSTANCES, Comparison, Match, Verdict
from selfcest_training.evaluation.results import TOKEN_COSTS


def cost_name(cost: str) -> str:
    return {"wall_seconds": "wall-clock seconds (of this machine)"}.get(cost, cost.replace("_", " "))


def sentence(comparison: Comparison, first: str, second: str) -> str:
    """Who is ahead of whom over which range of one cost, and by how much."""
    name, average = cost_name(comparison.cost), f"on average {comparison.average.signed}"
    match comparison.verdict:
        case Verdict.TOO_FEW:
            return f"{name}: fewer than {MIN_INSTANCES} instances, no verdict on {first} and {second}"
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
    """How two strategies compare under one budget, in accuracy and in every cost in tokens."""
    ratios = [pair.ratios[cost] for cost in TOKEN_COSTS]
    cheaper, dearer = all(ratio.high < 1 for ratio in ratios), all(ratio.low > 1 for ratio in ratios)
    match pair.verdict:
        case Verdict.TOO_FEW:
            said = f"fewer than {MIN_INSTANCES} instances, no verdict"
        case Verdict.AHEAD:
            dominates = all(ratio.high <= 1 for ratio in ratios)
            said = f"{first} is more accurate" + (" and dearer in no cost: it dominates" if dominates else "")
        case Verdict.BEHIND:
            dominated = all(ratio.low >= 1 for ratio in ratios)
            said = f"{first} is less accurate" + (" and cheaper in no cost: it is dominated" if dominated else "")
        case _:
            ending = f"; {first} is cheaper in every cost" if cheaper else ""
            ending = f"; {first} is dearer in every cost" if dearer else ending
            said = f"no clear difference of accuracy{ending}"
    costs = ", ".join(f"{cost_name(cost)} x{pair.ratios[cost].mean:.2f}" for cost in TOKEN_COSTS)
    return f"against {second}: {said} ({pair.gap.signed}; {costs})"


def _at(ranges: Sequence[tuple[float, float]]) -> str:
    return " and ".join(f"at {low:.4g}" if low == high else f"from {low:.4g} to {high:.4g}" for low, high in ranges)
