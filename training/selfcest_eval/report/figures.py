"""The figures of a report as files, PNG and SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from selfcest_env.palette import EDGE, LINE, MUTED, SERIES
from selfcest_eval.play.costs import cost_name
from selfcest_eval.report.findings import ReportRows
from selfcest_eval.report.learning import MetricCurve, get_metric_title
from selfcest_eval.stats.statistics import MISSING
from selfcest_eval.stats.table import TableRow
from selfcest_training.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# As many as colours, so that nothing is told by colour only.
MARKS = "os^Dv*"
_COLUMNS = 3
# Strategies that a panel shows in colour; more lines cannot be told apart.
MAX_COLOURED = 5
# Letters of a size or a title above which it needs more room.
LONG_SIZE = 7
LONG_TITLE = 44


def draw_learning_curves(curves: Sequence[MetricCurve], metrics: Sequence[str], paths: Sequence[Path]) -> None:
    """Draw each metric against steps in a separate panel.

    The mean over seeds is a line, its interval a band, and single seeds are thin lines.
    """
    figure, panels = _make_panels(len(metrics))
    variants = list(dict.fromkeys(curve.variant for curve in curves))
    shown = "mean of seeds, and interval" if any(len(curve.seeds) > 1 for curve in curves) else "one seed"
    for axis, metric in zip(panels, metrics, strict=True):
        for curve in curves:
            if curve.metric == metric:
                _draw_curve(axis, curve, _choose_colour(variants.index(curve.variant)))
        axis.set(title=get_metric_title(metric), xlabel="step", ylabel=shown)
    _save(figure, panels, paths)


def _choose_colour(index: int) -> str:
    return SERIES[index % len(SERIES)].light


def _draw_curve(axis: Axes, curve: MetricCurve, colour: str) -> None:
    steps = [curve_bin.step for curve_bin in curve.bins]
    estimates = [curve_bin.estimate for curve_bin in curve.bins]
    if len(curve.seeds) > 1:
        for values in zip(*(curve_bin.seeds for curve_bin in curve.bins), strict=True):
            axis.plot(steps, values, color=colour, linewidth=0.6, alpha=0.5)
    axis.plot(steps, [estimate.mean for estimate in estimates], color=colour, linewidth=1.8, label=curve.variant)
    # One seed has no interval.
    if not math.isnan(estimates[0].low):
        lows = [estimate.low for estimate in estimates]
        highs = [estimate.high for estimate in estimates]
        axis.fill_between(steps, lows, highs, color=colour, alpha=0.15, linewidth=0)


def draw_frontiers(
    table: ReportRows, labels: Mapping[str, str], aside: Container[str], cost: str, paths: Sequence[Path]
) -> None:
    """Draw accuracy against one cost, a panel for each family and a line for each strategy; oracles are dashed.

    The title of a panel has its most accurate strategy that is no oracle and no forced choice. The MAX_COLOURED most
    accurate strategies have colours, the others are grey. A line goes over the budgets of the whole family. Where there
    is one budget, points are sizes, and a line joins them if their costs rise.

    Args:
        table: rows of cells and of families.
        labels: names of strategies in tables.
        aside: the forced choices.
        cost: name of the cost.
        paths: of the files.
    """
    families = list(dict.fromkeys(row.curves.family for row in table.of_cells))
    strategies = list(dict.fromkeys(row.strategy for row in table.of_cells))
    figure, panels = _make_panels(len(families))
    coloured = _rank_by_accuracy(table.of_cells, aside)[:MAX_COLOURED]
    for axis, family in zip(panels, families, strict=True):
        rows = [row for row in table.of_families if row.curves.family == family]
        if len({row.point.budget for row in rows}) == 1:
            rows = [row for row in table.of_cells if row.curves.family == family]
        for index, strategy in enumerate(strategies):
            points = [
                row for row in rows if row.strategy == strategy and math.isfinite(row.costs.get(cost, MISSING).mean)
            ]
            if points:
                is_oracle = labels[strategy] != strategy
                colour = _choose_colour(coloured.index(strategy)) if strategy in coloured else EDGE.light
                mark = MARKS[index % len(MARKS)]
                _draw_points(axis, points, cost, colour, mark, label=labels[strategy], dashed=is_oracle)
        best = max(rows, key=lambda row: _rank_row(row, labels, aside))
        title = f"{family}: best {best.accuracy.mean:.2f}, {labels[best.strategy]}"
        axis.set(title=title, xlabel=cost_name(cost), ylabel="accuracy", ylim=(-0.03, 1.05))
    _save(figure, panels, paths)


def _rank_by_accuracy(rows: Sequence[TableRow], aside: Container[str]) -> list[str]:
    """Return the strategies by their highest accuracy in any point; forced choices come last."""
    highest: dict[str, tuple[bool, float]] = {}
    for row in rows:
        rank = (row.strategy not in aside, row.accuracy.mean)
        highest[row.strategy] = max(highest.get(row.strategy, rank), rank)
    return sorted(highest, key=highest.__getitem__, reverse=True)


def _rank_row(row: TableRow, labels: Mapping[str, str], aside: Container[str]) -> tuple[bool, float]:
    # An oracle has the highest accuracy by design, and a forced choice is no strategy of its own.
    is_compared = labels[row.strategy] == row.strategy and row.strategy not in aside
    return is_compared, row.accuracy.mean


def _draw_points(
    axis: Axes, rows: Sequence[TableRow], cost: str, colour: str, mark: str, *, label: str, dashed: bool
) -> None:
    below: list[float] = []
    above: list[float] = []
    for row in rows:
        # A t interval of two seeds may exceed 0 and 1, and a single seed has none.
        for end, lengths in ((row.accuracy.low, below), (row.accuracy.high, above)):
            bounded = min(max(end, 0.0), 1.0) if math.isfinite(end) else row.accuracy.mean
            lengths.append(abs(row.accuracy.mean - bounded))
    costs = [row.costs[cost].mean for row in rows]
    axis.errorbar(
        costs,
        [row.accuracy.mean for row in rows],
        yerr=[below, above],
        color=colour,
        marker=mark,
        markersize=6,
        capsize=3,
        linewidth=1.2,
        linestyle="none" if costs != sorted(costs) else "--" if dashed else "-",
        label=label,
    )


def draw_delegation(shares: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> None:
    """Draw the share of instances delegated by size, a panel for each family; dashed before RL.

    Args:
        shares: rows of `page.make_delegation_rows`.
        paths: of the files.
    """
    families = list(dict.fromkeys(row["family"] for row in shares))
    strategies = list(dict.fromkeys(row["strategy"] for row in shares))
    figure, panels = _make_panels(len(families))
    for axis, family in zip(panels, families, strict=True):
        for index, strategy in enumerate(strategies):
            rows = [row for row in shares if (row["family"], row["strategy"]) == (family, strategy)]
            if rows:
                axis.plot(
                    [row["size"] for row in rows],
                    [row["share"][0] for row in rows],
                    "--" if rows[0]["before"] else "-",
                    color=_choose_colour(index),
                    marker=MARKS[index % len(MARKS)],
                    label=strategy,
                )
        axis.set(title=family, xlabel="size", ylabel="share delegated", ylim=(-0.03, 1.05))
        if max(len(str(row["size"])) for row in shares) > LONG_SIZE:
            axis.tick_params(axis="x", rotation=20)
    _save(figure, panels, paths)


def _make_panels(count: int) -> tuple[Figure, list[Axes]]:
    # matplotlib is slow to import, and only figures need it.
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    width = 4.6 if columns > 1 else 6.4
    figure = Figure(figsize=(width * columns, 3.4 * rows + 0.4), dpi=160)
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def _save(figure: Figure, panels: Sequence[Axes], paths: Sequence[Path]) -> None:
    """Style the panels, add one legend for all of them, and write the files."""
    import matplotlib as mpl
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    for axis in panels:
        # At a fixed height: matplotlib otherwise measures every label, at every drawing, to keep the title above them.
        axis.set_title(fill(axis.get_title(), LONG_TITLE), fontsize=11, y=1.0)
        axis.grid(color=LINE.light, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=9, colors=MUTED.light)
        axis.spines[["top", "right"]].set_visible(False)
    handles = {}
    for axis in panels:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles[label] = handle
    if handles:
        figure.legend(handles.values(), handles.keys(), fontsize=9, loc="outside lower center", ncols=3, frameon=False)
    # Computed once, here: a figure with a layout engine is drawn twice for each file, the first time without output.
    ConstrainedLayoutEngine().execute(figure)
    for path in paths:
        kind = path.suffix.removeprefix(".")
        with atomic_write(path) as partial, mpl.rc_context({"svg.hashsalt": "selfcest", "svg.fonttype": "none"}):
            # Dates and versions would change the file at every run.
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(partial, format=kind, metadata=metadata)
