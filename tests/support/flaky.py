"""Engines and judges whose server fails, for tests. Loaded as plug-ins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from study_players import Known, Scripted, ScriptedPlayer
from transformers import PreTrainedModel

from selfcest_agents.engine import Completion, FailedRequest
from selfcest_agents.language import Language
from selfcest_agents.policy import Policy, PolicyRequest
from selfcest_agents.samplers import Sampler
from selfcest_agents.transformers.engine import TransformersEngine
from selfcest_env.errors import InfrastructureError
from selfcest_env.process import ProcessStep, ProcessTerm
from selfcest_env.record import Generation
from selfcest_env.types import TurnKey


class FlakyEngine(TransformersEngine):
    """Loses the completions of requests whose key begins as one of `loses`, each key so many times."""

    loses: tuple[str, ...] = ()
    times = 1

    def poll(self) -> list[Completion | FailedRequest]:  # type: ignore[override]
        return [self._seen(completion) for completion in super().poll()]

    def _seen(self, completion: Completion) -> Completion | FailedRequest:
        self.lost = getattr(self, "lost", Counter[str]())
        if not completion.key.startswith(self.loses or ("none",)) or self.lost[completion.key] >= self.times:
            return completion
        self.lost[completion.key] += 1
        return FailedRequest(completion.key, InfrastructureError(f"{completion.key} failed 6 times, at last by 503"))


@dataclass(frozen=True)
class FlakySampler:
    """What starts it."""

    loses: tuple[str, ...]
    times: int = 1

    shared: bool = field(default=True, init=False)
    max_positions: None = field(default=None, init=False)

    def start(self, language: Language, model: PreTrainedModel) -> Sampler:
        engine = FlakyEngine(model, stop_ids=language.stop_ids)
        engine.loses, engine.times = self.loses, self.times
        return Sampler(engine, shared=True, exact=True)


@dataclass(frozen=True)
class FlakyJudge(ProcessTerm):
    """Marks every turn with 0.25; fails on turns that begin as `loses`, the first `times` of them."""

    loses: str
    times: int = 1
    asked: list[str] = field(default_factory=list, compare=False)

    def judge(self, steps: Sequence[ProcessStep]) -> list[float | InfrastructureError]:
        found: list[float | InfrastructureError] = []
        for step in steps:
            failed = sum(text.startswith(self.loses) for text in self.asked)
            fails = step.text.startswith(self.loses) and failed < self.times
            found.append(InfrastructureError("the judge gave a turn no mark in 3 tries") if fails else 0.25)
            self.asked.append(step.text)
        return found


loses: list[Callable[[PolicyRequest], bool]] = []  # which turns of a `LosingSource` are lost


class Losing:
    """Another policy, of which turns are lost."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._lost = policy, list[TurnKey]()

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self._lost += [request.key for request in requests if any(lost(request) for lost in loses)]
        self._policy.submit(requests)

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:
        down = InfrastructureError("request failed 6 times, at last by status 503")
        lost, self._lost = self._lost, []
        return [(key, down if key in lost else said) for key, said in self._policy.poll()]


@dataclass(frozen=True)
class LosingPlayer(ScriptedPlayer):
    def policy(self, temperature: float) -> Policy:
        return Losing(super().policy(temperature))


@dataclass(frozen=True)
class LosingSource(Known):
    """A policy for a study whose server fails."""

    def load(self, seed: int) -> ScriptedPlayer:
        return LosingPlayer(self.actor, self.rules)


@dataclass(frozen=True)
class LosingExpert(Scripted):
    """The same of one that delegates."""

    def load(self, seed: int) -> ScriptedPlayer:
        return LosingPlayer(self.actor, self.rules)
