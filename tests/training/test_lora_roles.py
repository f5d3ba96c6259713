"""A run with an adapter for each role: who plays, trains, is written and read with which."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_job import Crash, config, play, rows, warm, weights
from transformers import AutoModelForCausalLM
from trivial import Choice

from selfcest_agents.rollout import RolloutRequest
from selfcest_agents.samplers import Sampler, SamplerByRole
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.errors import ConfigError
from selfcest_env.types import Role
from selfcest_eval.play.policies import ModelPolicy
from selfcest_training.config import RunConfig
from selfcest_training.run.checkpoint import list_checkpoints
from selfcest_training.run.job import Job, JobId

__all__ = ["warm"]  # a fixture

LORA = {"rank": 4, "alpha": 8, "per_role": True}
RL = "variants__delegating__rl"


def roles_config(warm: Job, output: Path, **changes: Any) -> RunConfig:
    """Adapters into a policy that delegates, in three steps of RL; the warm start shows next to nothing more."""
    model = {**warm.config.model.options, "weights": str(warm.folder / "warmstart_model")}
    phases = [{"tokens": 2000, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}]
    given: dict[str, Any] = {
        "model": {"name": "trivial:Continued", "options": model},
        "lora": LORA,
        "checkpoint_every": 1,
        "variants__delegating__warmstart__phases": phases,
        "variants__delegating__warmstart__pool_tokens": 1000,
        f"{RL}__steps": 3,
    }
    return config(output, **given | changes)


def numbers(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.slow
def test_each_role_is_played_trained_written_and_read_with_its_own(warm: Job, tmp_path: Path) -> None:
    spec = roles_config(warm, tmp_path)
    job = play(spec)
    (*_, last) = list_checkpoints(job.folder / "checkpoints")
    assert {name.split(".")[-2] for name in load_file(last / "model.safetensors")} == {"root", "clone"}
    assert max(row["logprob_gap"] for row in rows(job)) < 1e-4, "trained with what it was sampled with"
    assert min(row["clones"] for row in rows(job)) > 0
    begun, roots, clones = (
        numbers(AutoModelForCausalLM.from_pretrained(job.folder / name))
        for name in ("warmstart_model", "model", "model/clones")
    )
    assert not torch.equal(roots, begun)
    assert not torch.equal(clones, begun)
    assert not torch.equal(clones, roots)

    policy = ModelPolicy(str(job.folder / "model"), spec.model, spec.sampler)
    read, there = policy.load(0), job.player.without_reward()
    assert isinstance(read.sampler, SamplerByRole)
    for role, expected in ((Role.ROOT, roots), (Role.CLONE, clones)):
        engine = read.sampler.by_role[role].engine
        assert isinstance(engine, TransformersEngine)
        assert torch.equal(numbers(engine._model), expected)
    rng, limits = np.random.default_rng(0), spec.limits_of("delegating")
    asked = [RolloutRequest(f"e{k}", Choice().draw(rng), k, limits) for k in range(8)]
    played = read.play(asked, 0.8)
    assert any(episode.cost.clones for episode in played)
    found = [[turn.generation.token_ids for _, turn in episode.turns()] for episode in played]
    assert found == [[turn.generation.token_ids for _, turn in one.turns()] for one in there.play(asked, 0.8)]

    both = policy.fingerprint(0)
    shutil.rmtree(job.folder / "model" / "clones")
    assert policy.fingerprint(0) != both
    assert isinstance(policy.load(0).sampler, Sampler)


@pytest.mark.slow
def test_without_a_merge_one_engine_samples_from_the_learner_s_own_model(warm: Job, tmp_path: Path) -> None:
    sampler = {"name": "transformers", "options": {"merge_lora": False, "prefix_tokens": 1000}}
    job = play(roles_config(warm, tmp_path, sampler=sampler))
    assert isinstance(job.sampler, Sampler)
    assert isinstance(job.sampler.engine, TransformersEngine)
    assert job.sampler.engine._model is job.model
    assert max(row["logprob_gap"] for row in rows(job)) < 1e-4, "trained with what it was sampled with"
    assert min(row["clones"] for row in rows(job)) > 0
    roots, clones = (AutoModelForCausalLM.from_pretrained(job.folder / name) for name in ("model", "model/clones"))
    assert not torch.equal(numbers(clones), numbers(roots))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({f"{RL}__max_staleness": 1}, "the sampler uses the learner's own, changing weights"),
        ({"cluster": {}, "workers": 1}, "the learner's own weights, which no rollout worker has"),
    ],
)
def test_an_adapter_that_is_not_merged_is_sampled_in_one_process(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    sampler = {"name": "transformers", "options": {"merge_lora": False}}
    spec = config(tmp_path, lora={"rank": 4, "alpha": 8}, sampler=sampler, **changes)
    with pytest.raises(ConfigError, match=f"{words}; set sampler.options.merge_lora to true"):
        Job(spec, JobId("delegating", 0), lambda *_: None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({f"{RL}__max_staleness": 1}, "max_staleness is 1"),
        ({"forward": {"compile": True}}, "forward.compile is true"),
        ({"cluster": {}, "workers": 1}, "cluster is set"),
    ],
)
def test_it_is_refused_where_one_policy_alone_is_known(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"lora.per_role is true and .*{words}.*lora.per_role=false"):
        Job(config(tmp_path, lora=LORA, **changes), JobId("delegating", 0), lambda *_: None)


def test_ranks_know_one_policy_alone(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"the learner runs over ranks, which supports only one policy for all agents; train in one"
    ):
        Job(config(tmp_path, lora=LORA), JobId("delegating", 0), lambda *_: None, ranks=object())  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "count"), [("warm start", 3), ("RL", 3)])
def test_a_killed_run_resumes_to_the_same_end(warm: Job, tmp_path: Path, stage: str, count: int) -> None:
    whole, spec = play(roles_config(warm, tmp_path / "whole")), roles_config(warm, tmp_path / "killed")
    seen: list[str] = []

    def crash(at: str, share: float, line: str) -> None:
        seen.append(at)
        if seen.count(stage) == count:
            raise Crash

    with pytest.raises(Crash):
        Job(spec, JobId("delegating", 0), crash).run(lambda: None)
    resumed = play(spec)
    assert torch.equal(weights(resumed), weights(whole))
    assert (resumed.folder / "episodes.jsonl").read_text() == (whole.folder / "episodes.jsonl").read_text()
