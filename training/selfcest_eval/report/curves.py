"""Learning curves of a run's variants: returns against sampled tokens, replays included; and their compute."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selfcest_env.errors import RecordError
from selfcest_env.record import read_json_lines
from selfcest_eval.stats.statistics import Estimate, over_seeds
from selfcest_training.config import RunConfig
from selfcest_training.files import atomic_write

_BINS = 10
_USED = ("step", "sampled_tokens", "compute_tokens", "cpu_seconds")
_NUMBERS = {  # by stage, those that reports read
    "warmstart": _USED,
    "probe": (*_USED, "attempt", "phase", "threshold", "passed"),
    "rl": (*_USED, "return", "replayed_tokens"),
}


@dataclass(frozen=True)
class Curve:
    """Mean return of a variant's training episodes in bins of sampled tokens; intervals over seeds.

    Attributes:
        edges: upper ends of the bins, in sampled tokens.
        returns: one per bin; `None` where a seed made no step.
        steps: rollouts of RL, mean over seeds.
        replay_share: of the sampled tokens that went into replays.
    """

    variant: str
    edges: tuple[int, ...]
    returns: tuple[Estimate | None, ...]
    steps: float
    replay_share: float


def metrics_of(config: RunConfig, variant: str, seed: int) -> list[dict[str, Any]]:
    """What a job has logged so far, row by row. Raises `RecordError` that names a line that no job has written."""
    path = config.folder / variant / f"seed{seed}" / "metrics.jsonl"
    rows = list(read_json_lines(path)) if path.exists() else []
    for number, row in rows:
        names = _NUMBERS.get(str(row.get("stage")), ()) if isinstance(row, dict) else ()
        wrong = [name for name in names if not isinstance(row.get(name), int | float)]
        if wrong or not names:
            why = f"its {wrong[0]} is no number" if wrong else "it is of no stage"
            raise RecordError(f"{path}, line {number} is no row of a job's metrics: {why}; the file is damaged")
    return [row for _, row in rows]


def learning_curves(config: RunConfig) -> list[Curve]:
    """Curves of the variants with RL, of what their folders hold so far.

    Bins divide `rl.sampled_tokens`, or without it the tokens that every seed has sampled.
    """
    curves = []
    for variant, spec in config.variants.items():
        found = (_rl_rows(metrics_of(config, variant, seed)) for seed in config.seeds)
        runs = [rows for rows in found if rows and rows[-1]["sampled_tokens"]]
        if runs:
            budget = spec.rl.sampled_tokens or round(min(rows[-1]["sampled_tokens"] for rows in runs))
            curves.append(_curve(variant, budget, runs))
    return curves


def scored_tokens(row: Mapping[str, float]) -> float:
    """The tokens of a row of metrics that only went through a forward pass, for credit."""
    # Runs of release 0.1 wrote them as `read_tokens`, and earlier ones did not count them.
    return row.get("scored_tokens", row.get("read_tokens", 0))


def compute_lines(config: RunConfig) -> list[str]:
    """What each job used, and how far the variants are apart: the claim that compute was matched."""
    lines, used = [], dict[int, list[float]]()
    for variant in config.variants:
        for seed in config.seeds:
            if rows := metrics_of(config, variant, seed):
                last = rows[-1]
                used.setdefault(seed, []).append(last["compute_tokens"])
                sampled, compute = last["sampled_tokens"] / 1e6, last["compute_tokens"] / 1e6
                scored = scored_tokens(last) / 1e6
                also = f" + scored for credit {scored:.2f} M" if scored else ""
                lines.append(
                    f"compute of {variant}/seed{seed}: {compute:.2f} M tokens (sampled {sampled:.2f} M{also} + "
                    f"3 x trained {(compute - sampled - scored) / 3:.2f} M), {last['cpu_seconds']:.0f} CPU-s"
                )
    gaps = [max(values) / min(values) - 1 for values in used.values() if len(values) > 1 and min(values) > 0]
    if gaps:
        lines.append(f"largest difference of compute between two variants with the same seed: {max(gaps):.1%}")
    return lines


def _rl_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of RL, whose sampled tokens begin at 0; a warm start samples in its probes."""
    before = max((row["sampled_tokens"] for row in rows if row["stage"] != "rl"), default=0)
    return [{**row, "sampled_tokens": row["sampled_tokens"] - before} for row in rows if row["stage"] == "rl"]


def _curve(variant: str, budget: int, runs: Sequence[Sequence[Mapping[str, float]]]) -> Curve:
    edges = tuple(round(budget * (i + 1) / _BINS) for i in range(_BINS))
    per_seed = [_binned(rows, budget) for rows in runs]
    returns = [[values[i] for values in per_seed] for i in range(_BINS)]
    whole = [None if any(map(math.isnan, values)) else over_seeds(values) for values in returns]
    shares = [_replayed(rows) / rows[-1]["sampled_tokens"] for rows in runs]
    return Curve(variant, edges, tuple(whole), float(np.mean([len(rows) for rows in runs])), float(np.mean(shares)))


def _binned(rows: Sequence[Mapping[str, float]], budget: int) -> list[float]:
    """Mean return by bin of the tokens that had been sampled before each step; none of the steps beyond the budget."""
    bins: list[list[float]] = [[] for _ in range(_BINS)]
    before = 0.0
    for row in rows:
        if before < budget:
            bins[int(before / budget * _BINS)].append(row["return"])
        before = row["sampled_tokens"]
    return [float(np.mean(values)) if values else math.nan for values in bins]


def _replayed(rows: Sequence[Mapping[str, float]]) -> float:
    return sum(row["replayed_tokens"] for row in rows)


def curve_lines(curves: Sequence[Curve]) -> list[str]:
    """One sentence per variant for the report."""
    return [
        f"{curve.variant}: return {_text(curve.returns[0])} over the first tenth of {curve.edges[-1]} sampled tokens, "
        f"{_text(curve.returns[-1])} over the last; {curve.steps:.0f} steps, {curve.replay_share:.0%} of its tokens in "
        "replays"
        for curve in curves
    ]


def _text(value: Estimate | None) -> str:
    return "unknown" if value is None else str(value)


def write_curves(curves: Sequence[Curve], path: Path) -> None:
    """A CSV: variant, sampled tokens at the end of the bin, mean return and both ends of its interval."""
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["variant", "sampled_tokens", "return", "return_low", "return_high"])
        for curve in curves:
            for edge, value in zip(curve.edges, curve.returns, strict=True):
                if value is not None:
                    ends = (f"{end:.4f}" for end in (value.mean, value.low, value.high))
                    writer.writerow([curve.variant, edge, *ends])


def plot_curves(curves: Sequence[Curve], path: Path) -> None:
    """Mean return against sampled tokens, one line per variant, intervals as bands."""
    from matplotlib.figure import Figure  # slow to import, and only plots need it

    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axis = figure.subplots()
    for curve in curves:
        points = [(edge, value) for edge, value in zip(curve.edges, curve.returns, strict=True) if value is not None]
        x = [edge for edge, _ in points]
        (line,) = axis.plot(x, [value.mean for _, value in points], marker="o", linewidth=1, label=curve.variant)
        low, high = ([getattr(value, end) for _, value in points] for end in ("low", "high"))
        axis.fill_between(x, low, high, alpha=0.12, color=line.get_color())
    axis.set(xlabel="sampled tokens, replays included", ylabel="mean return of training episodes")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=130)
