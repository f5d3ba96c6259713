"""The sentences for findings and comparisons, one function for each.

`names` gives a strategy the name that is printed for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from selfcest_eval.play.costs import at_most, cost_name
from selfcest_eval.play.strategies import quote_name
from selfcest_eval.report.findings import (
    SOLVED,
    CheapFailure,
    CommonPathology,
    PairedComparison,
    PolicyDecisions,
    ShiftAccuracy,
    UnplayedCell,
    VariantAccuracy,
    mean_regret,
    mean_reward,
)
from selfcest_eval.stats.frontier import MIN_INSTANCES, FrontierComparison, PointComparison, Verdict, sign_of
from selfcest_eval.stats.statistics import Estimate
from selfcest_eval.stats.table import TableRow

# The words for a verdict on two frontiers, which the names of the costs with this verdict follow.
_AT_COSTS = {
    Verdict.TOO_FEW: f"not judged, on fewer than {MIN_INSTANCES} instances, at equal",
    Verdict.NO_DIFFERENCE: "not told apart at equal",
    Verdict.AHEAD: "ahead at equal",
    Verdict.BEHIND: "behind at equal",
    Verdict.BOTH: "ahead at some and behind at other",
    Verdict.NO_COST: "without",
}
_AT_NO_COST = {
    Verdict.TOO_FEW: f"not judged, on fewer than {MIN_INSTANCES} instances, at any equal cost",
    Verdict.NO_DIFFERENCE: "not told apart at any equal cost",
}


# Warnings


def describe_unplayed(item: UnplayedCell, names: Mapping[str, str]) -> str:
    return (
        f"no prompt of {names[item.strategy]} fits on {item.cell}, so it answered nothing; raise budgets, or "
        "limits.total_tokens and limits.context_tokens"
    )


def describe_unsolved(row: TableRow, names: Mapping[str, str]) -> str:
    return f"{names[row.strategy]} does not solve the smallest {row.curves.family} ({row.accuracy}, below {SOLVED})"


def describe_weak_baseline(row: TableRow, names: Mapping[str, str]) -> str:
    return f"{describe_unsolved(row, names)}: it is no fair baseline there, and its low cost proves nothing"


def describe_cheap_failure(strategy: str, names: Mapping[str, str]) -> str:
    return f"{names[strategy]} is cheap because it fails"


def describe_failing_cells(failures: Sequence[CheapFailure], names: Mapping[str, str]) -> list[str]:
    """Return a line for each strategy, with the cells on which it fails and spends little."""
    cells_by_strategy: dict[str, list[str]] = {}
    for failure in failures:
        costs = f"{cost_name(failure.cost)} x{failure.ratio:.2f}"
        text = f"{failure.cell} (accuracy {failure.accuracy:.2f}, {costs})"
        cells_by_strategy.setdefault(failure.strategy, []).append(text)
    note = "(its costs over those of its perfect player, at the largest budget)"
    return [
        f"{describe_cheap_failure(strategy, names)} {note}: {'; '.join(texts)}"
        for strategy, texts in cells_by_strategy.items()
    ]


def describe_pathology(pathology: CommonPathology, names: Mapping[str, str]) -> str:
    owner = names.get(pathology.owner, quote_name(pathology.owner))
    return f"{owner}: {pathology.name}, {pathology.count.found} of {pathology.count.possible}"


# Accuracy of variants, and decisions to delegate


def describe_learning(accuracy: VariantAccuracy, names: Mapping[str, str], min_difference: float) -> str:
    """Return the accuracy of a variant on a family, or its change by RL if that is at least `min_difference`."""
    name = names[accuracy.strategy]
    by_shift = describe_shift(accuracy.by_shift)
    if accuracy.before is None or accuracy.change is None:
        verb = "solves" if accuracy.is_solved else "does not solve"
        right_on = by_shift or f"{accuracy.mean:.2f} of all sizes"
        return f"{name} {verb} the smallest {accuracy.family}, and is right on {right_on}, from imitation only"
    change = (
        f"on {accuracy.family} accuracy went from {accuracy.before:.2f} to {accuracy.mean:.2f} "
        f"({accuracy.change.signed})"
    )
    if by_shift:
        change += f", which is {by_shift}"
    if accuracy.num_instances < MIN_INSTANCES:
        return f"fewer than {MIN_INSTANCES} instances, no verdict on RL of {name}: {change}"
    sign = sign_of(accuracy.change, min_difference)
    if sign == 0:
        return f"RL left the accuracy of {name} where it was, as far as these instances show: {change}"
    return f"RL made {name} {'more' if sign > 0 else 'less'} accurate: {change}"


def describe_shift(accuracy: ShiftAccuracy) -> str:
    """Return both accuracies in words; empty if the family lacks trained sizes or sizes beyond."""
    if accuracy.trained is None or accuracy.beyond is None:
        return ""
    return f"{accuracy.trained:.2f} on trained sizes, {accuracy.beyond:.2f} beyond"


def describe_family_accuracies(accuracies: Sequence[VariantAccuracy], *, has_beyond: bool) -> str:
    """Return the accuracies of all variants on one family, in and out of distribution where it has both."""
    texts = []
    for accuracy in accuracies:
        means = [mean for mean in (accuracy.by_shift.trained, accuracy.by_shift.beyond) if mean is not None]
        texts.append(f"{quote_name(accuracy.strategy)} " + ", ".join(f"{mean:.2f}" for mean in means))
    apart = " in and out of distribution" if has_beyond else ""
    return f"{accuracies[0].family}, accuracy{apart}: {'; '.join(texts)}"


def describe_choice(decisions: PolicyDecisions, names: Mapping[str, str]) -> str:
    """Return the reward of a strategy's own choices against that of the better forced choice."""
    now = decisions.now
    relation = {1: "more than", -1: "less than", 0: "not told apart from"}[sign_of(decisions.gap, 0.0)]
    return (
        f"on {now.family}, {names[now.triple.free]} earns {mean_reward(now, 'free'):.3f} by its own choice, {relation} "
        f"the {mean_reward(now, decisions.better):.3f} of the better forced choice, {decisions.better} "
        f"({decisions.gap.signed})"
    )


def describe_decisions(decisions: PolicyDecisions) -> list[str]:
    """Return two lines with the shares delegated, the rewards and the regrets, before RL if known and after it."""
    now = decisions.now
    stages = [now] if decisions.before is None else [decisions.before, now]
    shares = " -> ".join(" ".join(map("{:.2f}".format, stage.shares)) for stage in stages)
    rewards = " -> ".join(f"{mean_reward(stage, 'free'):.3f}" for stage in stages)
    regrets = " -> ".join(f"{mean_regret(stage):.3f}" for stage in stages)
    forced = f"always {mean_reward(now, 'always'):.3f}, never {mean_reward(now, 'never'):.3f}"
    return [
        f"{now.family}, share delegated at {', '.join(now.sizes)}: {shares}",
        f"{now.family}, reward {rewards} ({forced}); regret {regrets}",
    ]


# Comparisons


def describe_comparison(comparison: PairedComparison, names: Mapping[str, str], min_difference: float) -> list[str]:
    """Return a line for each cost, for each budget, and for the costs at the largest budget."""
    first = names[comparison.subject]
    second = names[comparison.strategy]
    largest = comparison.at[-1]
    lines = [describe_frontier(frontiers, first, second) for frontiers in comparison.over.values()]
    lines += [f"{at_most(pair.budget)}, {describe_points(pair, first, second)}" for pair in comparison.at]
    return [*lines, f"{at_most(largest.budget)}, {describe_cost_ratios(largest, first, second, min_difference)}"]


def describe_frontier(comparison: FrontierComparison, first: str, second: str) -> str:
    """Return which of two frontiers is ahead over which range of one cost, and by how much."""
    name = cost_name(comparison.cost)
    average = f"on average {comparison.average.signed}"
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
                parts.append(f"ahead {_format_ranges(comparison.ahead)} (by up to {best.signed})")
            if comparison.behind:
                worst = min(comparison.gap, key=lambda gap: gap.high)
                parts.append(f"behind {_format_ranges(comparison.behind)} (by up to {worst.signed})")
            return f"{name}: {first} is {' and '.join(parts)} against {second} at equal cost; {average}"


def _format_ranges(ranges: Sequence[tuple[float, float]]) -> str:
    return " and ".join(f"at {low:.4g}" if low == high else f"from {low:.4g} to {high:.4g}" for low, high in ranges)


def describe_frontiers(comparison: PairedComparison, names: Mapping[str, str], min_difference: float) -> str:
    """Return at which costs a strategy is ahead of another, and the ratios of costs where both are as accurate."""
    first = names[comparison.subject]
    second = names[comparison.strategy]
    costs_by_verdict: dict[Verdict, list[str]] = {}
    for cost, frontiers in comparison.over.items():
        costs_by_verdict.setdefault(frontiers.verdict, []).append(cost)
    verdicts = list(costs_by_verdict)
    if len(verdicts) == 1 and verdicts[0] in _AT_NO_COST:
        text = f"{first} and {second} are {_AT_NO_COST[verdicts[0]]}"
    else:
        parts = [f"{_AT_COSTS[kind]} {_join_costs(costs, comparison.over)}" for kind, costs in costs_by_verdict.items()]
        text = f"{first} against {second} is {'; '.join(parts)}"
    pair = comparison.at[-1]
    if pair.equally_accurate(min_difference):
        # Costs with the same ratio stand together.
        costs_by_ratio: dict[str, list[str]] = {}
        for cost, ratio in pair.ratios.items():
            if np.isfinite(ratio.mean):
                costs_by_ratio.setdefault(f"{ratio.mean:.2f}", []).append(cost)
        spent = [f"{ratio} times the {_join_costs(costs, pair.ratios)}" for ratio, costs in costs_by_ratio.items()]
        if spent:
            text += f" (as accurate, for {join_with_and(spent)})"
    return f"on {comparison.curves.family}, {text}"


def _join_costs(costs: Sequence[str], all_costs: Collection[str]) -> str:
    if len(costs) == len(all_costs) > 1:
        return "cost of every kind"
    return join_with_and([cost_name(cost) for cost in costs])


def describe_points(pair: PointComparison, first: str, second: str) -> str:
    """Return how two strategies compare under one budget, in accuracy and in every cost that is compared."""
    ratios = list(pair.ratios.values())
    match pair.verdict:
        case Verdict.TOO_FEW:
            text = f"fewer than {MIN_INSTANCES} instances, no verdict"
        case Verdict.AHEAD:
            dominates = ratios and all(ratio.high <= 1 for ratio in ratios)
            text = f"{first} is more accurate" + (" and dearer in no cost: it dominates" if dominates else "")
        case Verdict.BEHIND:
            is_dominated = ratios and all(ratio.low >= 1 for ratio in ratios)
            text = f"{first} is less accurate" + (" and cheaper in no cost: it is dominated" if is_dominated else "")
        case _:
            text = "no clear difference of accuracy"
            if ratios and all(ratio.low > 1 for ratio in ratios):
                text += f"; {first} is dearer in every cost"
            elif ratios and all(ratio.high < 1 for ratio in ratios):
                text += f"; {first} is cheaper in every cost"
    costs = ", ".join(f"{cost_name(cost)} {format_ratio(ratio.mean)}" for cost, ratio in pair.ratios.items())
    return f"{first} against {second}: {text} ({pair.gap.signed}; {costs or 'no instance whose prompt fitted both'})"


def describe_cost_ratios(pair: PointComparison, first: str, second: str, min_difference: float) -> str:
    """Return the costs of the first over the second if both are as accurate, or that they cannot be compared."""
    if not pair.equally_accurate(min_difference):
        return f"{first} against {second}: costs are {explain_incomparable(pair, min_difference)}"
    costs = ", ".join(f"{cost_name(cost)} {format_ratio(ratio)}" for cost, ratio in pair.ratios.items())
    return f"{first} against {second}, equally accurate: {costs or 'no instance whose prompt fitted both'}"


def format_ratio(ratio: Estimate | float) -> str:
    """Return a ratio of two costs, as `x1.50`; words if it is infinite, since the second strategy spends none."""
    mean = ratio.mean if isinstance(ratio, Estimate) else ratio
    if math.isinf(mean):
        return "where the other has none"
    return f"x{ratio}" if isinstance(ratio, Estimate) else f"x{ratio:.2f}"


def explain_incomparable(pair: PointComparison, min_difference: float) -> str:
    """Return why costs at one budget are not comparable."""
    if pair.verdict is Verdict.TOO_FEW:
        return f"not comparable: fewer than {MIN_INSTANCES} instances"
    first, second = pair.accuracies
    text = f"not comparable: accuracies {first:.2f} and {second:.2f}"
    if pair.gap.low <= min_difference and pair.gap.high >= -min_difference:
        text += f", whose difference, {pair.gap.signed}, may be more than {min_difference:g}"
    return text


# Grammar


def join_with_and(words: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def join_clauses(clauses: Sequence[str]) -> str:
    """Return the clauses as one text that begins with a capital letter and ends with a stop."""
    text = "; ".join(clause.rstrip(".") for clause in clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""
