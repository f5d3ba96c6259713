"""The report of a study or a run: table.md, CSV files, plots, a page of documentation, and the lines of a terminal."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from selfcest_env.tasks import Style
from selfcest_eval.play.batch_timing import AT_ONCE, REQUESTS, StudyTiming, read_study_timings
from selfcest_eval.play.costs import WALL, cost_name
from selfcest_eval.play.results import ENDINGS, SCORES
from selfcest_eval.report import words
from selfcest_eval.report.figures import draw_frontiers
from selfcest_eval.report.findings import PairedComparison, ReportRows, analyze, compare_cells
from selfcest_eval.report.settings import AnalysisSettings, describe_setup
from selfcest_eval.report.sources import Source
from selfcest_eval.report.tables import format_markdown_table, interval_fields, interval_heads, write_csv
from selfcest_eval.report.verdict import describe_headline, describe_run, describe_study, describe_warnings
from selfcest_eval.stats.decision import average_outcomes
from selfcest_eval.stats.decision_table import DECISIONS_MEANING, FamilyDecisions
from selfcest_eval.stats.frontier import PerfectExecution, Point
from selfcest_eval.stats.statistics import MISSING, Estimate
from selfcest_eval.stats.table import TableRow
from selfcest_training.files import atomic_write, write_text

EQUAL_COST = (
    "A strategy's frontier is its best accuracy at each mean cost, if every instance may be played at another budget "
    "or skipped at no cost. Numbers are the mean gap between two frontiers over the range of costs, with its interval. "
    "The words say whether a simultaneous band around the whole gap excludes 0."
)

EQUAL_ACCURACY = (
    "Mean costs of the first strategy over those of the second, with intervals, at the largest budget, where the "
    "interval of the difference of their accuracies lies within {min_difference:g} of 0. Elsewhere costs are not "
    "comparable: a strategy that fails may be cheap."
)

PERFECT_EXECUTION = (
    "Costs, and in brackets those of the strategy's perfect player. The expert of the tasks plays the same instances "
    "under the same limits, in the policy's own tokens, and is always right. Both are means over the instances that "
    "both could play. The column *perfect execution* has the number that the expert could play, and the number for "
    "which limits had to be lifted. *No expert*: the tasks have none for this style. Strategies without a style are "
    "left out."
)

UNSCORED = "Counts of answers that the grader could not score and gave the lowest score, by its reason, over all seeds."

ENDED = (
    "Counts of how the root ended, of all instances and seeds, in the episode whose answer counts. *Script executed* "
    "is the share of instances on which the script of the strategy was executed; on the others only the policy played."
)

# The explanation of each kind of score, by its first column.
SCORE_MEANINGS = {
    "score": "The score is that of the grader, with partial credit.",
    "support_precision": (
        "Support compares the documents that a strategy looked at with those that the question needs; of several "
        "samples only the one whose answer counts."
    ),
    "report_exact": (
        "Reports of single parts, by clones and of memories, are compared with those of the source's expert: the share "
        "that has the same words, and the F1 of words. Means are over the instances with a report."
    ),
}


# Tables


def format_accuracies(rows: Sequence[TableRow], settings: AnalysisSettings) -> str:
    """Return accuracies and costs, a line for each cell, budget and strategy; costs are means where a prompt fitted."""
    lines = []
    for row in rows:
        costs = [_format_mean(row.costs.get(cost, MISSING), digits=1) for cost in settings.costs]
        wall = _format_mean(row.costs.get(WALL, MISSING), digits=3)
        lines.append([*_list_key_columns(row, settings), str(row.accuracy), *costs, wall])
    return format_markdown_table(
        [*_list_key_heads(settings), "accuracy", *map(_format_cost_head, settings.costs), "wall-clock s"], lines
    )


def _format_cost_head(cost: str) -> str:
    return cost.removesuffix("_tokens").replace("_", " ")


def _format_mean(estimate: Estimate, digits: int) -> str:
    return "–" if math.isnan(estimate.mean) else _format_number(estimate.mean, digits)


def _format_number(value: float, digits: int = 1) -> str:
    """Return a number with three significant digits below 1, since the money of one instance is little."""
    if 0 < abs(value) < 1:
        return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}".rstrip("0")
    return f"{value:.{digits}f}"


def format_perfect_execution(rows: Sequence[TableRow], settings: AnalysisSettings) -> str:
    """Return costs beside those of perfect players; empty if no strategy has one."""
    lines = []
    for row in rows:
        for style, player in row.point.perfect_execution.items():
            fields = [*_list_key_columns(row, settings), str(row.accuracy), _describe_player(style, player, row)]
            for cost in settings.compared:
                pair = row.point.mean_costs(style, cost)
                fields.append("–" if pair is None else f"{_format_number(pair[0])} ({_format_number(pair[1])})")
            lines.append(fields)
    heads = [*_list_key_heads(settings), "accuracy", "perfect execution", *map(_format_cost_head, settings.compared)]
    return format_markdown_table(heads, lines) if lines else ""


def _describe_player(style: Style, player: PerfectExecution, row: TableRow) -> str:
    if not player.instances:
        return f"{style}: no expert"
    notes = []
    if player.instances < len(row.curves.task_ids):
        notes.append(f"{player.instances} of {len(row.curves.task_ids)}")
    for limits, count in sorted(player.lifted.items()):
        notes.append(f"{' and '.join(map(cost_name, limits))} lifted on {count}")
    return f"{style} ({'; '.join(notes)})" if notes else f"{style}"


def format_endings(rows: Sequence[TableRow], settings: AnalysisSettings) -> str:
    """Return how roots ended, and whether scripts were executed."""
    statuses = [status for status in ENDINGS if any(row.point.endings.get(status) for row in rows)]
    lines = []
    for row in rows:
        executed = "" if row.executed is None else f"{row.executed.mean:.2f}"
        counts = [str(row.point.endings.get(status, 0)) for status in statuses]
        lines.append([*_list_key_columns(row, settings), executed, *counts])
    heads = [*_list_key_heads(settings), "script executed", *(status.replace("_", " ") for status in statuses)]
    return format_markdown_table(heads, lines)


def format_decisions(item: FamilyDecisions) -> str:
    """Return the choices of a policy beside both forced ones, by size, and their worth by seed."""
    budget = "" if item.budget is None else f", at most {item.budget}"
    size_lines = []
    for size, played in item.sizes.items():
        columns = []
        for way in ("free", "always", "never"):
            mean = average_outcomes([getattr(choice, way) for choice in played])
            columns.append(f"{mean.delegated:.2f} / {mean.accuracy:.2f} / {mean.tokens:.0f} / {mean.reward:.2f}")
        size_lines.append([size, *columns])
    seed_lines = []
    for seed, judged in item.seeds.items():
        reward = judged.free.reward
        rewards = [f"{reward:.3f}", f"{reward - judged.always.reward:.3f}", f"{reward - judged.never.reward:.3f}"]
        threshold = "never" if math.isinf(judged.threshold) else f"{judged.threshold:.0f}"
        rates = ["–" if rate is None else f"{rate:.2f}" for rate in (judged.precision, judged.recall, judged.f1)]
        seed_lines.append([str(seed), *rewards, threshold, f"{judged.regret:.3f}", *rates])
    seed_heads = ["seed", "reward", "- always", "- never", "best threshold", "regret", "precision", "recall", "F1"]
    return (
        f"**{item.family}{budget}: {item.triple.free}.** Share delegated / accuracy / total tokens / reward.\n\n"
        f"{format_markdown_table(['size', 'by itself', 'always', 'never'], size_lines)}\n"
        f"{format_markdown_table(seed_heads, seed_lines)}"
    )


def format_unscored(rows: Sequence[TableRow], settings: AnalysisSettings) -> str:
    """Return the counts of answers that graders could not score; empty if there are none."""
    lines = []
    for row in rows:
        for note, count in sorted(row.point.notes.items()):
            lines.append([*_list_key_columns(row, settings), note, str(count)])
    return format_markdown_table([*_list_key_heads(settings), "grader's note", "answers"], lines) if lines else ""


def format_scores(rows: Sequence[TableRow], settings: AnalysisSettings) -> str:
    """Return the scores that were measured beside accuracy, with their meaning; empty if there are none."""
    rows = [row for row in rows if row.scores]
    names = [name for name in SCORES if any(name in row.scores for row in rows)]
    lines = [[*_list_key_columns(row, settings), *(str(row.scores.get(name, "")) for name in names)] for row in rows]
    meanings = " ".join(text for name, text in SCORE_MEANINGS.items() if name in names)
    heads = [*_list_key_heads(settings), *(name.replace("_", " ").replace("f1", "F1") for name in names)]
    return f"{meanings}\n\n{format_markdown_table(heads, lines)}" if lines else ""


def format_timings(timings: Sequence[StudyTiming], labels: Mapping[str, str]) -> str:
    """Return the seconds of one request beside those of each of many at once; empty without timings."""
    cells: dict[tuple[str, str, str, str], dict[int, str]] = {}
    for timing in timings:
        budget = "its limits" if timing.budget is None else str(timing.budget)
        place = timing.family, timing.size, budget, labels.get(timing.strategy, timing.strategy)
        middle, low, high = timing.per_request()
        cells.setdefault(place, {})[timing.requests] = f"{middle:.3g} [{low:.3g}, {high:.3g}]"
    if not cells:
        return ""
    lines = []
    for place, seconds in cells.items():
        lines.append([*place, *(seconds.get(requests, "") for requests in REQUESTS)])
    heads = ["family", "size", "budget", "strategy", "latency of one request"]
    heads.append(f"seconds per request, {AT_ONCE} at once")
    num_batches = len(timings[0].seconds)
    note = (
        f"Median, minimum and maximum of {num_batches} batches after a warm-up, in wall-clock seconds of this machine."
    )
    return f"{note}\n\n{format_markdown_table(heads, lines)}"


def _list_key_heads(settings: AnalysisSettings) -> list[str]:
    return ["family", "size", cost_name(settings.swept) + " at most", "strategy"]


def _list_key_columns(row: TableRow, settings: AnalysisSettings) -> list[str]:
    budget = "its limits" if row.point.budget is None else str(row.point.budget)
    return [row.curves.family, row.curves.size_name, budget, settings.labels[row.strategy]]


def write_results(rows: ReportRows, settings: AnalysisSettings, path: Path) -> None:
    """Write every row as a CSV file, with means and both ends of every interval.

    A `pooled` row is of a whole family, with all its sizes together. The folder of a run or a study has none of them.

    Wall-clock time has no interval, since it is measured by batch. A missing number is an empty field: a cost where no
    prompt fitted, a score that the cell does not have, or `script_executed` of a strategy without a script. `floors`
    counts the answers that the grader could not score, and `ended_*` how roots ended. `perfect_execution_*` are means
    of the perfect player over `perfect_execution_instances`. A strategy with several styles has the costs of the other
    styles under `perfect_execution_STYLE_*`.
    """
    # The first style of a strategy has the columns without a style in their names.
    other_styles: dict[Style, None] = {}
    for row, _ in rows.with_pooled:
        other_styles |= dict.fromkeys([*row.point.perfect_execution][1:])
    heads = ["family", "size", "shift", "pooled", "budget", "strategy", "instances", "seeds"]
    heads += interval_heads(["accuracy", *settings.costs])
    heads += [WALL, "floors", *(f"ended_{status}" for status in ENDINGS)]
    heads += interval_heads(["script_executed", *SCORES])
    heads += ["perfect_execution_style", "perfect_execution_instances"]
    heads += [f"perfect_execution_{cost}" for cost in settings.costs]
    for style in other_styles:
        heads += [f"perfect_execution_{style}_{cost}" for cost in settings.costs]
    lines: list[list[object]] = []
    for row, pooled in rows.with_pooled:
        curves = row.curves
        fields: list[object] = [curves.family, curves.size, curves.shift, pooled, row.point.budget]
        fields += [settings.labels[row.strategy], len(curves.task_ids), len(curves.seeds)]
        fields += interval_fields([row.accuracy, *(row.costs.get(cost) for cost in settings.costs)])
        fields += [interval_fields([row.costs.get(WALL)])[0], sum(row.point.notes.values())]
        fields += [row.point.endings.get(status, 0) for status in ENDINGS]
        fields += interval_fields([row.executed, *(row.scores.get(name) for name in SCORES)])
        first = next(iter(row.point.perfect_execution), None)
        fields += ["", ""] if first is None else [first, row.point.perfect_execution[first].instances]
        fields += _list_perfect_costs(row.point, first, settings.costs)
        for style in other_styles:
            fields += _list_perfect_costs(row.point, None if style is first else style, settings.costs)
        lines.append(fields)
    write_csv(path, heads, lines)


def _list_perfect_costs(point: Point, style: Style | None, costs: Sequence[str]) -> list[str]:
    """Return a field for each cost; all are empty where the point has no perfect player of this style."""
    player = point.perfect_execution.get(style) if style is not None else None
    values = {} if player is None else player.costs
    return [f"{np.nanmean(values[cost]):.6g}" if cost in values else "" for cost in costs]


# Comparisons


def format_equal_costs(comparisons: Sequence[PairedComparison], settings: AnalysisSettings) -> str:
    """Return the verdicts at equal cost, with the mean gap in accuracy over the range of costs."""
    heads = ["family", "size", "strategies", *map(cost_name, settings.compared)]
    lines = []
    for item in comparisons:
        verdicts = [f"{item.over[cost].average.signed}, {item.over[cost].verdict}" for cost in settings.compared]
        lines.append([item.curves.family, item.curves.size_name, _format_pair(item, settings), *verdicts])
    return format_markdown_table(heads, lines)


def _format_pair(item: PairedComparison, settings: AnalysisSettings) -> str:
    names = settings.names
    return f"{names[item.subject]} against {names[item.strategy]}"


def format_comparisons(comparisons: Sequence[PairedComparison], settings: AnalysisSettings) -> str:
    """Return all comparisons as sentences, with their confidence."""
    blocks = []
    for item in comparisons:
        heading = f"**{item.curves.name}, {_format_pair(item, settings)}**"
        lines = words.describe_comparison(item, settings.names, settings.min_difference)
        blocks.append(f"{heading}\n\n" + "".join(f"- {line}\n" for line in lines))
    return "\n".join(blocks)


def format_equal_accuracies(comparisons: Sequence[PairedComparison], settings: AnalysisSettings) -> str:
    """Return the ratios of costs where accuracies are equal."""
    heads = ["family", "size", "strategies", "accuracies", *map(cost_name, settings.compared)]
    lines = []
    for item in comparisons:
        pair = item.at[-1]
        if pair.equally_accurate(settings.min_difference):
            accuracies = f"{pair.accuracies[0]:.2f} and {pair.accuracies[1]:.2f}"
            ratios = [
                words.format_ratio(pair.ratios[cost]) if cost in pair.ratios else "–" for cost in settings.compared
            ]
        else:
            accuracies = words.explain_incomparable(pair, settings.min_difference)
            ratios = ["–"] * len(settings.compared)
        lines.append([item.curves.family, item.curves.size_name, _format_pair(item, settings), accuracies, *ratios])
    return format_markdown_table(heads, lines)


def write_equal_accuracy(comparisons: Sequence[PairedComparison], settings: AnalysisSettings, path: Path) -> None:
    """Write the comparisons at the largest budget as a CSV file; costs that are not comparable are empty fields."""
    heads = ["family", "size", "shift", "budget", "strategy", "against", "accuracy", "accuracy_against", "comparable"]
    heads += interval_heads(["accuracy_gap", *(f"{cost}_ratio" for cost in settings.compared)])
    lines: list[list[object]] = []
    for item in comparisons:
        curves = item.curves
        pair = item.at[-1]
        is_equal = pair.equally_accurate(settings.min_difference)
        ratios = [pair.ratios.get(cost) if is_equal else None for cost in settings.compared]
        fields: list[object] = [curves.family, curves.size, curves.shift, pair.budget]
        fields += [settings.labels[item.subject], settings.labels[item.strategy]]
        fields += [*(f"{accuracy:.6g}" for accuracy in pair.accuracies), int(is_equal)]
        fields += interval_fields([pair.gap, *ratios])
        lines.append(fields)
    write_csv(path, heads, lines)


def format_overview(
    rows: Sequence[TableRow], settings: AnalysisSettings, variants: Mapping[str, str | None] | None
) -> str:
    """Return a table for terminals: one line per family and strategy, of all sizes together at the largest budget.

    The most accurate strategy comes first, and of equally accurate ones the one that spends less.

    Args:
        rows: of families, with all their sizes together.
        settings: of the study.
        variants: strategies that get a line, each with the same variant before RL, whose accuracy stands in the line;
            `None`: all of them get one.
    """
    before_rl = variants or {}
    has_before = any(row.strategy in before_rl.values() for row in rows)
    heads = ["family", "strategy", "accuracy", *map(_format_cost_head, settings.compared)]
    if has_before:
        heads.insert(3, "before RL")
    lines = [heads]
    for family in dict.fromkeys(row.curves.family for row in rows):
        rows_of_family = [row for row in rows if row.curves.family == family]
        largest = rows_of_family[-1].point.order
        row_by_strategy = {row.strategy: row for row in rows_of_family if row.point.order == largest}
        for row in sorted(row_by_strategy.values(), key=lambda row: _get_sort_key(row, settings.compared)):
            if variants is not None and row.strategy not in variants:
                continue
            fields = [family, settings.labels[row.strategy], str(row.accuracy)]
            if has_before:
                before = row_by_strategy.get(before_rl.get(row.strategy) or "")
                fields.append("–" if before is None else f"{before.accuracy.mean:.2f}")
            costs = [_format_mean(row.costs.get(cost, MISSING), digits=1) for cost in settings.compared]
            lines.append([*fields, *costs])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[field.ljust(width) for field, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def _get_sort_key(row: TableRow, costs: Sequence[str]) -> tuple[float, float]:
    """Return the key by which rows are sorted."""
    return -row.accuracy.mean, row.costs.get(costs[0], MISSING).mean if costs else 0.0


# Files


def write_report(source: Source, notes: Sequence[str], plots: Sequence[str] | None = None) -> tuple[str, str]:
    """Write table.md, results.csv, equal_accuracy.csv and plots into the folder of a source with results.

    Args:
        source: a study or a run.
        notes: further lines of table.md, a bullet each.
        plots: costs to draw accuracy against; `None`: those that are compared, and wall-clock.

    Returns:
        The lines of a terminal (warnings, the verdict, and one line per family and strategy) and the text of table.md.
    """
    [folder] = source.folders
    settings = source.settings
    findings = analyze(source)
    rows = findings.rows
    comparisons = compare_cells(source.cells, settings)
    warnings = [*source.warnings, *describe_warnings(findings, settings)]
    if source.run is None:
        verdict = describe_study(comparisons, settings)
        variants = None
    else:
        verdict = describe_run(source, findings, comparisons)
        variants = {name: source.before.get(name) for name in source.final}
    if comparisons:
        verdict = "\n".join(filter(None, [describe_headline(comparisons, settings), verdict]))
    text = format_report(source, rows.of_cells, comparisons, verdict, [*warnings, *notes])
    write_text(folder / "table.md", text)
    write_results(ReportRows(rows.of_cells, ()), settings, folder / "results.csv")
    if comparisons:
        write_equal_accuracy(comparisons, settings, folder / "equal_accuracy.csv")
    else:  # an earlier report may have had some
        (folder / "equal_accuracy.csv").unlink(missing_ok=True)
    for cost in (*settings.compared, WALL) if plots is None else plots:
        draw_frontiers(rows, settings.labels, settings.aside, cost, [folder / plot_name(cost)])
    lines = [f"warning: {line}" for line in warnings]
    if comparisons:
        lines.append(verdict)
    lines.append(format_overview(rows.of_families, settings, variants))
    return "\n".join(lines), text


def format_report(
    source: Source,
    rows: Sequence[TableRow],
    comparisons: Sequence[PairedComparison],
    verdict: str,
    notes: Sequence[str],
) -> str:
    """Return the text of table.md. Sections without content are left out."""
    settings = source.settings
    unscored = format_unscored(rows, settings)
    head = describe_setup(source.study, source.cells, settings)
    if not unscored:
        head += " The graders could score every answer."
    num_seeds = max(len(curves.seeds) for curves in source.cells)
    parts = [f"{head} {settings.intervals(num_seeds)}", "\n".join(f"- {note}" for note in notes)]
    if comparisons:
        parts += ["## Verdict", f"```text\n{verdict}\n```"]
    parts += ["## Accuracy and costs", format_accuracies(rows, settings)]
    perfect_execution = format_perfect_execution(rows, settings)
    if perfect_execution:
        parts += ["## Costs of perfect execution", PERFECT_EXECUTION, perfect_execution]
    parts += ["## Endings", ENDED, format_endings(rows, settings)]
    if source.decisions:
        parts += ["## When it delegates", DECISIONS_MEANING, *map(format_decisions, source.decisions)]
    scores = format_scores(rows, settings)
    if scores:
        parts += ["## Partial credit and support", scores]
    timings = format_timings(read_study_timings(source.folders[0]), settings.labels)
    if timings:
        parts += ["## Latency and throughput", timings]
    if unscored:
        parts += ["## Answers that graders could not score", UNSCORED, unscored]
    if comparisons:
        parts += ["## At equal cost", EQUAL_COST, format_equal_costs(comparisons, settings)]
        equal = EQUAL_ACCURACY.format(min_difference=settings.min_difference)
        parts += ["## At equal accuracy", equal, format_equal_accuracies(comparisons, settings)]
        parts += ["## In words", format_comparisons(comparisons, settings)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def plot_name(cost: str) -> str:
    return f"accuracy_vs_{cost}.png"


def write_page(page: Path, folder: Path, title: str, command: str, text: str, costs: Sequence[str]) -> None:
    """Write a page of documentation: the command, the plots, which are copied beside it, and the text of table.md."""
    page.parent.mkdir(parents=True, exist_ok=True)
    pictures = []
    for cost in (*costs, WALL):
        picture = page.with_name(f"{page.stem}_{cost}.png")
        with atomic_write(picture) as partial:
            shutil.copyfile(folder / plot_name(cost), partial)
        pictures.append(f"![Accuracy against {cost_name(cost)}]({picture.name})")
    block = f"```bash\n{command}\n```"
    write_text(page, "\n\n".join([f"# {title}", "This page is written by", block, *pictures, text]))
