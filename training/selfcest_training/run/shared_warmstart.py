"""Variants that differ only in RL share one warm start, which is trained once per seed and copied to the others.

The warm start of a variant depends on its limits, its `warmstart` and the seed, never on its name, so the copy is what
the variant would have trained. Its compute is counted for every variant.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from selfcest_training.config import RunConfig
from selfcest_training.files import atomic_write
from selfcest_training.run.checkpoint import find_newest_checkpoint, is_rl_checkpoint, list_checkpoints
from selfcest_training.run.job import JobId


def find_shared_warm_starts(config: RunConfig) -> dict[JobId, list[JobId]]:
    """Return, for each job that trains a shared warm start, the jobs that wait for a copy of it."""
    # For the first variant with a warm start, the later variants with an equal one.
    leaders: dict[str, list[str]] = {}
    for variant, spec in config.variants.items():
        for leader in leaders:
            same = spec.warmstart == config.variants[leader].warmstart
            if same and config.limits_of(variant) == config.limits_of(leader):
                leaders[leader].append(variant)
                break
        else:
            leaders[variant] = []
    followers: dict[JobId, list[JobId]] = {}
    for seed in config.seeds:
        for variant, equal_variants in leaders.items():
            leader_id = JobId(variant, seed)
            # A leader in RL has no checkpoint of its warm start any more, so the others train their own.
            if not config.variants[variant].warmstart.phases or _in_rl(_checkpoints_folder(config, leader_id)):
                continue
            jobs = [JobId(name, seed) for name in equal_variants]
            # A job with a checkpoint has begun and resumes from it.
            waiting = [job for job in jobs if not list_checkpoints(_checkpoints_folder(config, job))]
            if waiting:
                followers[leader_id] = waiting
    return followers


def copy_warm_start(config: RunConfig, leader: JobId, follower: JobId) -> None:
    """Copy a finished warm start from one job to another."""
    source = config.job_folder(leader.variant, leader.seed)
    target = config.job_folder(follower.variant, follower.seed)
    newest = find_newest_checkpoint(source)
    assert newest is not None, "its job has ended"
    checkpoint, _ = newest
    (target / "checkpoints").mkdir(parents=True, exist_ok=True)
    with atomic_write(target / "metrics.jsonl") as partial:
        shutil.copyfile(source / "metrics.jsonl", partial)
    # Last: a job with a checkpoint counts as begun.
    with atomic_write(target / "checkpoints" / checkpoint.name) as partial:
        shutil.copytree(checkpoint, partial)


def _in_rl(checkpoints: Path) -> bool:
    paths = list_checkpoints(checkpoints)
    return bool(paths) and is_rl_checkpoint(paths[-1])


def _checkpoints_folder(config: RunConfig, job: JobId) -> Path:
    return config.job_folder(job.variant, job.seed) / "checkpoints"
