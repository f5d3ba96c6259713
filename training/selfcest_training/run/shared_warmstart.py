"""Arms that differ in RL alone share one warm start: it is trained once per seed and handed to the others.

The warm start of an arm depends on its limits, its `warmstart` and the seed, never on its name, so the copy is what the
arm would have trained. Its compute is counted for every arm.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from selfcest_training.config import RunConfig
from selfcest_training.run.checkpoint import checkpoints, read_state
from selfcest_training.run.job import JobId


def shared_warm_starts(config: RunConfig) -> dict[JobId, list[JobId]]:
    """By the job that trains it, the jobs that take its warm start over and have not begun."""
    leaders: dict[str, list[str]] = {}
    for arm, spec in config.arms.items():
        for leader in leaders:
            same = spec.warmstart == config.arms[leader].warmstart
            if same and config.limits_of(arm) == config.limits_of(leader):
                leaders[leader].append(arm)
                break
        else:
            leaders[arm] = []
    waiting = {
        JobId(leader, seed): [JobId(arm, seed) for arm in arms if not checkpoints(_folder(config, JobId(arm, seed)))]
        for seed in config.seeds
        for leader, arms in leaders.items()
        if config.arms[leader].warmstart.phases
    }
    # A leader that has gone on to RL has no warm start to give any more; who comes late trains its own.
    return {leader: jobs for leader, jobs in waiting.items() if jobs and not _in_rl(_folder(config, leader))}


def hand_over(config: RunConfig, leader: JobId, follower: JobId) -> None:
    """Copy a finished warm start. The checkpoint comes last and whole: with it the follower has begun."""
    there, here = _folder(config, leader).parent, _folder(config, follower).parent
    here.mkdir(parents=True, exist_ok=True)
    shutil.copy(there / "metrics.jsonl", here / "metrics.jsonl")
    found = checkpoints(there / "checkpoints")[-1]
    partial = here / "checkpoints" / f".{found.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(found, partial)
    partial.rename(here / "checkpoints" / found.name)


def _in_rl(folder: Path) -> bool:
    found = checkpoints(folder)
    return bool(found) and read_state(found[-1]).stage == "rl"


def _folder(config: RunConfig, job: JobId) -> Path:
    return config.folder / job.arm / f"seed{job.seed}" / "checkpoints"
