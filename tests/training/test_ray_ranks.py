"""Ranks of the learner on Ray, beside rollout workers: they train what one process trains, and fail in one piece."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from test_job import config, rows, weights
from test_ray_rollouts import (
    SHORT,
    address,
    alone,
    assert_same_training,
    episodes,
    killed,
    on,
    wait_for,
)

from selfcest_env.errors import InfrastructureError
from selfcest_training.cluster.config import ClusterConfig
from selfcest_training.cluster.ray_ranks import RayRanks
from selfcest_training.config import RunConfig
from selfcest_training.run.checkpoint import list_checkpoints
from selfcest_training.run.job import Job, JobId

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
__all__ = ["address", "alone"]  # fixtures
CUT = {**SHORT, "micro_batch_tokens": 512}  # into more than one part
RANKS = {"learner_ranks": 2, "learner_resources": {"CPU": 0.25}}


def trained(spec: RunConfig, ranks: RayRanks) -> Job:
    job = Job(spec, JobId("delegating", 0), lambda *_: None, ranks=ranks)
    try:
        job.run(lambda: None)
    finally:
        job.close()
    return job


def ranks_of(spec: RunConfig) -> RayRanks:
    assert spec.cluster is not None
    return RayRanks(spec.cluster, threads=1, timeout=60.0)


def test_two_workers_and_two_ranks_of_which_a_worker_is_killed_train_as_one_process(
    address: str, alone: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = config(tmp_path, **CUT, **on(address, **RANKS))
    with ranks_of(spec) as ranks, killed(monkeypatch, 1, lambda name: name.startswith("s2.")):
        job = trained(spec, ranks)
    assert len(episodes(job)) == 4 * 64
    assert_same_training(job, alone)


def test_a_rank_that_is_killed_ends_the_job_which_resumes_to_the_same_bits(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all other ranks with it. Another number of ranks, or none, goes on as well."""
    whole = config(tmp_path / "whole", **CUT, **on(address, **RANKS))
    with ranks_of(whole) as ranks:
        expected = trained(whole, ranks)
    spec = config(tmp_path / "hit", **CUT, **on(address, **RANKS))
    call, seen = RayRanks.call, list[str]()

    def until(self: RayRanks, method: str, *args: Any) -> Any:
        seen.append(method)
        if seen.count("policy_step") == 3 and method == "policy_step":
            os.kill(self.pids[1], signal.SIGKILL)
        return call(self, method, *args)

    with ranks_of(spec) as ranks, monkeypatch.context() as patch:
        patch.setattr(RayRanks, "call", until)
        with pytest.raises(InfrastructureError, match="rank 1 of 2 of the learner has died"):
            trained(spec, ranks)
        for pid in ranks.pids:
            wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())  # type: ignore[misc]
        with pytest.raises(InfrastructureError, match="the ranks of the learner have ended"):
            ranks.call("state")
    folder = expected.folder.relative_to(tmp_path / "whole")
    assert list_checkpoints(tmp_path / "hit" / folder / "checkpoints"), "which are gathered while it trains"
    with ranks_of(spec) as ranks:
        again = trained(spec, ranks)
    assert torch.equal(weights(again), weights(expected))
    found, known = ([{**row, "cpu_seconds": 0} for row in rows(job)] for job in (again, expected))
    assert found == known


def test_what_a_rank_refuses_is_said_by_name(address: str) -> None:
    cluster = ClusterConfig(address=address, **{**RANKS, "start_seconds": 60.0})  # type: ignore[arg-type]
    with (
        RayRanks(cluster, threads=1, timeout=60.0) as ranks,
        pytest.raises(RuntimeError, match="rank 0 of the learner failed"),
    ):
        ranks.call("state")
    short = ClusterConfig(address=address, learner_ranks=2, learner_resources={"CPU": 1e6}, start_seconds=2.0)
    with pytest.raises(InfrastructureError, match=r"2 of 2 learner ranks, which need \{'CPU': 1000000.0\} each"):
        RayRanks(short, threads=1)
