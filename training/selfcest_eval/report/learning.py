"""Learning curves of every number that jobs have logged: by variant, in bins of steps, mean and interval over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from selfcest_eval.report.jobs import JobLog
from selfcest_eval.report.tables import write_csv
from selfcest_eval.stats.statistics import Estimate, over_seeds

BINS = 60  # at most: more are not seen, and noise of single steps hides the course

# Panels of the page by group, each a name of a metric or the beginning of several; what is in none goes to "Everything
# else". A row is in the log of its stage alone.
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
    """A bin: steps, tokens sampled so far in the stage, and the metric; by seed, and its mean with an interval."""

    step: float
    sampled: float
    seeds: tuple[float, ...]
    estimate: Estimate


@dataclass(frozen=True)
class Series:
    """One metric of one variant.

    Attributes:
        variant, stage, metric: which; the stage is `warmstart`, `probe` or `rl`.
        seeds: those that have it, as the values of every bin.
        bins: in order. One that some seed has not reached is left out, so that every mean is over the same seeds.
    """

    variant: str
    stage: str
    metric: str
    seeds: tuple[int, ...]
    bins: tuple[CurveBin, ...]


def learning(jobs: Sequence[JobLog], stage: str = "rl") -> list[Series]:
    """Every metric of a stage, by variant, in the order in which jobs have logged them."""
    found = []
    for variant in dict.fromkeys(job.variant for job in jobs):
        runs = {job.seed: list(_of_stage(job.rows, stage)) for job in jobs if job.variant == variant}
        runs = {seed: rows for seed, rows in runs.items() if rows}
        names = dict.fromkeys(name for rows in runs.values() for row in rows for name in row if name not in _KEYS)
        for name in names:
            if series := _series(variant, stage, name, runs):
                found.append(series)
    return found


def _of_stage(rows: Sequence[Mapping[str, Any]], stage: str) -> Iterator[dict[str, Any]]:
    """Rows of a stage, whose sampled tokens begin at 0, with the throughput since the row before."""
    before = max((row["sampled_tokens"] for row in rows if row["stage"] != stage), default=0) if stage == "rl" else 0
    first = {"cpu_seconds": 0.0, "compute_tokens": 0}
    for last, row in pairwise([first, *rows]):
        if row["stage"] == stage:
            seconds = row["cpu_seconds"] - last["cpu_seconds"]
            speed = (row["compute_tokens"] - last["compute_tokens"]) / seconds if seconds > 0 else None
            rate = {"tokens_per_cpu_second": speed} if speed is not None else {}
            yield {**row, "sampled_tokens": row["sampled_tokens"] - before, **rate}


def _series(variant: str, stage: str, name: str, runs: Mapping[int, Sequence[Mapping[str, Any]]]) -> Series | None:
    having = {seed: [row for row in rows if name in row] for seed, rows in runs.items()}
    having = {seed: rows for seed, rows in having.items() if rows}
    steps = sorted({row["step"] for rows in having.values() for row in rows})
    edges = [list(part) for part in np.array_split(steps, min(BINS, len(steps)))]
    bins = []
    for part in edges:
        inside = [[row for row in rows if part[0] <= row["step"] <= part[-1]] for rows in having.values()]
        if all(inside):
            values = tuple(float(np.mean([row[name] for row in rows])) for rows in inside)
            step, sampled = (
                float(np.mean([row[key] for rows in inside for row in rows])) for key in ("step", "sampled_tokens")
            )
            bins.append(CurveBin(step, sampled, values, over_seeds(values)))
    return Series(variant, stage, name, tuple(having), tuple(bins)) if bins else None


def first_and_last(series: Series) -> tuple[Estimate, Estimate]:
    """Return the means over the first and the last tenth of the bins, with intervals over seeds."""
    tenth = max(1, len(series.bins) // 10)
    estimates = []
    for bins in (series.bins[:tenth], series.bins[-tenth:]):
        values_by_seed = zip(*(b.seeds for b in bins), strict=True)
        estimates.append(over_seeds([float(np.mean(values)) for values in values_by_seed]))
    return estimates[0], estimates[1]


def return_lines(jobs: Sequence[JobLog]) -> list[str]:
    """Describe how the return of each variant changed in RL, and the share of its tokens that replays took."""
    lines = []
    for series in returns(jobs):
        first, last = first_and_last(series)
        jobs_of_variant = [job for job in jobs if job.variant == series.variant and job.rl_rows]
        steps = np.mean([len(job.rl_rows) for job in jobs_of_variant])
        replay_share = np.mean([job.replay_share for job in jobs_of_variant])
        lines.append(
            f"{series.variant}: return {first} over the first tenth of its steps, {last} over the last; {steps:.0f} "
            f"steps, {replay_share:.0%} of its tokens in replays"
        )
    return lines


def returns(jobs: Sequence[JobLog]) -> list[Series]:
    """Return the learning curves of the mean return of training episodes, by variant."""
    return [series for series in learning(jobs) if series.metric == "return"]


def write_learning_csv(curves: Sequence[Series], path: Path) -> None:
    """Write a row for each variant, metric, bin and seed."""
    rows = []
    for series in curves:
        for b in series.bins:
            for seed, value in zip(series.seeds, b.seeds, strict=True):
                rows.append([series.variant, series.metric, seed, b.step, b.sampled, value])
    write_csv(path, ["variant", "metric", "seed", "step", "sampled_tokens", "value"], rows)


def grouped(series: Sequence[Series]) -> dict[str, list[str]]:
    """Metrics by group of the page, in order."""
    names, left = dict.fromkeys(one.metric for one in series), dict.fromkeys(one.metric for one in series)
    found: dict[str, list[str]] = {}
    for group, wanted in GROUPS.items():
        for want in wanted:
            for name in names:
                if (name == want or (want.endswith("/") and name.startswith(want))) and name in left:
                    del left[name]
                    found.setdefault(group, []).append(name)
    return found | ({"Everything else": list(left)} if left else {})


def title(metric: str) -> str:
    """What a panel is called."""
    if metric.startswith("term/"):
        return f"Return by term: {metric.removeprefix('term/')}"
    return TITLES.get(metric, metric)
