"""TRL's trainer with our rollouts makes the run that our own learner makes; in the environment that has TRL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from test_job import config
from trl_on_cpu import on_a_cpu

from selfcest_agents.samplers import make_sampler
from selfcest_env.errors import ConfigError
from selfcest_training.config import RunConfig
from selfcest_training.export.trl import TrlRolloutWorker, make_async_grpo_trainer, open_trainer
from selfcest_training.run.job import Job, JobId
from selfcest_training.stages.rollout_batch import RolloutBatch
from selfcest_training.trainer import Trainer

needs_trl = pytest.mark.skipif(
    find_spec("trl") is None, reason="TRL is not installed; docs/export.md says how, .ci/run does it"
)
pytestmark = [needs_trl, pytest.mark.slow]
RL = "variants__delegating__rl"
STEPS = 4
# In float32, on whatever TRL packs otherwise: the largest difference by the largest entry of the gradient.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model after its warm start."""
    job = Job(spec(tmp_path_factory.mktemp("warm")), JobId("delegating", 0), lambda *_: None)
    job.run(lambda: None, only_warm_start=True)
    return job.folder / "warmstart_model"


def spec(folder: Path, **changes: Any) -> RunConfig:
    optimizer = {"learning_rate": 3e-3, "warmup_steps": 1, "max_grad_norm": float("inf")}
    return config(folder, logging=[], **{f"{RL}__steps": STEPS, f"{RL}__optimizer": optimizer, **changes})


class Watch:
    """What a trainer played, and what its model was and had as a gradient at every update."""

    def __init__(self) -> None:
        self.produced: list[RolloutBatch] = []
        self.weights: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor] = []

    def note(self, model: torch.nn.Module) -> None:
        parameters = list(model.parameters())
        self.weights.append(torch.cat([p.detach().flatten() for p in parameters]))
        self.gradients.append(torch.cat([p.grad.flatten() for p in parameters]))

    @property
    def generated(self) -> list[list[tuple[int, ...]]]:
        """Ids of every turn of every step."""
        return [
            [
                turn.generation.token_ids
                for group in step.groups
                for episode in group.episodes
                for _, turn in episode.turns()
            ]
            for step in self.produced
        ]


def by_trl(
    run: RunConfig, warm: Path, monkeypatch: pytest.MonkeyPatch, **places: int
) -> tuple[Watch, list[dict[str, Any]]]:
    from transformers import TrainerCallback

    on_a_cpu(monkeypatch)
    torch.set_num_threads(1)
    watch = Watch()

    class Note(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
            watch.note(model)

    with open_trainer(run, "delegating", 0, warm) as trainer:
        produce = trainer.produce

        def noted(step: int) -> RolloutBatch:
            watch.produced.append(produce(step))
            return watch.produced[-1]

        monkeypatch.setattr(trainer, "produce", noted)
        made = make_async_grpo_trainer(
            TrlRolloutWorker(trainer, **places),
            warm,
            run.folder / "trl",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        made.add_callback(Note())
        made.train()
    return watch, made.state.log_history


@contextmanager
def with_a_lag(run: RunConfig, warm: Path) -> Iterator[Trainer]:
    """Our own trainer, each step played with the weights of the step before, as it must be with TRL."""
    with open_trainer(run, "delegating", 0, warm) as made:
        sampler = make_sampler("transformers", {"dtype": "float32"}).start(made.player.language, made.learner.model)  # type: ignore[attr-defined]
        player = replace(made.player, sampler=sampler)  # type: ignore[type-var]
        rl = replace(made.config, max_staleness=1)
        with Trainer(player, sampler, made.learner, made.menu, made.stages, rl, made.account, seed=0) as trainer:
            yield trainer


def by_ours(run: RunConfig, warm: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    with with_a_lag(run, warm) as trainer:
        step = trainer.learner.optimizer.step

        def noted() -> None:
            watch.note(trainer.learner.model)
            step()

        monkeypatch.setattr(trainer.learner.optimizer, "step", noted)
        watch.produced = [trainer.step().batch for _ in range(STEPS)]
    return watch


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({}, {"rows": 70}),
        ({f"{RL}__credit": {"name": "to_go"}}, {"rows": 50, "micro_batches": 3}),  # a turn has its own advantage
        ({f"{RL}__denominator": "episode_mean", f"{RL}__temperature": 0.7}, {"rows": 40, "micro_batches": 2}),
    ],
)
def test_trl_makes_our_run(
    tmp_path: Path, warm: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], places: dict[str, int]
) -> None:
    run = spec(tmp_path, **changes)
    theirs, log = by_trl(run, warm, monkeypatch, **places)
    ours = by_ours(run, warm, monkeypatch)
    assert len(theirs.gradients) == len(ours.gradients) == STEPS
    assert len(theirs.produced) == STEPS, "nothing is played that nobody learns from"
    for step, (found, expected) in enumerate(zip(theirs.gradients, ours.gradients, strict=True)):
        assert float(expected.norm()) > 1e-3, f"step {step} has a gradient to compare"
        gap = float((found - expected).abs().max() / expected.abs().max())
        cosine = float(torch.cosine_similarity(found.double(), expected.double(), dim=0))
        print(
            f"step {step}: cosine {cosine:.9f}, norm ratio {float(found.norm() / expected.norm()):.9f}, gap {gap:.1e}"
        )
        assert gap < TOLERANCE
    assert theirs.generated == ours.generated
    # Adam divides an entry of the gradient by its size, so rounding moves single weights with small gradients far.
    apart = float((theirs.weights[-1] - ours.weights[-1]).norm() / (ours.weights[-1] - ours.weights[0]).norm())
    print(f"weights at the end: {apart:.1e} of their way apart")
    assert apart < 1e-3
    rows = [row for row in log if "selfcest/return" in row]
    assert [row["selfcest/policy_lag"] for row in rows] == [0, 1, 1, 1]
    assert rows[0]["ratio"] == pytest.approx(1, abs=1e-5), "the first step is on policy"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"workers": 1, "cluster": {"rollout_workers": 2}},
            "cluster is .*; set it to null: TRL's trainer has one process",
        ),
        ({f"{RL}__probes": 2}, r"rl\.probes is 2; set it to 0: TRL's trainer plays no probes"),
        ({f"{RL}__sampled_tokens": 500}, r"rl\.sampled_tokens is 500; set it to null: TRL ends after rl\.steps"),
    ],
)
def test_what_the_trainer_would_ignore_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    trainer = open_trainer(spec(tmp_path, **changes), "delegating", 0, tmp_path)
    with pytest.raises(ConfigError, match=words), trainer:
        pass


def test_what_follows_from_the_rollouts_is_not_set_twice(
    tmp_path: Path, warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_trainer(spec(tmp_path), "delegating", 0, warm) as trainer:
        with pytest.raises(ConfigError, match="temperature follows from the run's config, here 1.0; set it there"):
            make_async_grpo_trainer(TrlRolloutWorker(trainer, rows=8), warm, tmp_path, temperature=0.5)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ConfigError, match="found WORLD_SIZE=2; rollouts and updates alternate in one process"):
            make_async_grpo_trainer(TrlRolloutWorker(trainer, rows=8), warm, tmp_path)
