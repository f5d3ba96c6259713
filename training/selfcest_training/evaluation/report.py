"""A study's results as a table, a CSV, plots, sentences, and a page of documentation."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfcest_training.evaluation.frontier import Comparison, Match, compare_frontiers, match
from selfcest_training.evaluation.results import COSTS, SCORES, TOKEN_COSTS
from selfcest_training.evaluation.statistics import Estimate, Resampler
from selfcest_training.evaluation.table import Curves, Row, rows_of
from selfcest_training.evaluation.words import cost_name, matched, sentence

EQUAL_COST = (
    "A strategy's frontier is the best accuracy that mixing its budgets reaches at a mean cost, no budget and no "
    "answer among them. Numbers are the mean gap between two frontiers over the range of costs, with its interval; words "
    "say where a band around the whole gap excludes 0."
)

FLOORS = (
    "Answers whose score is a floor and not what the grader's rule gives, by its reason, of all instances and seeds."
)

MEANINGS = {  # of scores, by the first name of each kind
    "score": "The score is what the grader gives, partial credit included.",
    "support_precision": (
        "Support compares the documents that a strategy looked at with those that the question needs; of several "
        "samples only the one whose answer counts."
    ),
}


@dataclass(frozen=True)
class Reading:
    """How results are read.

    Attributes:
        subject: the strategy that the others are compared with.
        labels: names of strategies in tables.
        swept: the limit that a budget is.
        crossed, resamples, confidence: of the bootstrap, see `Resampler`.
    """

    subject: str
    labels: Mapping[str, str]
    swept: str
    crossed: bool
    resamples: int
    confidence: float

    def resampler(self, curves: Curves) -> Resampler:
        return curves.resampler(crossed=self.crossed, resamples=self.resamples, confidence=self.confidence)

    def intervals(self, seeds: int) -> str:
        """What the intervals are over, as a sentence."""
        over = f"instances and over {seeds} seeds of the weights" if self.crossed and seeds > 1 else "instances"
        alone = "; the weights are those of one seed" if self.crossed and seeds == 1 else ""
        return (
            f"Intervals are {self.confidence:.0%} intervals of a paired bootstrap over {over}{alone}. Those between "
            "frontiers hold for a whole range of costs at once; every other one is for itself, so of many some exclude "
            "the truth."
        )


def table_rows(cells: Sequence[Curves], reading: Reading) -> list[Row]:
    return [row for curves in cells for row in rows_of(curves, reading.resampler(curves))]


def markdown(rows: Sequence[Row], reading: Reading) -> str:
    """The table as Markdown, one line per cell, budget and strategy; costs are means per instance."""
    heads = ["family", "size", cost_name(reading.swept) + " at most", "strategy", "accuracy"]
    heads += ["total tokens", "generated", "critical path", "peak context", "wall-clock s"]
    lines = []
    for row in rows:
        costs = [f"{row.costs[cost].mean:.1f}" for cost in TOKEN_COSTS] + [f"{row.costs['wall_seconds'].mean:.3f}"]
        lines.append([row.family, _size(row), str(row.budget), reading.labels[row.strategy], str(row.accuracy), *costs])
    return _table(heads, lines)


def floors(rows: Sequence[Row], reading: Reading) -> str:
    """What graders could not score by their rule, as a Markdown table; empty if there is nothing."""
    heads = ["family", "size", cost_name(reading.swept) + " at most", "strategy", "grader's note", "answers"]
    lines = [
        [row.family, row.size, str(row.budget), reading.labels[row.strategy], note, str(count)]
        for row in rows
        for note, count in sorted(row.notes.items())
    ]
    return _table(heads, lines) if lines else ""


def scores(rows: Sequence[Row], reading: Reading) -> str:
    """What was measured beside accuracy, with what it means, as a Markdown table; empty if there is nothing."""
    rows = [row for row in rows if row.scores]
    names = [name for name in SCORES if any(name in row.scores for row in rows)]
    heads = ["family", "size", cost_name(reading.swept) + " at most", "strategy"]
    heads += [name.replace("_", " ").replace("f1", "F1") for name in names]
    lines = [
        [row.family, _size(row), str(row.budget), reading.labels[row.strategy]]
        + [str(row.scores.get(name, "")) for name in names]
        for row in rows
    ]
    meanings = " ".join(text for name, text in MEANINGS.items() if name in names)
    return f"{meanings}\n\n{_table(heads, lines)}" if lines else ""


def _size(cell: Row | Curves) -> str:
    return cell.size + (" (out of distribution)" if cell.shift == "out" else "")


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *lines))


@dataclass(frozen=True)
class Against:
    """The subject against another strategy on one cell: over each cost in tokens, and at each budget."""

    curves: Curves
    strategy: str
    over: Mapping[str, Comparison]
    at: Sequence[Match]


def comparisons(cells: Sequence[Curves], reading: Reading) -> list[Against]:
    """The subject against every other strategy, cell by cell. Wall-clock, measured once and by batch, is left out."""
    found = []
    for curves in cells:
        own, resampler = curves.strategies.get(reading.subject), reading.resampler(curves)
        for strategy, points in curves.strategies.items():
            if own is not None and strategy != reading.subject:
                over = {cost: compare_frontiers(own, points, cost, resampler) for cost in TOKEN_COSTS}
                at = [match(left, right, resampler) for left, right in zip(own, points, strict=True)]
                found.append(Against(curves, strategy, over, at))
    return found


def summary(found: Sequence[Against], reading: Reading) -> str:
    """The verdicts at equal cost as a Markdown table, with the mean gap in accuracy over the range of costs."""
    heads = ["family", "size", f"{reading.labels[reading.subject]} against", *map(cost_name, TOKEN_COSTS)]
    lines = []
    for item in found:
        verdicts = [f"{item.over[cost].average.signed}, {item.over[cost].verdict}" for cost in TOKEN_COSTS]
        lines.append([item.curves.family, _size(item.curves), reading.labels[item.strategy], *verdicts])
    return _table(heads, lines)


def statements(found: Sequence[Against], reading: Reading) -> str:
    """Who wins on which cost where, with what confidence."""
    blocks, first = [], reading.labels[reading.subject]
    for item in found:
        second = reading.labels[item.strategy]
        lines = [sentence(comparison, first, second) for comparison in item.over.values()]
        lines += [f"at most {pair.budget}, {matched(pair, first, second)}" for pair in item.at]
        heading = f"**{item.curves.name}, {first} against {second}**"
        blocks.append(f"{heading}\n\n" + "".join(f"- {line}\n" for line in lines))
    return "\n".join(blocks)


def write_csv(rows: Sequence[Row], reading: Reading, path: Path) -> None:
    """Every row with means and both ends of every interval; wall-clock without, since it is measured by batch.

    `floors` counts the answers that the grader gave a floor. A score that says nothing of a cell is left empty.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        names = ["accuracy", *TOKEN_COSTS]
        writer = csv.writer(file)
        writer.writerow(
            ["family", "size", "shift", "budget", "strategy", "instances"]
            + [column for name in names for column in (name, f"{name}_low", f"{name}_high")]
            + ["wall_seconds", "floors"]
            + [column for name in SCORES for column in (name, f"{name}_low", f"{name}_high")]
        )
        for row in rows:
            estimates = [row.accuracy, *(row.costs[cost] for cost in TOKEN_COSTS)]
            writer.writerow(
                [row.family, row.size, row.shift, row.budget, reading.labels[row.strategy], row.instances]
                + [cell for estimate in estimates for cell in _cells(estimate)]
                + [f"{row.costs['wall_seconds'].mean:.6g}", sum(row.notes.values())]
                + [cell for name in SCORES for cell in _cells(row.scores.get(name))]
            )


def _cells(estimate: Estimate | None) -> list[str]:
    return [""] * 3 if estimate is None else [f"{value:.6g}" for value in (estimate.mean, estimate.low, estimate.high)]


def plot(cells: Sequence[Curves], reading: Reading, cost: str, path: Path) -> None:
    """Accuracy against one cost: a panel per cell, a line per strategy, a point per budget, oracles dashed."""
    from matplotlib.figure import Figure  # slow to import, and only plots need it

    columns = min(3, len(cells))
    rows = -(-len(cells) // columns)
    figure = Figure(figsize=(4.8 * columns, 3.8 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    strategies = list(dict.fromkeys(strategy for curves in cells for strategy in curves.strategies))
    for axis, curves in zip(axes, cells, strict=False):
        found = rows_of(curves, reading.resampler(curves))
        for strategy in curves.strategies:
            points = [(row.costs[cost], row.accuracy) for row in found if row.strategy == strategy]
            low_high = [[a.mean - a.low for _, a in points], [a.high - a.mean for _, a in points]]
            axis.errorbar(
                [c.mean for c, _ in points],
                [a.mean for _, a in points],
                yerr=[[max(0.0, end) for end in ends] for ends in low_high],
                marker="o",
                markersize=3,
                capsize=2,
                linewidth=1,
                linestyle="--" if reading.labels[strategy] != strategy else "-",
                color=f"C{strategies.index(strategy) % 10}",
                label=reading.labels[strategy],
            )
        axis.set(title=curves.name, xlabel=cost_name(cost), ylim=(-0.03, 1.05))
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.3)
    for axis in axes[len(cells) :]:
        axis.set_visible(False)
    axes[0].set_ylabel("accuracy")
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), fontsize=7, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=130)


def write_report(folder: Path, cells: Sequence[Curves], reading: Reading, head: str) -> str:
    """Write table.md, results.csv and a plot per cost into the folder. Returns the text of table.md."""
    rows = table_rows(cells, reading)
    seeds = max(len(curves.seeds) for curves in cells)
    found, floored = comparisons(cells, reading), floors(rows, reading)
    head += "" if floored else " No answer got a floor from its grader."
    parts = [f"{head} {reading.intervals(seeds)}", "## Accuracy and costs", markdown(rows, reading)]
    scored = scores(rows, reading)
    parts += ["## Partial credit and support", scored] if scored else []
    parts += ["## Floors", FLOORS, floored] if floored else []
    if found:
        parts += ["## At equal cost", EQUAL_COST, summary(found, reading), "## In words", statements(found, reading)]
    text = "\n\n".join(part.strip() for part in parts) + "\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    write_csv(rows, reading, folder / "results.csv")
    for cost in COSTS:
        plot(cells, reading, cost, folder / plot_name(cost))
    return text


def plot_name(cost: str) -> str:
    return f"accuracy_vs_{cost}.png"


def write_page(page: Path, folder: Path, title: str, command: str, text: str) -> None:
    """A page of documentation: the command, the plots beside the page, and what table.md says."""
    page.parent.mkdir(parents=True, exist_ok=True)
    pictures = []
    for cost in COSTS:
        picture = page.with_name(f"{page.stem}_{cost}.png")
        picture.write_bytes((folder / plot_name(cost)).read_bytes())
        pictures.append(f"![Accuracy against {cost_name(cost)}]({picture.name})")
    block = f"```bash\n{command}\n```"
    page.write_text("\n\n".join([f"# {title}", "This page is written by", block, *pictures, text]), encoding="utf-8")
