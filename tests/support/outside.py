"""One of everything that can be added, as somebody would write it in a package of their own. Each leaves a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_agents.language import Language
from selfcest_agents.samplers import Sampler
from selfcest_agents.tiny import TinyLanguage
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_baselines.broadcast import BroadcastLearner
from selfcest_baselines.learner import MarlLearner
from selfcest_baselines.progress import Examiner
from selfcest_baselines.rollout import Rollout
from selfcest_env.graders import Grade
from selfcest_env.process import ProcessStep, ProcessTerm
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.tasks import Chain
from selfcest_env.tasks.source import Proposal, Style
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import Answer, Limits, Task
from selfcest_env.views import Observation
from selfcest_eval.play.costs import EpisodeCost
from selfcest_eval.play.strategies import Strategy
from selfcest_training.credit import Credit, CreditAssigner, Promise, ReplayRecords, broadcast
from selfcest_training.learner.losses import LossInputs
from selfcest_training.stages.base import FilterResult, PlannedGroup, TaskMenu

seen: Counter[str] = Counter()  # by the row of the table


@dataclass(frozen=True)
class Echo:
    """A task source with its expert: say the number again."""

    largest: int = 9

    def draw(self, rng: np.random.Generator) -> Task:
        seen["task source"] += 1
        number = int(rng.integers(self.largest * 100))
        return Task(f"echo-{number}", f"{number}?", str(number % 10), "echo")

    def understands(self, observation: Observation) -> bool:
        return True

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        return Proposal(Answer(observation.brief.text.rstrip("?")[-1]))


class LastCharacter:
    """A grader."""

    def grade(self, task: Task, answer: str | None) -> Grade:
        seen["grader"] += 1
        right = bool(answer) and answer[-1] == task.answer
        return Grade(float(right), right, bool(answer))


@dataclass(frozen=True)
class PerTurn:
    """A reward term."""

    price: float

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        seen["reward term"] += 1
        return -self.price * record.cost.turns


@dataclass(frozen=True)
class Praise(ProcessTerm):
    """A process reward."""

    weight: float

    def judge(self, steps: Sequence[ProcessStep]) -> list[float]:
        seen["process reward"] += 1
        return [self.weight * (step.generated_tokens < 9) for step in steps]


class Halving:
    """A reward schedule."""

    def weights(self, step: int) -> Mapping[str, float]:
        seen["reward schedule"] += 1
        return {"per_turn": 0.5**step}

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        pass


class Twins:
    """A task sampler: every second task is the one before it, and has a rollout more."""

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        seen["task sampler"] += 1
        tasks = [menu.sources["echo"].draw(rng) for _ in range(num_tasks // 2)]
        return [PlannedGroup(task, menu.group_size + more) for task in tasks for more in (0, 1)]

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        pass


class NotTheFirst:
    """A group filter."""

    def filter(self, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int) -> FilterResult:
        seen["group filter"] += 1
        return FilterResult(tuple(groups[1:]))


class Raw(CreditAssigner):
    """A credit scheme: the return itself."""

    name = "raw"
    formula = "A = R"
    source = "Williams 1992"
    promise = Promise.UNBIASED
    null_player = False

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        seen["credit scheme"] += 1
        return Credit(broadcast(group, [episode.team_return for episode in group.episodes]))


class Reinforce:
    """A loss term for the policy."""

    def __call__(self, inputs: LossInputs) -> Tensor:
        seen["loss term"] += 1
        return -inputs.advantages * inputs.logprobs


class Surprise:
    """A loss term that is added."""

    def __call__(self, inputs: LossInputs) -> Tensor:
        seen["loss term"] += 1
        return -inputs.logprobs


class Watched(TransformersEngine):
    """An engine."""

    def poll(self) -> list[object]:  # type: ignore[override]
        seen["engine"] += 1
        return super().poll()  # type: ignore[return-value]


@dataclass(frozen=True)
class WatchedSampler:
    """What starts it."""

    shared: bool = True
    max_positions: int | None = None

    def start(self, language: Language, model: PreTrainedModel) -> Sampler:
        engine = Watched(model, stop_ids=language.stop_ids)
        return Sampler(engine, shared=True, exact=model.dtype == torch.float32)


@dataclass(frozen=True)
class Whisper(TinyLanguage):
    """A language."""

    def load(self, *arguments: object, **options: object) -> PreTrainedModel:
        seen["language"] += 1
        return super().load(*arguments, **options)  # type: ignore[arg-type]


class Polite(TerseProtocol):
    """A protocol."""

    def parse(self, text: str):  # type: ignore[no-untyped-def]
        seen["protocol"] += 1
        return super().parse(text)


@dataclass(frozen=True)
class Frugal(Strategy):
    """A strategy: half of the budget."""

    def limits(self, limits: Limits, task: Task) -> Limits:
        seen["strategy"] += 1
        total = limits.total_tokens
        return Limits(total_tokens=None if total is None else total // 2, turn_tokens=limits.turn_tokens, max_depth=0)


@dataclass(frozen=True)
class Squared(EpisodeCost):
    """A cost."""

    scale: float = 1.0

    def of(self, episode: EpisodeRecord) -> float:
        seen["cost"] += 1
        return self.scale * episode.cost.total_tokens**2


@dataclass(frozen=True)
class Short(Chain):
    """A symbolic task."""

    name: ClassVar[str] = "short"
    items: int | tuple[int, int] = 3


@dataclass(frozen=True)
class Blunt(BroadcastLearner):
    """A MARL credit: the return as it is."""

    scale: float = 1.0

    def advantages(self, rollout: Rollout) -> Tensor:
        seen["MARL credit"] += 1
        return self.scale * rollout.returns[rollout.game]


@dataclass(frozen=True)
class Idle(MarlLearner):
    """A MARL learner that learns nothing."""

    def learn(self, rules: SymbolicRules, seed: int, examiner: Examiner) -> None:
        while not examiner(seen["MARL learner"], lambda observations, masks: masks.int().argmax(-1)):
            seen["MARL learner"] += 1
