"""Learning curves of the metrics that jobs have logged: by variant, in bins of steps, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from selfcest_eval.report.jobs import JobLog, Metrics
from selfcest_eval.report.tables import write_csv
from selfcest_eval.stats.statistics import Estimate, over_seeds

MAX_BINS = 60  # more cannot be told apart, and the noise of single steps hides the trend

# Panels of the page by group. An entry is the name of a metric, or the beginning of several where it ends in a slash.
# Further metrics go to "Everything else".
GROUPS: Mapping[str, tuple[str, ...]] = {
    "What it earns": ("return", "correct", "term/"),
    "What it costs": ("total_tokens", "critical_path", "clones", "failed_clones", "answered"),
    "What credit and loss make of it": (
        "equal_groups", "excluded_share", "entropy", "loss/kl", "mean_ratio", "clip_share", "grad_norm", "loss",
    ),
    "Sampler against learner": (
        "mismatch/root/kl", "mismatch/clone/kl", "mismatch/root/mean_ratio", "mismatch/clone/mean_ratio",
        "mismatch/root/divergent_turns", "logprob_gap", "policy_lag",
    ),
    "Probes, played greedily": ("probe/",),
    "Throughput": ("tokens_per_cpu_second", "replayed_tokens", "gate/dropped_groups", "dropped_groups"),
}  # fmt: skip
TITLES: Mapping[str, str] = {
    "return": "Return",
    "correct": "Share of training episodes that are right",
    "total_tokens": "Total tokens of an episode",
    "critical_path": "Critical path, in generated tokens",
    "clones": "Clones of an episode",
    "failed_clones": "Share of clones that fail",
    "answered": "Share of episodes with an answer",
    "equal_groups": "Share of groups that all earn the same",
    "excluded_share": "Share of turns excluded from the loss",
    "entropy": "Entropy per token, nats",
    "loss/kl": "KL to the reference, in the loss",
    "mean_ratio": "Importance ratio, mean",
    "clip_share": "Share of tokens clipped",
    "grad_norm": "Gradient norm",
    "loss": "Loss",
    "mismatch/root/kl": "KL sampler to learner, roots",
    "mismatch/clone/kl": "KL sampler to learner, clones",
    "mismatch/root/mean_ratio": "Ratio learner to sampler, roots",
    "mismatch/clone/mean_ratio": "Ratio learner to sampler, clones",
    "mismatch/root/divergent_turns": "Share of root turns that diverge",
    "logprob_gap": "Largest gap of a log-prob",
    "policy_lag": "Policy lag, steps (staleness)",
    "tokens_per_cpu_second": "Tokens of compute per CPU-second",
    "replayed_tokens": "Tokens of replays in a step",
}
_KEYS = ("stage", "step", "sampled_tokens", "compute_tokens", "scored_tokens", "read_tokens", "cpu_seconds")


@dataclass(frozen=True)
class CurveBin:
    """A bin of steps.

    Attributes:
        step: mean of its steps.
        sampled: mean of the tokens that the stage had sampled.
        seeds: mean of the metric for each seed.
        estimate: mean of the metric over seeds, with its interval.
    """

    step: float
    sampled: float
    seeds: tuple[float, ...]
    estimate: Estimate


@dataclass(frozen=True)
class MetricCurve:
    """One metric of one variant.

    Attributes:
        variant, stage, metric: the stage is `warmstart`, `probe` or `rl`.
        seeds: seeds that have logged the metric, in the order of `CurveBin.seeds`.
        bins: bins in order. One that some seed has not reached is left out, so every mean is over the same seeds.
        first, last: means over the first and the last tenth of the steps that every seed has reached, with intervals
            over seeds.
    """

    variant: str
    stage: str
    metric: str
    seeds: tuple[int, ...]
    bins: tuple[CurveBin, ...]
    first: Estimate
    last: Estimate


def compute_learning_curves(jobs: Sequence[JobLog], stage: str = "rl") -> list[MetricCurve]:
    """Return every metric of a stage, by variant, in the order in which jobs have logged them."""
    curves = []
    for variant in dict.fromkeys(job.variant for job in jobs):
        rows_by_metric: dict[str, dict[int, list[Metrics]]] = {}
        for job in jobs:
            if job.variant == variant:
                for row in _select_stage(job.rows, stage):
                    for metric in row:
                        rows_by_metric.setdefault(metric, {}).setdefault(job.seed, []).append(row)
        for metric, rows_by_seed in rows_by_metric.items():
            rows_of_seeds = list(rows_by_seed.values())
            bins = _make_bins(metric, rows_of_seeds) if metric not in _KEYS else []
            if bins:
                ends = _average_ends(metric, rows_of_seeds)
                curves.append(MetricCurve(variant, stage, metric, tuple(rows_by_seed), tuple(bins), *ends))
    return curves


def _select_stage(rows: Sequence[Metrics], stage: str) -> Iterator[Metrics]:
    """Yield the rows of a stage, whose sampled tokens begin at 0, with the throughput since the row before."""
    before = 0
    if stage == "rl":
        before = max((row["sampled_tokens"] for row in rows if row["stage"] != stage), default=0)
    first = {"cpu_seconds": 0.0, "compute_tokens": 0}
    for last, row in pairwise([first, *rows]):
        if row["stage"] == stage:
            selected = {**row, "sampled_tokens": row["sampled_tokens"] - before}
            seconds = row["cpu_seconds"] - last["cpu_seconds"]
            if seconds > 0:
                selected["tokens_per_cpu_second"] = (row["compute_tokens"] - last["compute_tokens"]) / seconds
            yield selected


def _make_bins(metric: str, rows_of_seeds: Sequence[Sequence[Metrics]]) -> list[CurveBin]:
    """Return the bins of steps that every seed has reached.

    All have the same number of steps, and the last one also those that remain: alone they would be a noisier bin.
    """
    steps = sorted({row["step"] for row in chain.from_iterable(rows_of_seeds)})
    width = -(-len(steps) // MAX_BINS)
    num_bins = len(steps) // width
    bins = []
    for i in range(num_bins):
        part = steps[i * width : (i + 1) * width if i + 1 < num_bins else None]
        inside = [[row for row in rows if part[0] <= row["step"] <= part[-1]] for rows in rows_of_seeds]
        if all(inside):
            means = tuple(float(np.mean([row[metric] for row in rows])) for rows in inside)
            all_rows = list(chain.from_iterable(inside))
            step = float(np.mean([row["step"] for row in all_rows]))
            sampled = float(np.mean([row["sampled_tokens"] for row in all_rows]))
            bins.append(CurveBin(step, sampled, means, over_seeds(means)))
    return bins


def _average_ends(metric: str, rows_of_seeds: Sequence[Sequence[Metrics]]) -> tuple[Estimate, Estimate]:
    """Return the means over the first and the last tenth of the steps that every seed has reached."""
    reached = min(rows[-1]["step"] for rows in rows_of_seeds)
    firsts = []
    lasts = []
    for rows in rows_of_seeds:
        # A seed that began later than another one ended keeps all of its steps.
        values = [row[metric] for row in rows if row["step"] <= reached] or [row[metric] for row in rows]
        tenth = max(1, len(values) // 10)
        firsts.append(float(np.mean(values[:tenth])))
        lasts.append(float(np.mean(values[-tenth:])))
    return over_seeds(firsts), over_seeds(lasts)


def describe_returns(jobs: Sequence[JobLog]) -> list[str]:
    """Describe how the return of each variant changed in RL, and the share of its tokens that replays took."""
    lines = []
    for curve in compute_return_curves(jobs):
        jobs_of_variant = [job for job in jobs if job.variant == curve.variant and job.rl_rows]
        steps = np.mean([len(job.rl_rows) for job in jobs_of_variant])
        replay_share = np.mean([job.replay_share for job in jobs_of_variant])
        lines.append(
            f"{curve.variant}: return {curve.first} over the first tenth of its steps, {curve.last} over the last; "
            f"{steps:.0f} steps, {replay_share:.0%} of its tokens in replays"
        )
    return lines


def compute_return_curves(jobs: Sequence[JobLog]) -> list[MetricCurve]:
    """Return the learning curves of the mean return of training episodes, by variant."""
    return [curve for curve in compute_learning_curves(jobs) if curve.metric == "return"]


def write_learning_csv(curves: Sequence[MetricCurve], path: Path) -> None:
    """Write a row for each variant, metric, bin and seed."""
    rows = []
    for curve in curves:
        for curve_bin in curve.bins:
            for seed, value in zip(curve.seeds, curve_bin.seeds, strict=True):
                rows.append([curve.variant, curve.metric, seed, curve_bin.step, curve_bin.sampled, value])
    write_csv(path, ["variant", "metric", "seed", "step", "sampled_tokens", "value"], rows)


def group_metrics(curves: Sequence[MetricCurve]) -> dict[str, list[str]]:
    """Return the metrics by group of the page, in order."""
    ungrouped = list(dict.fromkeys(curve.metric for curve in curves))
    metrics_by_group: dict[str, list[str]] = {}
    for group, entries in GROUPS.items():
        for entry in entries:
            metrics = [name for name in ungrouped if name == entry or (entry[-1] == "/" and name.startswith(entry))]
            ungrouped = [name for name in ungrouped if name not in metrics]
            if metrics:
                metrics_by_group.setdefault(group, []).extend(metrics)
    if ungrouped:
        metrics_by_group["Everything else"] = ungrouped
    return metrics_by_group


def get_metric_title(metric: str) -> str:
    """Return the title of a metric's panel."""
    if metric.startswith("term/"):
        return f"Return by term: {metric.removeprefix('term/')}"
    return TITLES.get(metric, metric)
