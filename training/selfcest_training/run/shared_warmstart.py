"""Variants that differ in RL alone share one warm start: it is trained once per seed and handed to the others.

The warm start of a variant depends on its limits, its `warmstart` and the seed, never on its name, so the copy is what
the variant would have trained. Its compute is counted for every variant.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from selfcest_training.config import RunConfig
from selfcest_training.files import atomic_write
from selfcest_training.run.checkpoint import checkpoints, in_rl, newest_whole
from selfcest_training.run.job import JobId


def shared_warm_starts(config: RunConfig) -> dict[JobId, list[JobId]]:
    """By the job that trains it, the jobs that take its warm start over and have not begun."""
    leaders: dict[str, list[str]] = {}
    for variant, spec in config.variants.items():
        for leader in leaders:
            same = spec.warmstart == config.variants[leader].warmstart
            if same and config.limits_of(variant) == config.limits_of(leader):
                leaders[leader].append(variant)
                break
        else:
            leaders[variant] = []
    waiting = {
        JobId(leader, seed): [
            JobId(variant, seed) for variant in variants if not checkpoints(_folder(config, JobId(variant, seed)))
        ]
        for seed in config.seeds
        for leader, variants in leaders.items()
        if config.variants[leader].warmstart.phases
    }
    # A leader that has gone on to RL has no warm start to give any more; who comes late trains its own.
    return {leader: jobs for leader, jobs in waiting.items() if jobs and not _in_rl(_folder(config, leader))}


def hand_over(config: RunConfig, leader: JobId, follower: JobId) -> None:
    """Copy a finished warm start. The checkpoint comes last and whole: with it the follower has begun."""
    there, here = _folder(config, leader).parent, _folder(config, follower).parent
    found = newest_whole(there)
    assert found is not None, "its job has ended"
    (here / "checkpoints").mkdir(parents=True, exist_ok=True)
    with atomic_write(here / "metrics.jsonl") as partial:
        shutil.copyfile(there / "metrics.jsonl", partial)
    with atomic_write(here / "checkpoints" / found[0].name) as partial:
        shutil.copytree(found[0], partial)


def _in_rl(folder: Path) -> bool:
    found = checkpoints(folder)
    return bool(found) and in_rl(found[-1])


def _folder(config: RunConfig, job: JobId) -> Path:
    return config.folder / job.variant / f"seed{job.seed}" / "checkpoints"
