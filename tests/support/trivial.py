"""A task with one right answer and two ways to give it: alone, or through a clone. Loaded as a plug-in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_agents.language import Language
from selfcest_agents.openai_client import ServerConfig
from selfcest_agents.openai_engine import OpenAIEngine
from selfcest_agents.samplers import Sampler
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.graders import Grade
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.tasks.source import Proposal, Style
from selfcest_env.types import ROOT, Answer, CloneRequest, Delegate, Role, Task
from selfcest_env.views import Observation
from selfcest_training.credit import Credit, ReplayRecords, Rloo
from selfcest_training.learner.losses import LossInputs


@dataclass(frozen=True)
class Choice:
    """Prompts `0` to `199` in letters; the answer is always 1."""

    def draw(self, rng: np.random.Generator) -> Task:
        number = int(rng.integers(200))
        return Task(f"choice-{number}", f"{number}?", "1", "choice")

    def understands(self, observation: Observation) -> bool:
        return True

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        if style is Style.DELEGATE and observation.role is Role.ROOT and not observation.exchanges:
            return Proposal(Delegate((CloneRequest("x"),)))
        return Proposal(Answer("1"))


@dataclass(frozen=True)
class PerClone:
    """A reward term: so much for every clone."""

    value: float

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return self.value * record.cost.clones


class Broken:
    """A reward term that raises."""

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        raise KeyError("score")


class NotANumber:
    """A reward term that is not a number."""

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return float("nan")


class LeavesOut(Rloo):
    """A credit scheme that forgets every root."""

    name = "leaves_out"

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = super().assign(group, replayed).advantage
        return Credit({key: value for key, value in advantage.items() if key.agent_id != ROOT})


class NotANumberCredit(Rloo):
    """A credit scheme that divides by zero."""

    name = "not_a_number"

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        return Credit(dict.fromkeys(super().assign(group, replayed).advantage, float("nan")))


class AsksForNobody(Rloo):
    """A credit scheme that asks for a clone that there is not."""

    name = "asks_for_nobody"

    def replays(self, group: EpisodeGroup) -> list[Replay]:
        return [Replay.of(group.episodes[0].episode_id, {ROOT.child(9): Intervention.DEFAULT})]


@dataclass(frozen=True)
class Served:
    """A sampler behind a server, which takes no weights."""

    shared: bool = False
    max_positions: int | None = None

    def start(self, language: Language, model: PreTrainedModel) -> Sampler:
        config = ServerConfig("http://127.0.0.1:9/v1", "nobody")
        return Sampler(OpenAIEngine(config, stop_ids=language.stop_ids), shared=False, exact=False)  # type: ignore[arg-type]


class NoSampler:
    """Starts nothing."""

    shared, max_positions = False, None


class OfClones:
    """The log-probs of clones, deeper ones more."""

    def __call__(self, inputs: LossInputs) -> Tensor:
        return torch.where(inputs.is_clone, inputs.depth * inputs.logprobs, 0.0)


class NeedsMuch(OfClones):
    """Needs what there is not."""

    needs = ("reference", "everything")


@dataclass(frozen=True)
class Continued(TinyLanguage):
    """The tiny model, which begins with the weights in a folder."""

    weights: str = ""

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        return super().load(seed, folder or Path(self.weights), dtype)
