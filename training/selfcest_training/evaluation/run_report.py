"""Results to a table, a CSV, a plot and a few sentences. Intervals are over seeds of everything."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfcest_training.evaluation.evaluate import COSTS, EpisodeResult

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond the table that of 16, a little wide.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Interval:
    """A mean with the half width of its 95 % interval over seeds; `nan` for one seed, which tells nothing of others."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if math.isnan(self.half) else f"{self.mean:.2f} ± {self.half:.2f}"


def interval(values: Sequence[float]) -> Interval:
    """Mean and Student-t half width of independent values, one per seed."""
    count = len(values)
    if count < 2:
        return Interval(float(np.mean(values)), float("nan"))
    quantile = _T95[count - 2] if count - 2 < len(_T95) else 2.12
    return Interval(float(np.mean(values)), quantile * float(np.std(values, ddof=1)) / math.sqrt(count))


@dataclass(frozen=True)
class Row:
    """One line of the table: a policy on one cell at one temperature."""

    family: str
    size: str
    shift: str
    temperature: float
    policy: str
    seeds: int
    accuracy: Interval
    costs: Mapping[str, Interval]


Results = Mapping[tuple[str, int], Sequence[EpisodeResult]]  # by (policy, seed)


def summarise(results: Results) -> list[Row]:
    """Rows in the order of cells, then of policies: means per seed first, intervals over seeds after."""
    policies = list(dict.fromkeys(policy for policy, _ in results))
    seeds = sorted({seed for _, seed in results})
    cells = dict.fromkeys((r.family, r.size, r.shift, r.temperature) for rows in results.values() for r in rows)
    table = []
    for cell in cells:
        for policy in policies:
            per_seed = [_of_cell(results[policy, seed], cell) for seed in seeds if (policy, seed) in results]
            per_seed = [rows for rows in per_seed if rows]
            if not per_seed:
                continue
            accuracy = interval([float(np.mean([r.correct for r in rows])) for rows in per_seed])
            costs = {
                cost: interval([float(np.mean([getattr(r, cost) for r in rows])) for rows in per_seed])
                for cost in COSTS
            }
            table.append(Row(*cell, policy, len(per_seed), accuracy, costs))
    return table


def _of_cell(rows: Sequence[EpisodeResult], cell: tuple[str, str, str, float]) -> list[EpisodeResult]:
    return [r for r in rows if (r.family, r.size, r.shift, r.temperature) == cell]


def difference(
    results: Results, cell: tuple[str, str, str, float], first: str, second: str, measure: str = "correct"
) -> Interval:
    """Mean of `first` minus mean of `second` on a cell, paired by seed."""
    seeds = [seed for policy, seed in results if policy == first and (second, seed) in results]
    return interval(
        [
            float(np.mean([getattr(r, measure) for r in _of_cell(results[first, seed], cell)]))
            - float(np.mean([getattr(r, measure) for r in _of_cell(results[second, seed], cell)]))
            for seed in seeds
        ]
    )


def write_csv(table: Sequence[Row], path: Path) -> None:
    """Every row with means and half widths."""
    with path.open("w", newline="", encoding="utf-8") as file:
        names = ["accuracy", *COSTS]
        writer = csv.writer(file)
        writer.writerow(
            ["family", "size", "shift", "temperature", "policy", "seeds"]
            + [column for name in names for column in (name, f"{name}_half")]
        )
        for row in table:
            numbers = [row.accuracy, *(row.costs[cost] for cost in COSTS)]
            writer.writerow(
                [row.family, row.size, row.shift, row.temperature, row.policy, row.seeds]
                + [f"{value:.4f}" for number in numbers for value in (number.mean, number.half)]
            )


def markdown(table: Sequence[Row]) -> str:
    """The table as Markdown, one line per policy and cell."""
    heads = [
        "family",
        "size",
        "policy",
        "accuracy",
        "total tokens",
        "generated",
        "critical path",
        "peak context",
        "clones",
    ]
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    for row in table:
        size = row.size + (" (out of distribution)" if row.shift == "out" else "")
        sampled = "" if row.temperature == 0 else f" (T {row.temperature:g})"
        cells = [row.family, size, row.policy + sampled, str(row.accuracy)]
        cells += [f"{row.costs[cost].mean:.1f}" for cost in COSTS]
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)


def verdicts(results: Results, delegating: str, baselines: Sequence[str]) -> list[str]:
    """Per cell and baseline one sentence: what delegation wins on and where it loses, greedy, paired by seed."""
    table = {(row.policy, _cell(row)): row for row in summarise(results)}
    lines = []
    for (policy, cell), row in table.items():
        if policy != delegating or row.temperature != 0:
            continue
        for baseline in baselines:
            if (rival := table.get((baseline, cell))) is not None:
                gain = difference(results, cell, delegating, baseline)
                lines.append(f"{row.family} {row.size}, against {baseline}: {_verdict(row, rival, gain)}")
    return lines


def _verdict(row: Row, rival: Row, gain: Interval) -> str:
    ratios = {cost: row.costs[cost].mean / max(1e-9, rival.costs[cost].mean) for cost in COSTS[:4]}
    costs = ", ".join(f"{cost.replace('_', ' ')} x{ratio:.2f}" for cost, ratio in ratios.items())
    signed = f"{gain.mean:+.2f}" + ("" if math.isnan(gain.half) else f" ± {gain.half:.2f}")
    if math.isnan(gain.half):
        word, won = "accuracy (one seed, no verdict)", gain.mean > 0
    else:
        won = gain.mean - gain.half > 0
        word = "wins accuracy" if won else "loses accuracy" if gain.mean + gain.half < 0 else "no clear accuracy gap"
    advice = "; delegation does not pay here" if gain.mean <= 0.02 else "; not shown to pay here"
    advice = advice if not won and ratios["total_tokens"] > 1 else ""
    return f"{word} {signed}; {costs}{advice}"


def warnings(table: Sequence[Row], baselines: Sequence[str], solved: float = 0.9) -> list[str]:
    """Baselines that did not learn the smallest size of a family: no baseline there, whatever the gap."""
    first: dict[str, str] = {}
    for row in table:
        first.setdefault(row.family, row.size)
    return [
        f"{row.policy} did not solve the smallest {row.family} ({row.accuracy}, below {solved}): no fair baseline"
        for row in table
        if row.policy in baselines
        and row.size == first[row.family]
        and row.temperature == 0
        and row.accuracy.mean < solved
    ]


def _cell(row: Row) -> tuple[str, str, str, float]:
    return row.family, row.size, row.shift, row.temperature


def plot_frontier(table: Sequence[Row], path: Path, cost: str = "total_tokens") -> None:
    """Accuracy against cost, one panel per family, one line per policy, one point per size."""
    from matplotlib.figure import Figure  # slow to import, and only plots need it

    greedy = [row for row in table if row.temperature == 0] or list(table)
    families = list(dict.fromkeys(row.family for row in greedy))
    figure = Figure(figsize=(4.6 * len(families), 4.2), layout="constrained")
    axes = figure.subplots(1, len(families), squeeze=False)[0]
    for axis, family in zip(axes, families, strict=True):
        for policy in dict.fromkeys(row.policy for row in greedy):
            rows = [row for row in greedy if row.family == family and row.policy == policy]
            bars = [0.0 if math.isnan(row.accuracy.half) else row.accuracy.half for row in rows]
            x, y = [row.costs[cost].mean for row in rows], [row.accuracy.mean for row in rows]
            axis.errorbar(x, y, yerr=bars, marker="o", capsize=2, linewidth=1, label=policy)
            for row, xi, yi in zip(rows, x, y, strict=True):
                axis.annotate(
                    row.size.partition(",")[0], (xi, yi), fontsize=6, xytext=(3, 3), textcoords="offset points"
                )
        axis.set(title=family, xlabel=cost.replace("_", " "), ylim=(-0.03, 1.05))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy")
    axes[-1].legend(fontsize=7)
    figure.savefig(path, dpi=130)
