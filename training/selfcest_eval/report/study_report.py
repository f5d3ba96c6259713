"""A study's results as a table, a CSV, plots, sentences, and a page of documentation; those of a training run too."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from selfcest_env.tasks import Style
from selfcest_env.types import Status
from selfcest_eval.play.costs import WALL, at_most, cost_name
from selfcest_eval.play.results import ENDINGS, SCORES
from selfcest_eval.report.figures import frontier_figure
from selfcest_eval.report.reading import Reading
from selfcest_eval.report.tables import interval_fields, interval_heads, markdown_table, write_csv
from selfcest_eval.report.words import at_equal_accuracy, matched, not_comparable, sentence, times
from selfcest_eval.stats.decision_table import Decided, decision_section
from selfcest_eval.stats.frontier import (
    FrontierComparison,
    Match,
    PerfectExecution,
    Point,
    Verdict,
    compare_frontiers,
    match,
)
from selfcest_eval.stats.statistics import MISSING, Estimate
from selfcest_eval.stats.table import Curves, TableRow, by_family, rows_of
from selfcest_training.files import atomic_write, write_text

SOLVED = 0.9  # of the smallest size of a family, by a baseline that deserves the name
CHEAP = 0.9  # of what the perfect player spends: with a lower accuracy than SOLVED, cheap because it fails

EQUAL_COST = (
    "A strategy's frontier is the best accuracy that mixing its budgets reaches at a mean cost, no budget and no "
    "answer among them. Numbers are the mean gap between two frontiers over the range of costs, with its interval; "
    "words say where a band around the whole gap excludes 0."
)

EQUAL_ACCURACY = (
    "Mean costs of the one over those of the other, with intervals, at the largest budget, where the interval of the "
    "difference of their accuracies lies within {least:g} of 0. Elsewhere a cost says nothing: who fails may be cheap."
)

PERFECT_EXECUTION = (
    "Costs, and in brackets those of the strategy's perfect player: the expert of the tasks plays the same instances "
    "under the same limits, in the policy's own tokens, and is always right. Both are means over the instances that "
    "both could play; the column says how many the expert could, and on how many of them which limits had to be lifted "
    "for it. *No expert*: nobody knows how to play it so. Strategies that no expert is told how to play are left out."
)

FLOORS = (
    "Answers whose score is a floor and not what the grader's rule gives, by its reason, of all instances and seeds."
)

ENDED = (
    "How often the root ended how, of all instances and seeds, in the episode whose answer counts. A strategy with a "
    "script is what its name says where the script was executed; elsewhere the policy played alone."
)

MEANINGS = {  # of scores, by the first name of each kind
    "score": "The score is what the grader gives, partial credit included.",
    "support_precision": (
        "Support compares the documents that a strategy looked at with those that the question needs; of several "
        "samples only the one whose answer counts."
    ),
}


@dataclass(frozen=True)
class PairedComparison:
    """The subject against another strategy on one cell: over each cost that is compared, and at each budget."""

    curves: Curves
    subject: str
    strategy: str
    over: Mapping[str, FrontierComparison]
    at: Sequence[Match]


def comparisons(cells: Sequence[Curves], reading: Reading) -> list[PairedComparison]:
    """The subject against every other strategy, cell by cell."""
    found, least = [], reading.min_difference
    for curves in cells:
        subject = next((name for name in reading.subjects if name in curves.strategies), None)
        if subject is None:
            continue
        own, resampler = curves.strategies[subject], reading.resampler(curves)
        for strategy, points in curves.strategies.items():
            if strategy not in (subject, *reading.aside):
                over = {cost: compare_frontiers(own, points, cost, resampler, least) for cost in reading.compared}
                pairs = zip(own, points, strict=True)
                at = [match(left, right, resampler, reading.compared, least) for left, right in pairs]
                found.append(PairedComparison(curves, subject, strategy, over, at))
    return found


# Tables


def markdown(rows: Sequence[TableRow], reading: Reading) -> str:
    """The table as Markdown, one line per cell, budget and strategy; costs are means where a prompt fitted."""
    names = [*reading.costs, WALL]
    lines = [
        [*_place(row, reading), str(row.accuracy)]
        + [_mean(row.costs.get(cost, MISSING), 3 if cost == WALL else 1) for cost in names]
        for row in rows
    ]
    return markdown_table([*_heads(reading), "accuracy", *map(_short, reading.costs), "wall-clock s"], lines)


def _short(cost: str) -> str:
    return cost.removesuffix("_tokens").replace("_", " ")


def _mean(estimate: Estimate, digits: int) -> str:
    return "–" if estimate.mean != estimate.mean else _number(estimate.mean, digits)


def _number(value: float, digits: int = 1) -> str:
    """Three digits below 1: money is little per instance, and no value but 0 is shown as 0."""
    if 0 < abs(value) < 1:
        return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}".rstrip("0")
    return f"{value:.{digits}f}"


def perfect_execution(rows: Sequence[TableRow], reading: Reading) -> str:
    """Costs beside those of perfect players, as a Markdown table; empty if no strategy has one."""
    lines = []
    for row in rows:
        for style, player in row.point.perfect_execution.items():
            pairs = [row.point.beside(style, cost) for cost in reading.compared]
            shown = ["–" if pair is None else "{} ({})".format(*map(_number, pair)) for pair in pairs]
            lines.append([*_place(row, reading), str(row.accuracy), _player(style, player, row), *shown])
    heads = [*_heads(reading), "accuracy", "perfect execution", *(_short(cost) for cost in reading.compared)]
    return markdown_table(heads, lines) if lines else ""


def _player(style: Style, player: PerfectExecution, row: TableRow) -> str:
    if not player.instances:
        return f"{style}: no expert"
    of = len(row.curves.task_ids)
    notes = [f"{player.instances} of {of}"] if player.instances < of else []
    notes += [f"{' and '.join(map(cost_name, names))} lifted on {n}" for names, n in sorted(player.lifted.items())]
    return f"{style}" + (f" ({'; '.join(notes)})" if notes else "")


@dataclass(frozen=True)
class CheapFailure:
    """A strategy that fails on a cell, and spends less than it would without failing.

    Attributes:
        strategy, curves: which, on which cell.
        accuracy: at the largest budget.
        cost, ratio: the cost that is lowest in proportion to the perfect player's, and that proportion.
    """

    strategy: str
    curves: Curves
    accuracy: float
    cost: str
    ratio: float


def find_cheap_failures(cells: Sequence[Curves], reading: Reading) -> list[CheapFailure]:
    """Return the strategies that are cheap because they fail, in the order of cells."""
    failures = []
    for curves in cells:
        for strategy, points in curves.strategies.items():
            ratios = {}
            for cost in reading.compared:
                ratio = _least_ratio(points[-1], cost)
                if ratio is not None:
                    ratios[cost] = ratio
            accuracy = float(points[-1].correct.mean())
            lowest = min(ratios, key=lambda cost: ratios[cost], default="")
            if lowest and accuracy < SOLVED and ratios[lowest] < CHEAP:
                failures.append(CheapFailure(strategy, curves, accuracy, lowest, ratios[lowest]))
    return failures


def cheap_failure_lines(cells: Sequence[Curves], reading: Reading) -> list[str]:
    """Describe each strategy of `find_cheap_failures` in one line."""
    cells_by_strategy: dict[str, list[str]] = {}
    for failure in find_cheap_failures(cells, reading):
        costs = f"{cost_name(failure.cost)} x{failure.ratio:.2f}"
        text = f"{failure.curves.name} (accuracy {failure.accuracy:.2f}, {costs})"
        cells_by_strategy.setdefault(failure.strategy, []).append(text)
    return [
        f"{reading.labels[strategy]} is cheap because it fails (its costs over those of its perfect player, at the "
        f"largest budget): {'; '.join(texts)}"
        for strategy, texts in cells_by_strategy.items()
    ]


def _least_ratio(point: Point, cost: str) -> float | None:
    """Of a cost over the cheapest perfect player's."""
    pairs = [
        pair for style in point.perfect_execution if (pair := point.beside(style, cost)) is not None and pair[1] > 0
    ]
    own, other = min(pairs, key=lambda pair: pair[1], default=(0.0, 0.0))
    return own / other if other else None


def endings(rows: Sequence[TableRow], reading: Reading) -> str:
    """How roots ended, and whether scripts were executed, as a Markdown table."""
    there = [status for status in ENDINGS if any(row.point.endings.get(status) for row in rows)]
    lines = [
        [*_place(row, reading), "" if row.executed is None else f"{row.executed.mean:.2f}"]
        + [str(row.point.endings.get(status, 0)) for status in there]
        for row in rows
    ]
    return markdown_table([*_heads(reading), "script executed", *(status.replace("_", " ") for status in there)], lines)


def floors(rows: Sequence[TableRow], reading: Reading) -> str:
    """What graders could not score by their rule, as a Markdown table; empty if there is nothing."""
    lines = [
        [*_place(row, reading), note, str(count)] for row in rows for note, count in sorted(row.point.notes.items())
    ]
    return markdown_table([*_heads(reading), "grader's note", "answers"], lines) if lines else ""


def scores(rows: Sequence[TableRow], reading: Reading) -> str:
    """What was measured beside accuracy, with what it means, as a Markdown table; empty if there is nothing."""
    rows = [row for row in rows if row.scores]
    names = [name for name in SCORES if any(name in row.scores for row in rows)]
    lines = [[*_place(row, reading), *(str(row.scores.get(name, "")) for name in names)] for row in rows]
    meanings = " ".join(text for name, text in MEANINGS.items() if name in names)
    heads = [*_heads(reading), *(name.replace("_", " ").replace("f1", "F1") for name in names)]
    return f"{meanings}\n\n{markdown_table(heads, lines)}" if lines else ""


def _heads(reading: Reading) -> list[str]:
    return ["family", "size", cost_name(reading.swept) + " at most", "strategy"]


def _place(row: TableRow, reading: Reading) -> list[str]:
    budget = "its limits" if row.point.budget is None else str(row.point.budget)
    return [row.curves.family, _size(row.curves), budget, reading.labels[row.strategy]]


def _size(curves: Curves) -> str:
    return curves.size + (" (out of distribution)" if curves.shift == "out" else "")


def write_results(rows: Sequence[TableRow], reading: Reading, path: Path) -> None:
    """Write every row as a CSV file, with means and both ends of every interval.

    Wall-clock time has no interval, since it is measured by batch. What a row does not have is left empty: costs where
    no prompt fitted, scores that say nothing of the cell, a script. `floors` counts the answers that the grader gave a
    floor, `ended_*` how roots ended. `perfect_execution_*` are means of the perfect player over
    `perfect_execution_instances`; a strategy with several styles has those of the others under
    `perfect_execution_STYLE_*`.
    """
    further = list(dict.fromkeys(style for row in rows for style in [*row.point.perfect_execution][1:]))
    heads = ["family", "size", "shift", "budget", "strategy", "instances"]
    heads += interval_heads(["accuracy", *reading.costs])
    heads += [WALL, "floors", *(f"ended_{status}" for status in ENDINGS)]
    heads += interval_heads(["script_executed", *SCORES])
    heads += ["perfect_execution_style", "perfect_execution_instances"]
    heads += [f"perfect_execution_{cost}" for cost in reading.costs]
    heads += [f"perfect_execution_{style}_{cost}" for style in further for cost in reading.costs]
    lines: list[list[object]] = []
    for row in rows:
        curves = row.curves
        fields: list[object] = [curves.family, curves.size, curves.shift, row.point.budget]
        fields += [reading.labels[row.strategy], len(curves.task_ids)]
        fields += interval_fields([row.accuracy, *(row.costs.get(cost) for cost in reading.costs)])
        fields += [interval_fields([row.costs.get(WALL)])[0], sum(row.point.notes.values())]
        fields += [row.point.endings.get(status, 0) for status in ENDINGS]
        fields += interval_fields([row.executed, *(row.scores.get(name) for name in SCORES)])
        fields += _perfect_execution_columns(row.point, reading.costs, further)
        lines.append(fields)
    write_csv(path, heads, lines)


def _perfect_execution_columns(point: Point, costs: Sequence[str], further: Sequence[Style]) -> list[str]:
    def means(style: Style) -> list[str]:
        found = point.perfect_execution[style].costs if style in point.perfect_execution else {}
        return [f"{np.nanmean(found[cost]):.6g}" if cost in found else "" for cost in costs]

    if not point.perfect_execution:
        return [""] * (2 + len(costs) * (1 + len(further)))
    first = next(iter(point.perfect_execution))
    others = [means(style) if style is not first else [""] * len(costs) for style in further]
    return [first, str(point.perfect_execution[first].instances), *means(first), *chain.from_iterable(others)]


# Words


def summary(found: Sequence[PairedComparison], reading: Reading) -> str:
    """The verdicts at equal cost as a Markdown table, with the mean gap in accuracy over the range of costs."""
    heads = ["family", "size", "strategies", *map(cost_name, reading.compared)]
    lines = []
    for item in found:
        verdicts = [f"{item.over[cost].average.signed}, {item.over[cost].verdict}" for cost in reading.compared]
        lines.append([item.curves.family, _size(item.curves), _pair(item, reading), *verdicts])
    return markdown_table(heads, lines)


def _pair(item: PairedComparison, reading: Reading) -> str:
    return f"{reading.labels[item.subject]} against {reading.labels[item.strategy]}"


def statements(found: Sequence[PairedComparison], reading: Reading) -> str:
    """Who wins on which cost where, with what confidence."""
    blocks = []
    for item in found:
        first, second = reading.labels[item.subject], reading.labels[item.strategy]
        lines = [sentence(comparison, first, second) for comparison in item.over.values()]
        lines += [f"{at_most(pair.budget)}, {matched(pair, first, second)}" for pair in item.at]
        equal = at_equal_accuracy(item.at[-1], first, second, reading.min_difference)
        lines.append(f"{at_most(item.at[-1].budget)}, {equal}")
        heading = f"**{item.curves.name}, {_pair(item, reading)}**"
        blocks.append(f"{heading}\n\n" + "".join(f"- {line}\n" for line in lines))
    return "\n".join(blocks)


def at_equal_accuracies(found: Sequence[PairedComparison], reading: Reading) -> str:
    """The ratios of costs where accuracies are equal, as a Markdown table."""
    heads = ["family", "size", "strategies", "accuracies", *map(cost_name, reading.compared)]
    lines = []
    for item in found:
        pair = item.at[-1]
        equal = pair.equally_accurate(reading.min_difference)
        said = "{:.2f} and {:.2f}".format(*pair.accuracies) if equal else not_comparable(pair, reading.min_difference)
        ratios = [times(pair.ratios[cost]) if equal and cost in pair.ratios else "–" for cost in reading.compared]
        lines.append([item.curves.family, _size(item.curves), _pair(item, reading), said, *ratios])
    return markdown_table(heads, lines)


def write_equal_accuracy(found: Sequence[PairedComparison], reading: Reading, path: Path) -> None:
    """Write the same as a CSV file: accuracies, the interval of their gap, ratios where they are comparable."""
    heads = ["family", "size", "shift", "budget", "strategy", "against", "accuracy", "accuracy_against", "comparable"]
    heads += interval_heads(["accuracy_gap", *(f"{cost}_ratio" for cost in reading.compared)])
    lines: list[list[object]] = []
    for item in found:
        curves, pair = item.curves, item.at[-1]
        is_equal = pair.equally_accurate(reading.min_difference)
        ratios = [pair.ratios.get(cost) if is_equal else None for cost in reading.compared]
        fields: list[object] = [curves.family, curves.size, curves.shift, pair.budget]
        fields += [reading.labels[item.subject], reading.labels[item.strategy]]
        fields += [*(f"{accuracy:.6g}" for accuracy in pair.accuracies), int(is_equal)]
        fields += interval_fields([pair.gap, *ratios])
        lines.append(fields)
    write_csv(path, heads, lines)


def find_weak_baselines(rows: Sequence[TableRow], reading: Reading) -> list[TableRow]:
    """Return the baselines that do not solve the smallest size of a family, each at its best budget.

    A choice that was forced on a policy is no baseline.
    """
    smallest: dict[str, str] = {}
    for row in rows:
        smallest.setdefault(row.curves.family, row.curves.size)
    best: dict[tuple[str, str], TableRow] = {}
    for row in rows:
        is_baseline = row.strategy in reading.baselines and row.strategy not in reading.aside
        if is_baseline and row.curves.size == smallest[row.curves.family]:
            key = row.curves.family, row.strategy
            best[key] = max(best.get(key, row), row, key=lambda row: row.accuracy.mean)
    return [row for row in best.values() if row.accuracy.mean < SOLVED]


def weak_baseline_lines(rows: Sequence[TableRow], reading: Reading) -> list[str]:
    """Describe each baseline of `find_weak_baselines` in one line."""
    return [
        f"{reading.labels[row.strategy]} does not solve the smallest {row.curves.family} ({row.accuracy}, below "
        f"{SOLVED}): no fair baseline there, whatever the gap, and its low cost is no merit"
        for row in find_weak_baselines(rows, reading)
    ]


def unbegun(cells: Sequence[Curves], reading: Reading) -> list[str]:
    """Strategies that no budget lets begin on a cell: nothing was measured of them but that."""
    return [
        f"no prompt of {reading.labels[strategy]} fits on {curves.name}, so it answered nothing; raise budgets, or "
        "limits.total_tokens and limits.context_tokens"
        for curves in cells
        for strategy, points in curves.strategies.items()
        if all(set(point.endings) == {Status.PROMPT_TOO_LONG} for point in points)
    ]


_LINES = {  # one that is ahead at some costs and behind at others is counted in both
    "ahead at some cost": (Verdict.AHEAD, Verdict.BOTH),
    "behind at some cost": (Verdict.BEHIND, Verdict.BOTH),
    "undecided": (Verdict.NO_DIFFERENCE, Verdict.TOO_FEW, Verdict.NO_COST),
}


def verdict(found: Sequence[PairedComparison], reading: Reading) -> str:
    """Five lines: what the subject wins and loses against, cost by cost, in comparisons of a cell and a strategy, and
    what it spends over those that are as accurate."""
    firsts = dict.fromkeys(reading.labels[item.subject] for item in found)
    others = dict.fromkeys(reading.labels[item.strategy] for item in found)
    cells = dict.fromkeys(item.curves.name for item in found)
    lines = [
        f"{', '.join(firsts)} against {', '.join(others)}, at equal cost, on {len(cells)} cells: {len(found)} "
        "comparisons"
    ]
    counts = {cost: Counter(item.over[cost].verdict for item in found) for cost in reading.compared}
    for words, kinds in _LINES.items():
        numbers = [f"{cost_name(cost)} {sum(counts[cost][kind] for kind in kinds)}" for cost in reading.compared]
        lines.append(f"  {words}: {', '.join(numbers)}")
    pairs = [item.at[-1] for item in found if item.at[-1].equally_accurate(reading.min_difference)]
    ratios = {cost: [pair.ratios[cost].mean for pair in pairs if cost in pair.ratios] for cost in reading.compared}
    said = ", ".join(f"{cost_name(cost)} {_range(values)}" for cost, values in ratios.items() if values)
    lines.append(f"  at equal accuracy, in {len(pairs)} at the largest budget: {said or 'no cost can be compared'}")
    return "\n".join(lines)


def _range(ratios: Sequence[float]) -> str:
    low, high = times(min(ratios)), times(max(ratios))
    return low if low == high else f"{low} to {high}"


def overview(rows: Sequence[TableRow], reading: Reading, variants: Mapping[str, str | None] | None = None) -> str:
    """One line per family and strategy, of all sizes together at the largest budget: the most accurate first, of
    equally accurate ones the one that spends less.

    Args:
        rows: of families, with all their sizes together.
        reading: how they are read.
        variants: strategies that get a line, each with the one that it was before RL, whose accuracy stands in the
            line; `None`: all of them get one.
    """
    lines = []
    for family in dict.fromkeys(row.curves.family for row in rows):
        rows_of_family = [row for row in rows if row.curves.family == family]
        largest = rows_of_family[-1].point.order
        last = {row.strategy: row for row in rows_of_family if row.point.order == largest}
        lines += [
            (row, last.get((variants or {}).get(row.strategy) or ""))
            for row in sorted(last.values(), key=partial(_rank, costs=reading.compared))
            if variants is None or row.strategy in variants
        ]
    trained = any(before for _, before in lines)
    heads = ["family", "strategy", "accuracy", *(["before RL"] if trained else [])]
    heads += [cost_name(cost).removesuffix(" tokens") for cost in reading.compared]
    cells_of = [
        [row.curves.family, reading.labels[row.strategy], str(row.accuracy)]
        + ([f"{before.accuracy.mean:.2f}" if before else "–"] if trained else [])
        + [_mean(row.costs.get(cost, MISSING), 1) for cost in reading.compared]
        for row, before in lines
    ]
    widths = [max(len(line[i]) for line in [heads, *cells_of]) for i in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [heads, *cells_of]
    )


def _rank(row: TableRow, costs: Sequence[str]) -> tuple[float, float]:
    """Lower is better."""
    return -row.accuracy.mean, row.costs.get(costs[0], MISSING).mean if costs else 0.0


# Files


def write_report(
    folder: Path,
    cells: Sequence[Curves],
    reading: Reading,
    head: str,
    notes: Sequence[str] = (),
    plots: Sequence[str] | None = None,
    decisions: Sequence[Decided] = (),
    verdict_of: Callable[[Sequence[PairedComparison], Reading], str] = verdict,
    variants: Mapping[str, str | None] | None = None,
) -> tuple[str, str]:
    """Write table.md, results.csv, equal_accuracy.csv and plots into the folder.

    Args:
        folder: where.
        cells: what was measured.
        reading: how it is read.
        head: says what was played.
        notes: more to say, a bullet each.
        plots: costs to draw accuracy against; `None`: those that are compared, and wall-clock.
        decisions: of policies whose choices were forced as well.
        verdict_of: says the verdict of all comparisons.
        variants: see `overview`.

    Returns:
        What a terminal shows, what must be known first, a verdict of five lines and one line per family and strategy;
        and the text of table.md.
    """
    rows = [row for curves in cells for row in rows_of(curves, reading.resampler(curves))]
    family_rows = [row for curves in by_family(cells) for row in rows_of(curves, reading.resampler(curves))]
    seeds = max(len(curves.seeds) for curves in cells)
    found, floored = comparisons(cells, reading), floors(rows, reading)
    head += "" if floored else " No answer got a floor from its grader."
    warnings = [*unbegun(cells, reading), *weak_baseline_lines(rows, reading), *cheap_failure_lines(cells, reading)]
    said = verdict_of(found, reading)
    parts = [f"{head} {reading.intervals(seeds)}", "\n".join(f"- {line}" for line in (*warnings, *notes))]
    parts += ["## Verdict", f"```text\n{said}\n```"] if found else []
    parts += ["## Accuracy and costs", markdown(rows, reading)]
    beside = perfect_execution(rows, reading)
    parts += ["## Costs of perfect execution", PERFECT_EXECUTION, beside] if beside else []
    parts += ["## Endings", ENDED, endings(rows, reading)]
    parts += ["## When it delegates", decision_section(decisions)] if decisions else []
    scored = scores(rows, reading)
    parts += ["## Partial credit and support", scored] if scored else []
    parts += ["## Floors", FLOORS, floored] if floored else []
    if found:
        parts += ["## At equal cost", EQUAL_COST, summary(found, reading)]
        equal = EQUAL_ACCURACY.format(least=reading.min_difference)
        parts += ["## At equal accuracy", equal, at_equal_accuracies(found, reading)]
        parts += ["## In words", statements(found, reading)]
        write_equal_accuracy(found, reading, folder / "equal_accuracy.csv")
    text = "\n\n".join(part.strip() for part in parts if part) + "\n"
    write_text(folder / "table.md", text)
    write_results(rows, reading, folder / "results.csv")
    for cost in (*reading.compared, WALL) if plots is None else plots:
        frontier_figure(rows, family_rows, reading.labels, cost, [folder / plot_name(cost)])
    shown = [
        *(f"warning: {line}" for line in warnings),
        *([said] if found else []),
        overview(family_rows, reading, variants),
    ]
    return "\n".join(shown), text


def plot_name(cost: str) -> str:
    return f"accuracy_vs_{cost}.png"


def write_page(page: Path, folder: Path, title: str, command: str, text: str, costs: Sequence[str]) -> None:
    """A page of documentation: the command, the plots beside the page, and what table.md says."""
    page.parent.mkdir(parents=True, exist_ok=True)
    pictures = []
    for cost in (*costs, WALL):
        picture = page.with_name(f"{page.stem}_{cost}.png")
        with atomic_write(picture) as partial:
            shutil.copyfile(folder / plot_name(cost), partial)
        pictures.append(f"![Accuracy against {cost_name(cost)}]({picture.name})")
    block = f"```bash\n{command}\n```"
    write_text(page, "\n\n".join([f"# {title}", "This page is written by", block, *pictures, text]))
