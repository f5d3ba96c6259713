"""The recipe epo.yaml: a root that is trained by process rewards proposes, and clones that are not trained act."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_job import config, play, rows
from transformers import AutoModelForCausalLM

from selfcest_env.graders import Grade
from selfcest_env.process import ProcessStep, ProcessTerm
from selfcest_env.record import EpisodeRecord
from selfcest_env.structure import to_builtins
from selfcest_env.tasks.source import Proposal, Style
from selfcest_env.types import Answer, CloneRequest, Delegate, Role, Task
from selfcest_env.views import Observation
from selfcest_training.config_file import load_config
from selfcest_training.run.job import Job, JobId

RECIPE = load_config(Path(__file__).parents[2] / "training" / "configs" / "methods" / "epo.yaml")
RL = "variants__delegating__rl"
WARM_START = "variants__delegating__warmstart"
ANSWERS = {"a": "1", "b": "2"}  # of a clone, by the strategy that it is told


@dataclass(frozen=True)
class Strategies:
    """Tasks whose right answer a clone gives if it is told one strategy. Their prompts do not name the strategy."""

    strategy: str

    def draw(self, rng: np.random.Generator) -> Task:
        number = int(rng.integers(200))
        return Task(f"{self.strategy}-{number}", f"{number}?", ANSWERS[self.strategy], "strategies")

    def understands(self, observation: Observation) -> bool:
        return True

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        if observation.role is Role.CLONE:
            return Proposal(Answer(ANSWERS[observation.brief.text]))
        if not observation.exchanges:
            return Proposal(Delegate((CloneRequest(self.strategy),)))
        return Proposal(Answer(ANSWERS[self.strategy]))


@dataclass(frozen=True)
class StrategyMark(ProcessTerm):
    """A judge of proposals, which sees no outcome."""

    def judge(self, steps: Sequence[ProcessStep]) -> list[float]:
        # Later turns get no mark, or it would be worth proposing again and again.
        return [float(step.role is Role.ROOT and not step.past and "<call>a<" in step.text) for step in steps]


@dataclass(frozen=True)
class ActorIsRight:
    """The outcome: a clone has the right answer, whatever the root makes of it. It weighs little beside the mark."""

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return 0.01 * any(agent.reply == record.task.answer for agent in record.agents[1:])


@pytest.mark.slow
def test_the_actor_is_right_more_often_although_only_the_strategist_has_learned(tmp_path: Path) -> None:
    demonstrated = {"share": 0.5, "styles": {"delegate": 1}}
    phase = {"tokens": 40000, "mix": dict.fromkeys(ANSWERS, demonstrated)}
    changes: dict[str, Any] = {
        "tasks": {name: {"name": "test_epo:Strategies", "options": {"strategy": name}} for name in ANSWERS},
        f"{WARM_START}__phases": [phase],
        f"{RL}__tasks": {"a": 1},
    }
    warm = Job(config(tmp_path / "warm", **changes), JobId("delegating", 0), lambda *_: None)
    warm.run(lambda: None, only_warm_start=True)
    changes |= {
        "model": {"name": "trivial:Continued", "options": {
            **warm.config.model.options, "weights": str(warm.folder / "warmstart_model")
        }},
        "lora": to_builtins(RECIPE.lora),
        # The attention of the tiny model computes no guesses.
        "sampler": {"name": RECIPE.sampler.name, "options": {**RECIPE.sampler.options, "draft_tokens": 0}},
        "reward": {"name": "correct", "options": {
            "correct": None, "outcome": {"name": "test_epo:ActorIsRight"}, "mark": {"name": "test_epo:StrategyMark"}
        }},
        f"{WARM_START}__phases": [{**phase, "tokens": 2000}],
        f"{WARM_START}__pool_tokens": 1000,
        f"{RL}__credit": to_builtins(RECIPE.variants["delegating"].rl.credit),
        f"{RL}__optimizer__learning_rate": 4e-3,
        f"{RL}__steps": 9,
    }  # fmt: skip
    job = play(config(tmp_path / "run", **changes))
    outcomes = [100 * row["term/outcome"] for row in rows(job)]
    marks = [row["term/mark"] for row in rows(job)]
    assert 0.2 < marks[0] < 0.7, "the warm start proposes both strategies"
    assert np.mean(marks[-3:]) > 0.85
    assert np.mean(outcomes[-3:]) > outcomes[0] + 0.2
    start, roots, clones = (
        AutoModelForCausalLM.from_pretrained(job.folder / name).state_dict()
        for name in ("warmstart_model", "model", "model/clones")
    )
    assert all(torch.equal(clones[name], start[name]) for name in start), "no bit of the actor has changed"
    assert not all(torch.equal(roots[name], start[name]) for name in start)
