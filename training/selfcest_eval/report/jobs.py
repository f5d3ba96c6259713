"""The jobs of a training run as their folders hold them: their logs, their compute and their warm starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfcest_env.errors import RecordError
from selfcest_env.record import read_json_lines
from selfcest_training.config import RunConfig, VariantConfig

Metrics = Mapping[str, Any]

_USED = ("step", "sampled_tokens", "compute_tokens", "cpu_seconds")
# The numbers that reports read, by stage.
_NUMBERS = {
    "warmstart": _USED,
    "probe": (*_USED, "attempt", "phase", "threshold", "passed"),
    "rl": (*_USED, "return", "replayed_tokens"),
}


@dataclass(frozen=True)
class JobLog:
    """Everything that one job has logged so far.

    Attributes:
        variant, seed: of the job.
        spec: the config of its variant.
        folder: of the job.
        rows: of its `metrics.jsonl`, at least one.
    """

    variant: str
    seed: int
    spec: VariantConfig
    folder: Path
    rows: Sequence[Metrics]

    @property
    def name(self) -> str:
        return f"{self.variant}/seed{self.seed}"

    @property
    def sampled_tokens(self) -> int:
        return int(self.rows[-1]["sampled_tokens"])

    @property
    def compute_tokens(self) -> int:
        return int(self.rows[-1]["compute_tokens"])

    @property
    def scored_tokens(self) -> int:
        """The tokens that only went through a forward pass, for credit."""
        # Runs of release 0.1 wrote them as `read_tokens`, and earlier ones did not count them.
        return int(self.rows[-1].get("scored_tokens", self.rows[-1].get("read_tokens", 0)))

    @property
    def trained_tokens(self) -> int:
        return (self.compute_tokens - self.sampled_tokens - self.scored_tokens) // 3

    @property
    def cpu_seconds(self) -> float:
        return float(self.rows[-1]["cpu_seconds"])

    @property
    def rl_rows(self) -> list[Metrics]:
        return [row for row in self.rows if row["stage"] == "rl"]

    @property
    def replay_share(self) -> float:
        """The share of the tokens sampled in RL that went into replays."""
        before_rl = max((row["sampled_tokens"] for row in self.rows if row["stage"] != "rl"), default=0)
        sampled = self.rl_rows[-1]["sampled_tokens"] - before_rl
        return float(sum(row["replayed_tokens"] for row in self.rl_rows) / sampled) if sampled else 0.0

    def failed_probes(self, *, kept: bool) -> list[Metrics]:
        """Return the failed probes of the last attempt at a warm start (`kept`), or those of the attempts before."""
        failed = [row for row in self.rows if row["stage"] == "probe" and not row["passed"]]
        return [row for row in failed if (row["attempt"] + 1 == self.spec.warmstart.max_attempts) is kept]


def read_jobs(config: RunConfig) -> list[JobLog]:
    """Read the logs of a run, variant by variant; a job that has logged nothing is left out.

    Raises:
        RecordError: see `read_metrics`.
    """
    jobs = []
    for variant, spec in config.variants.items():
        for seed in config.seeds:
            folder = config.folder / variant / f"seed{seed}"
            rows = read_metrics(folder / "metrics.jsonl")
            if rows:
                jobs.append(JobLog(variant, seed, spec, folder, rows))
    return jobs


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a job's `metrics.jsonl`; an absent file has no rows.

    Raises:
        RecordError: a line that no job has written.
    """
    rows = list(read_json_lines(path)) if path.exists() else []
    for number, row in rows:
        names = _NUMBERS.get(str(row.get("stage")), ()) if isinstance(row, dict) else ()
        wrong = [name for name in names if not isinstance(row.get(name), int | float)]
        if wrong or not names:
            reason = f"its {wrong[0]} is no number" if wrong else "it has no known stage"
            raise RecordError(f"{path}, line {number} is no row of a job's metrics: {reason}; the file is damaged")
    return [row for _, row in rows]


def describe_compute(jobs: Sequence[JobLog]) -> list[str]:
    """Describe the compute of each job, and the largest difference between jobs with the same seed."""
    lines = []
    compute_by_seed: dict[int, list[int]] = {}
    for job in jobs:
        compute_by_seed.setdefault(job.seed, []).append(job.compute_tokens)
        scored = f" + scored for credit {job.scored_tokens / 1e6:.2f} M" if job.scored_tokens else ""
        lines.append(
            f"compute of {job.name}: {job.compute_tokens / 1e6:.2f} M tokens (sampled {job.sampled_tokens / 1e6:.2f} M"
            f"{scored} + 3 x trained {job.trained_tokens / 1e6:.2f} M), {job.cpu_seconds:.0f} CPU-s"
        )
    gaps = []
    for compute in compute_by_seed.values():
        if len(compute) > 1 and min(compute) > 0:
            gaps.append(max(compute) / min(compute) - 1)
    if gaps:
        lines.append(f"largest difference of compute between two variants with the same seed: {max(gaps):.1%}")
    return lines


def describe_restarts(jobs: Sequence[JobLog]) -> list[str]:
    """Describe warm starts that began again: how often, why, and the compute of the discarded attempts."""
    lines = []
    for job in jobs:
        failed = job.failed_probes(kept=False)
        if failed:
            lines.append(
                f"{job.name}: the warm start began {failed[-1]['attempt'] + 2} times ({_reasons(failed)}); the "
                f"discarded attempts cost {failed[-1]['compute_tokens'] / 1e6:.2f} M tokens of compute"
            )
    return lines


def describe_failed_warm_starts(jobs: Sequence[JobLog], compute_tokens: int | None) -> list[str]:
    """Describe jobs that continued without having learned, and jobs whose warm start has left RL no compute.

    Args:
        jobs: of a run.
        compute_tokens: the budget of each job; `None`: there is none.
    """
    warnings = []
    for job in jobs:
        attempts = job.spec.warmstart.max_attempts
        failed = job.failed_probes(kept=True)
        if failed:
            times = f"in {attempts} attempts" if attempts > 1 else "in its one attempt"
            warnings.append(f"{job.name}: the warm start has not learned {times}, and was kept ({_reasons(failed)})")
        if (
            compute_tokens is not None
            and job.spec.rl.steps
            and not job.rl_rows
            and job.compute_tokens >= compute_tokens
        ):
            warnings.append(
                f"{job.name}: the warm start used all of compute_tokens = {compute_tokens}, so there is no RL"
            )
    return warnings


def _reasons(probes: Sequence[Metrics]) -> str:
    reasons = []
    for row in probes:
        for name, value in row.items():
            if name.startswith("accuracy/") and value < row["threshold"]:
                reasons.append(f"{name.removeprefix('accuracy/')} {value:.2f} after phase {row['phase'] + 1}")
    return ", ".join(reasons)
