"""The short forms of a report: its warnings, the verdict of a terminal and table.md, the five answers of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfcest_eval.play.costs import cost_name
from selfcest_eval.play.strategies import quote_name
from selfcest_eval.report import words
from selfcest_eval.report.findings import (
    Findings,
    PairedComparison,
    analyze,
    compare_best_baselines,
    compare_cells,
    mean_regret,
    measure_accuracy_by_shift,
)
from selfcest_eval.report.learning import MetricCurve, compute_learning_curves
from selfcest_eval.report.settings import AnalysisSettings, describe_sizes_of_cells
from selfcest_eval.report.sources import Source
from selfcest_eval.stats.frontier import MIN_INSTANCES, Verdict
from selfcest_eval.stats.statistics import Estimate

MOSTLY = 0.5  # the share of groups with equal returns above which RL has too few gradients
MIN_SEEDS = 3  # with fewer seeds, the effect of the method cannot be separated from that of the seed
SHOWN_FAILURES = 3  # lines of the answer to "What failed"; the page lists all failures above it
MIN_REGRET = 0.01  # in reward; a smaller regret is not worth more training

_REMEDIES = {
    "serial collapse": "show calls with several objectives in the warm start, or reward a short critical path",
    "redundant objectives": "price clones (reward.options.clone_cost) or show plans without repetition",
    "ignored replies": "check that replies fit (limits.reply_tokens) and show joins in the warm start",
    "refused without recovery": "raise limits.total_tokens, or show smaller calls in the warm start",
    "refused reads": "raise limits.max_reads, or show more documents in the warm start",
}
_UNDECIDED = (Verdict.NO_DIFFERENCE, Verdict.TOO_FEW)
# Lines of a study's verdict. A strategy that is ahead at some costs and behind at others counts in both.
_VERDICT_LINES = {
    "ahead at some cost": (Verdict.AHEAD, Verdict.BOTH),
    "behind at some cost": (Verdict.BEHIND, Verdict.BOTH),
    "undecided": (*_UNDECIDED, Verdict.NO_COST),
}
# Verdicts that the headline names only where there are some.
_OTHER_VERDICTS = {
    Verdict.BOTH: "ahead at some costs and behind at others",
    Verdict.NO_DIFFERENCE: "not told apart",
    Verdict.TOO_FEW: f"not judged (fewer than {MIN_INSTANCES} instances)",
    Verdict.NO_COST: "without a common cost (no prompt fitted)",
}
_RUN_COSTS = ("total_tokens", "critical_path_tokens", "peak_context", "kv_token_steps")


# Terminal and table.md


def describe_warnings(findings: Findings, settings: AnalysisSettings) -> list[str]:
    """Return the warnings that qualify every comparison, one per line."""
    names = settings.names
    # What was not learned comes first, since it can explain everything else.
    lines = [words.describe_weak_baseline(row, names) for row in findings.weak_baselines]
    lines += [words.describe_unplayed(item, names) for item in findings.unplayed]
    return lines + words.describe_failing_cells(findings.cheap_failures, names)


def describe_headline(comparisons: Sequence[PairedComparison], settings: AnalysisSettings) -> str:
    """Return one sentence: how many comparisons have which verdict at the first cost that is compared.

    It is empty if nothing is compared.
    """
    if not comparisons or not settings.compared:
        return ""
    cost = settings.compared[0]
    counts = Counter(item.over[cost].verdict for item in comparisons)
    subjects = dict.fromkeys(settings.names[item.subject] for item in comparisons)
    clauses = [f"ahead at equal {cost_name(cost)} in {counts[Verdict.AHEAD]} of {len(comparisons)} comparisons"]
    clauses.append(f"behind in {counts[Verdict.BEHIND]}")
    clauses += [f"{text} in {counts[verdict]}" for verdict, text in _OTHER_VERDICTS.items() if counts[verdict]]
    verb = "is" if len(subjects) == 1 else "are"
    return f"{words.join_with_and(list(subjects))} {verb} {words.join_with_and(clauses)}."


def describe_study(comparisons: Sequence[PairedComparison], settings: AnalysisSettings) -> str:
    """Return five lines: the comparisons, and how many are ahead, behind and undecided at each cost.

    The last line has the ratios of the subject's costs to those of the others, where both are equally accurate.
    """
    subjects = dict.fromkeys(settings.names[item.subject] for item in comparisons)
    strategies = dict.fromkeys(settings.names[item.strategy] for item in comparisons)
    cells = dict.fromkeys(item.curves.name for item in comparisons)
    lines = [
        f"{', '.join(subjects)} against {', '.join(strategies)}, at equal cost, on {len(cells)} cells: "
        f"{len(comparisons)} comparisons"
    ]
    for heading, verdicts in _VERDICT_LINES.items():
        counts = []
        for cost in settings.compared:
            count = sum(item.over[cost].verdict in verdicts for item in comparisons)
            counts.append(f"{cost_name(cost)} {count}")
        lines.append(f"  {heading}: {', '.join(counts)}")
    pairs = [item.at[-1] for item in comparisons if item.at[-1].equally_accurate(settings.min_difference)]
    ranges = []
    for cost in settings.compared:
        ratios = [pair.ratios[cost].mean for pair in pairs if cost in pair.ratios]
        if ratios:
            low = words.format_ratio(min(ratios))
            high = words.format_ratio(max(ratios))
            ranges.append(f"{cost_name(cost)} {low if low == high else f'{low} to {high}'}")
    costs = ", ".join(ranges) or "no cost can be compared"
    lines.append(f"  at equal accuracy, in {len(pairs)} at the largest budget: {costs}")
    return "\n".join(lines)


def describe_run(source: Source, findings: Findings, comparisons: Sequence[PairedComparison]) -> str:
    """Return lines on accuracy, costs at equal accuracy, decisions, and sizes that variants have not learned."""
    lines = []
    for family in dict.fromkeys(curves.family for curves in source.cells):
        accuracies = [accuracy for accuracy in findings.accuracies if accuracy.family == family]
        has_beyond = any(curves.shift == "out" for curves in source.cells if curves.family == family)
        if accuracies:
            lines.append(words.describe_family_accuracies(accuracies, has_beyond=has_beyond))
    lines += _describe_equal_accuracy(source, comparisons)
    for decisions in findings.decisions:
        lines += words.describe_decisions(decisions)
    unsolved = []
    for strategy in source.final:
        for row in (*findings.weak_baselines, *findings.unsolved_variants):
            if row.strategy == strategy:
                unsolved.append(f"{quote_name(strategy)} {row.accuracy.mean:.2f} on {row.curves.name}")
    if unsolved:
        lines.insert(0, f"not learned: {'; '.join(unsolved)}")
    else:
        lines.append("every variant solves the smallest sizes it plays")
    return "\n".join(lines)


def _describe_equal_accuracy(source: Source, comparisons: Sequence[PairedComparison]) -> list[str]:
    """Return the costs of a final variant over those of another, on the cells where both are as accurate."""
    comparisons_by_pair: dict[tuple[str, str], list[PairedComparison]] = {}
    for item in comparisons:
        if item.subject in source.final and item.strategy in source.final:
            comparisons_by_pair.setdefault((item.subject, item.strategy), []).append(item)
    lines = []
    for (subject, strategy), items in comparisons_by_pair.items():
        pairs = [item.at[-1] for item in items if item.at[-1].equally_accurate(source.settings.min_difference)]
        costs = []
        for cost in _RUN_COSTS:
            ratios = [pair.ratios[cost].mean for pair in pairs if cost in pair.ratios]
            if ratios:
                costs.append(f"{cost_name(cost)} {words.format_ratio(float(np.mean(ratios)))}")
        where = f"on the {len(pairs)} of {len(items)} sizes on which both are as accurate"
        names = f"{quote_name(subject)} over {quote_name(strategy)}"
        lines.append(f"{names}, {where}: {', '.join(costs) or 'no cost can be compared'}")
    return lines


# The page


@dataclass(frozen=True)
class ReportAnswer:
    """One of the five answers at the top of a page.

    Attributes:
        question: title of the answer.
        text: the answer.
        see: sections of the page with the numbers.
    """

    question: str
    text: str
    see: tuple[str, ...]


@dataclass(frozen=True)
class SourceReport:
    """A source with its findings, and the texts at the top of its page.

    Attributes:
        source: source of the report.
        findings: findings on the source.
        headline: the sentence of `describe_headline`.
        failures: warnings that qualify every comparison, one per line.
        answers: the five answers.
        learning_curves: all metrics of RL.
    """

    source: Source
    findings: Findings
    headline: str
    failures: Sequence[str]
    answers: Sequence[ReportAnswer]
    learning_curves: Sequence[MetricCurve]


def report_on(source: Source) -> SourceReport:
    """Compute all findings of a source, for its page and for the terminal."""
    findings = analyze(source)
    curves = compute_learning_curves(source.jobs)
    baselines = compare_best_baselines(source)
    first_cost = replace(source.settings, compared=source.settings.compared[:1])
    headline = describe_headline(compare_cells(source.cells, first_cost), first_cost)
    names = source.short_names
    failures = _list_failures(source, findings, names)
    shown = failures[:SHOWN_FAILURES]
    if len(failures) > SHOWN_FAILURES:
        shown.append(f"and {len(failures) - SHOWN_FAILURES} more")
    failed = words.join_clauses(shown) or "Nothing that this page counts."
    winners = _describe_winners(source, findings, baselines, names)
    suggestions = list(_suggest(source, findings, baselines, names))
    answers = [
        ReportAnswer("What was learned", _describe_learning(source, findings, curves, names), ("learning", "results")),
        ReportAnswer("Who wins on which cost", winners, ("frontier", "decisions")),
        ReportAnswer("How sure", _describe_certainty(source, findings, baselines), ("results",)),
        ReportAnswer("What failed", failed, ("failures", "pathologies")),
        ReportAnswer("What to try next", words.join_clauses(suggestions[:2]), ("failures", "pathologies", "decisions")),
    ]
    return SourceReport(source, findings, headline, failures, answers, curves)


def _list_failures(source: Source, findings: Findings, names: Mapping[str, str]) -> list[str]:
    """Return warnings, policies that have not learned, and common pathologies."""
    lines = [words.describe_weak_baseline(row, names) for row in findings.weak_baselines]
    lines += [words.describe_unsolved(row, names) for row in findings.unsolved_variants]
    lines += source.warnings
    lines += [words.describe_unplayed(item, names) for item in findings.unplayed]
    not_compared = {*source.before.values(), *source.settings.aside}
    failing = dict.fromkeys(failure.strategy for failure in findings.cheap_failures)
    lines += [words.describe_cheap_failure(strategy, names) for strategy in failing if strategy not in not_compared]
    return lines + [words.describe_pathology(pathology, names) for pathology in findings.pathologies]


def _describe_learning(
    source: Source, findings: Findings, curves: Sequence[MetricCurve], names: Mapping[str, str]
) -> str:
    if source.run is None:
        policies = len({str(source.study.policy_of(name)) for name in source.final})
        return (
            f"Nothing is trained in a study: {len(source.final)} strategies were played by {policies} "
            f"polic{'y' if policies == 1 else 'ies'} on {len(source.cells)} cells."
        )
    lines = [
        words.describe_learning(accuracy, names, source.settings.min_difference) for accuracy in findings.accuracies
    ]
    for curve in curves:
        if curve.metric != "return":
            continue
        ends = f"{curve.first.mean:.2f} to {curve.last.mean:.2f}"
        lines.append(f"the return of {quote_name(curve.variant)} in training went from {ends}")
    return words.join_clauses(lines) or "Nothing has been evaluated yet."


def _describe_winners(
    source: Source, findings: Findings, baselines: Sequence[PairedComparison], names: Mapping[str, str]
) -> str:
    lines = []
    for item in baselines:
        by_shift = []
        for strategy in (item.subject, item.strategy):
            accuracies = words.describe_shift(measure_accuracy_by_shift(source.cells, item.curves.family, strategy))
            if accuracies:
                by_shift.append(f"{names[strategy]}: {accuracies}")
        line = words.describe_frontiers(item, names, source.settings.min_difference)
        lines.append(f"{line} ({'; '.join(by_shift)})" if by_shift else line)
    # Budgets rise, so the last one of a family and a strategy is the largest.
    at_largest = {(item.now.family, item.now.triple.free): item for item in findings.decisions}
    lines += [words.describe_choice(item, names) for item in at_largest.values()]
    return words.join_clauses(lines) or "There is nothing to compare: no family was played by two policies."


def _describe_certainty(source: Source, findings: Findings, baselines: Sequence[PairedComparison]) -> str:
    if not source.cells:
        return "Not at all: nothing has been evaluated yet."
    seeds = len(source.cells[0].seeds)
    lines = [f"{describe_sizes_of_cells(source.cells)} and {seeds} seed{'s' if seeds > 1 else ''}"]
    widths = [_compute_half_width(row.accuracy) for row in findings.rows.of_cells if row.strategy in source.final]
    if widths:
        lines.append(f"an accuracy on one cell is known to within {max(widths):.2f} at worst")
    verdicts = _list_verdicts(baselines)
    if verdicts:
        undecided = sum(verdict in _UNDECIDED for verdict in verdicts)
        lines.append(f"{undecided} of {len(verdicts)} comparisons of families are undecided")
    if seeds == 1 and source.settings.crossed:
        lines.append("the weights are those of one seed, so another seed may give another result")
    return words.join_clauses(lines)


def _compute_half_width(accuracy: Estimate) -> float:
    """Return how far the accuracy can be from its mean; an accuracy of 0 or 1 has an interval on one side."""
    width = min(1.0, accuracy.high) - max(0.0, accuracy.low)
    return width / 2 if 0 < accuracy.mean < 1 else width


def _list_verdicts(comparisons: Sequence[PairedComparison]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for item in comparisons:
        verdicts += [frontiers.verdict for frontiers in item.over.values()]
    return verdicts


def _suggest(
    source: Source, findings: Findings, baselines: Sequence[PairedComparison], names: Mapping[str, str]
) -> Iterator[str]:
    """Yield what to do next, the most urgent first. There always is something."""
    if not source.cells:
        yield "let the run finish: selfcest train --resume"
    unsolved = dict.fromkeys(names[row.strategy] for row in (*findings.weak_baselines, *findings.unsolved_variants))
    if unsolved:
        means = "more tokens in its warm start" if source.run else "a policy that was trained for it"
        policies = words.join_with_and(list(unsolved))
        yield f"before comparing, give {policies} {means}, until the smallest size is solved"
    pathologies = {pathology.name: pathology for pathology in findings.pathologies}
    owners = {name: names.get(pathology.owner, quote_name(pathology.owner)) for name, pathology in pathologies.items()}
    if "never delegates" in pathologies:
        yield (
            f"{owners['never delegates']} never delegates: show both ways half and half in the warm start, or lower "
            "the price of tokens, so that RL sees what clones earn"
        )
    if "equal groups" in pathologies:
        count = pathologies["equal groups"].count
        if count.found > MOSTLY * count.possible:
            yield (
                f"most groups of {owners['equal groups']} earn the same and teach nothing: choose tasks that it "
                "sometimes fails, a higher temperature or larger groups"
            )
    regret_by_family = {item.now.family: mean_regret(item.now) for item in findings.decisions}
    for family, regret in regret_by_family.items():
        if regret > MIN_REGRET:
            yield f"on {family} a threshold of size would earn {regret:.3f} more: train longer on sizes around it"
    for name, remedy in _REMEDIES.items():
        if name in pathologies:
            yield f"against {name} of {owners[name]}: {remedy}"
    seeds = len(source.cells[0].seeds) if source.cells else MIN_SEEDS
    if seeds < MIN_SEEDS and source.settings.crossed:
        yield f"more seeds, as seeds={list(range(MIN_SEEDS))}: {seeds} cannot separate the method from luck"
    if any(verdict in _UNDECIDED for verdict in _list_verdicts(baselines)):
        key = "evaluation.episodes" if source.run else "episodes"
        yield f"four times as many instances ({key}) to halve the intervals of undecided comparisons"
    worst_accuracies = []
    for curves in source.cells:
        played = [points[-1].correct.mean() for name, points in curves.strategies.items() if name in source.final]
        worst_accuracies += [(float(accuracy), curves.name) for accuracy in played]
    if worst_accuracies:
        accuracy, hardest = min(worst_accuracies)
        yield f"harder tasks: the hardest here is {hardest}, with an accuracy of {accuracy:.2f} at worst"
