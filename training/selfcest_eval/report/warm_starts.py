"""Warm starts that began again, or that have not learned what their phases ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfcest_eval.report.curves import metrics_of
from selfcest_training.config import RunConfig, VariantConfig


def given_up_lines(config: RunConfig) -> list[str]:
    """How often warm starts began, why, and what was lost."""
    lines = []
    for job in _jobs(config):
        failed = [row for row in job.failed if not job.is_last(row)]
        if failed:
            begun, lost = failed[-1]["attempt"] + 2, failed[-1]["compute_tokens"] / 1e6
            lines.append(
                f"{job.name}: the warm start began {begun} times ({_reasons(failed)}); what was given up cost "
                f"{lost:.2f} M tokens of compute"
            )
    return lines


def warm_start_warnings(config: RunConfig) -> list[str]:
    """Jobs that went on without having learned, and those whose warm start has left RL nothing."""
    warnings = []
    for job in _jobs(config):
        attempts, budget = job.variant.warmstart.max_attempts, config.compute_tokens
        if failed := [row for row in job.failed if job.is_last(row)]:
            times = f"in {attempts} attempts" if attempts > 1 else "in its one attempt"
            warnings.append(f"{job.name}: the warm start has not learned {times}, and was kept ({_reasons(failed)})")
        in_rl = any(row["stage"] == "rl" for row in job.rows)
        if job.variant.rl.steps and not in_rl and budget is not None and job.rows[-1]["compute_tokens"] >= budget:
            warnings.append(f"{job.name}: the warm start used all of compute_tokens = {budget}, so there is no RL")
    return warnings


@dataclass(frozen=True)
class _Job:
    """What one job has logged so far."""

    name: str
    variant: VariantConfig
    rows: Sequence[Mapping[str, Any]]

    @property
    def failed(self) -> list[Mapping[str, Any]]:
        return [row for row in self.rows if row["stage"] == "probe" and not row["passed"]]

    def is_last(self, row: Mapping[str, Any]) -> bool:
        """Whether the attempt is one that is kept whatever its probes say."""
        return bool(row["attempt"] + 1 == self.variant.warmstart.max_attempts)


def _jobs(config: RunConfig) -> Iterator[_Job]:
    for name, variant in config.variants.items():
        for seed in config.seeds:
            if rows := metrics_of(config, name, seed):
                yield _Job(f"{name}/seed{seed}", variant, rows)


def _reasons(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{name.removeprefix('accuracy/')} {value:.2f} after phase {row['phase'] + 1}"
        for row in rows
        for name, value in row.items()
        if name.startswith("accuracy/") and value < row["threshold"]
    )
