"""The figures of a report as files, PNG and SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfcest_env.palette import LINE, MUTED, SERIES
from selfcest_eval.play.costs import cost_name
from selfcest_eval.report.learning import Series, title
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


def frontier_figure(rows: Sequence[Mapping[str, Any]], cost: str, paths: Sequence[Path]) -> None:
    """Accuracy against one cost, a panel a family and a line a strategy: over its budgets, or over sizes if it has one.

    Args:
        rows: of `page.result_rows`.
        cost: its name.
        paths: where to.
    """
    families = list(dict.fromkeys(row["family"] for row in rows))
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    figure, panels = _panels(len(families))
    for axis, family in zip(panels, families, strict=True):
        here = [row for row in rows if row["family"] == family and row["costs"].get(cost)]
        swept = len({row["budget"] for row in here}) > 1
        here = [row for row in here if row["pooled"] == swept]
        for place, strategy in enumerate(strategies):
            found = [row for row in here if row["strategy"] == strategy]
            if found:
                _points(axis, found, cost, place)
        axis.set(title=family, xlabel=cost_name(cost), ylabel="accuracy", ylim=(-0.03, 1.05))
    _finish(figure, panels, paths)


def _points(axis: Axes, rows: Sequence[Mapping[str, Any]], cost: str, place: int) -> None:
    x, y = [row["costs"][cost][0] for row in rows], [row["accuracy"][0] for row in rows]
    ends = [[row["accuracy"][i] for row in rows] for i in (1, 2)]
    bars = [[0.0 if e is None else abs(m - e) for m, e in zip(y, end, strict=True)] for end in ends]
    colour = SERIES[place % len(SERIES)].light
    axis.errorbar(
        x, y, yerr=bars, color=colour, marker=MARKS[place % len(MARKS)], markersize=6, capsize=3, linewidth=1.2,
        label=rows[0]["strategy"],
    )  # fmt: skip


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
