"""RL with vLLM as the sampler, in the environment that has it: weights are pushed, and sampled from, at every step."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from test_job import rows, weights
from test_models import RL, chat_config, episodes, play_from, save_chat_model

from selfcest_agents.vllm_engine import VllmEngine
from selfcest_training.run.job import Job, JobId

needs_vllm = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed; docs/models.md says how, .ci/run does it"
)
SAMPLER = {"name": "vllm", "options": {"kv_cache_gib": 0.125, "block_size": 32, "max_batch_size": 16}}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Job]:
    """A chat model, and the same after its warm start."""
    source = save_chat_model(tmp_path_factory.mktemp("source"), hidden_size=128)  # vLLM has no heads of 8 on a CPU
    job = Job(chat_config(source, tmp_path_factory.mktemp("warm")), JobId("delegating", 0), lambda *_: None)
    job.run(lambda: None, only_warm_start=True)
    return source, job


@needs_vllm
@pytest.mark.parametrize("lag", [0, 1])
def test_every_step_samples_with_the_weights_of_its_version(tmp_path: Path, warm: tuple[Path, Job], lag: int) -> None:
    torch.set_num_threads(1)
    source, start = warm
    spec = chat_config(source, tmp_path, sampler=SAMPLER, log_groups=2, **{f"{RL}__max_staleness": lag})
    job = play_from(start, spec)
    assert isinstance(job.sampler.engine, VllmEngine)
    found = rows(job)
    assert all(row["grad_norm"] > 0 for row in found), "or the weights of every version are the same"
    assert [row["policy_lag"] for row in found] == [min(step, lag) for step in range(3)]
    for row in found:
        assert row["logprob_gap"] > 1e-2 if row["policy_lag"] else row["logprob_gap"] < 1e-3
    versions = {
        (int(record.episode_id.split(".")[0].removeprefix("s")), turn.generation.policy_version)
        for record in episodes(job)
        for _, turn in record.turns()
    }
    assert versions == {(step, max(0, step - lag)) for step in range(3)}
    assert job.sampler.engine.policy_version == 3, "the evaluation that follows samples from the final weights"
    job.close()
    again = Job(spec, JobId("delegating", 0), lambda *_: None)
    again.run(lambda: None)  # a process holds one vLLM: the next job starts its own once this one is closed
    again.close()
    assert torch.equal(weights(again), weights(job))
