"""The figures of a report as files, PNG and SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfcest_env.palette import LINE, MUTED, SERIES
from selfcest_eval.play.costs import cost_name
from selfcest_eval.report.learning import Series, title
from selfcest_eval.stats.statistics import MISSING
from selfcest_eval.stats.table import TableRow
from selfcest_training.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = "os^Dv*"  # as many as colours: no meaning hangs on colour alone
_COLUMNS = 3


def learning_figure(series: Sequence[Series], metrics: Sequence[str], paths: Sequence[Path]) -> None:
    """A panel a metric against steps: the mean over seeds, its interval as a band, single seeds as thin lines."""
    figure, panels = _panels(len(metrics))
    variants = list(dict.fromkeys(one.variant for one in series))
    for axis, metric in zip(panels, metrics, strict=True):
        for one in series:
            if one.metric == metric:
                _curve(axis, one, variants.index(one.variant))
        axis.set(title=title(metric), xlabel="step")
    _finish(figure, panels, paths)


def _curve(axis: Axes, series: Series, place: int) -> None:
    colour, steps = SERIES[place % len(SERIES)].light, [b.step for b in series.bins]
    for i in range(len(series.seeds) if len(series.seeds) > 1 else 0):
        axis.plot(steps, [b.seeds[i] for b in series.bins], color=colour, linewidth=0.6, alpha=0.5)
    axis.plot(steps, [b.estimate.mean for b in series.bins], color=colour, linewidth=1.8, label=series.variant)
    if not math.isnan(series.bins[0].estimate.low):
        low, high = ([getattr(b.estimate, end) for b in series.bins] for end in ("low", "high"))
        axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def frontier_figure(
    cell_rows: Sequence[TableRow],
    family_rows: Sequence[TableRow],
    labels: Mapping[str, str],
    cost: str,
    paths: Sequence[Path],
) -> None:
    """Draw accuracy against one cost, a panel for each family and a line for each strategy; oracles are dashed.

    A line goes over the budgets of the whole family, or over its sizes where there is one budget.

    Args:
        cell_rows: the table, a row for each cell, strategy and budget.
        family_rows: the same for each family with all its sizes together.
        labels: names of strategies in tables.
        cost: its name.
        paths: of the files.
    """
    families = list(dict.fromkeys(row.curves.family for row in cell_rows))
    strategies = list(dict.fromkeys(row.strategy for row in cell_rows))
    figure, panels = _panels(len(families))
    for axis, family in zip(panels, families, strict=True):
        has_budgets = len({row.point.budget for row in family_rows if row.curves.family == family}) > 1
        rows = [row for row in (family_rows if has_budgets else cell_rows) if row.curves.family == family]
        for index, strategy in enumerate(strategies):
            points = [
                row for row in rows if row.strategy == strategy and math.isfinite(row.costs.get(cost, MISSING).mean)
            ]
            if points:
                is_oracle = labels[strategy] != strategy
                _draw_points(axis, points, cost, index, label=labels[strategy], dashed=is_oracle)
        axis.set(title=family, xlabel=cost_name(cost), ylabel="accuracy", ylim=(-0.03, 1.05))
    _finish(figure, panels, paths)


def _draw_points(axis: Axes, rows: Sequence[TableRow], cost: str, index: int, *, label: str, dashed: bool) -> None:
    means = [row.accuracy.mean for row in rows]
    # An interval of two seeds knows no bounds, and one of a single seed is missing.
    lows = [
        min(max(row.accuracy.low, 0.0), 1.0) if math.isfinite(row.accuracy.low) else row.accuracy.mean for row in rows
    ]
    highs = [
        min(max(row.accuracy.high, 0.0), 1.0) if math.isfinite(row.accuracy.high) else row.accuracy.mean for row in rows
    ]
    below = [abs(mean - low) for mean, low in zip(means, lows, strict=True)]
    above = [abs(high - mean) for mean, high in zip(means, highs, strict=True)]
    axis.errorbar(
        [row.costs[cost].mean for row in rows],
        means,
        yerr=[below, above],
        color=SERIES[index % len(SERIES)].light,
        marker=MARKS[index % len(MARKS)],
        markersize=6,
        capsize=3,
        linewidth=1.2,
        linestyle="--" if dashed else "-",
        label=label,
    )


def delegation_figure(shares: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> None:
    """The share of instances delegated by size, a panel a family, dashed before RL.

    Args:
        shares: of `page.delegation_rows`.
        paths: where to.
    """
    families = list(dict.fromkeys(row["family"] for row in shares))
    strategies = list(dict.fromkeys(row["strategy"] for row in shares))
    figure, panels = _panels(len(families))
    for axis, family in zip(panels, families, strict=True):
        for place, strategy in enumerate(strategies):
            found = [row for row in shares if (row["family"], row["strategy"]) == (family, strategy)]
            if found:
                style, colour = ("--" if found[0]["before"] else "-"), SERIES[place % len(SERIES)].light
                axis.plot(
                    [row["size"] for row in found], [row["share"][0] for row in found], style, color=colour,
                    marker=MARKS[place % len(MARKS)], label=strategy,
                )  # fmt: skip
        axis.set(title=family, xlabel="size", ylabel="share delegated", ylim=(-0.03, 1.05))
    _finish(figure, panels, paths)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure  # slow to import, and only figures need it

    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    width = 4.6 if columns > 1 else 6.4
    figure = Figure(figsize=(width * columns, 3.4 * rows + 0.4), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def _finish(figure: Figure, panels: Sequence[Axes], paths: Sequence[Path]) -> None:
    import matplotlib as mpl

    for axis in panels:
        axis.title.set_fontsize(11)
        axis.grid(color=LINE.light, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=9, colors=MUTED.light)
        axis.spines[["top", "right"]].set_visible(False)
    handles = {label: h for axis in panels for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(handles.values(), handles.keys(), fontsize=9, loc="outside lower center", ncols=3, frameon=False)
    for path in paths:
        kind = path.suffix.removeprefix(".")
        with atomic_write(path) as partial, mpl.rc_context({"svg.hashsalt": "selfcest", "svg.fonttype": "none"}):
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(partial, dpi=160, format=kind, metadata=metadata)
