"""Policies of a study with known accuracy and cost, and how they are made to fail. Loaded as plug-ins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfcest_agents.codec import TerseCodec
from selfcest_agents.player import LocalPlayer
from selfcest_agents.policy import Actor, Policy, PolicyRequest, ScriptedPolicy
from selfcest_agents.scripted import OracleActor, RandomActor
from selfcest_agents.tiny import TinyTokenizer
from selfcest_env.graders import Grade
from selfcest_env.record import Generation
from selfcest_env.rules import Rules
from selfcest_env.tasks.ledger_qa import LedgerQA
from selfcest_env.tasks.mixture import Mixture
from selfcest_env.tasks.range_sum import RangeSum
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import Answer, CloneRequest, Delegate, Limits, Read, Role, Task, TurnKey
from selfcest_env.views import Observation
from selfcest_eval.play.digest import digest
from selfcest_eval.play.strategies import Strategy

CODEC, PROTOCOL = TerseCodec(TinyTokenizer()), TerseProtocol()
HERMES = HermesProtocol()
EXPERT = Mixture((RangeSum(), LedgerQA()))
loads, roots = list[int](), Counter[str]()  # seeds that were loaded; first turns of roots by task
fail_after: list[int] = []  # how many more first turns until the machine is cut off


class CutOff(Exception):
    """Somebody pulled the plug."""


class Counting:
    """Another policy, counted."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for request in requests:
            if request.observation.role is Role.ROOT and not request.observation.turn:
                roots[request.observation.brief.text] += 1
                if fail_after:
                    fail_after[0] -= 1
                    if fail_after[0] < 0:
                        raise CutOff
        self._policy.submit(requests)

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        return self._policy.poll()


@dataclass(frozen=True)
class ScriptedPlayer(LocalPlayer):
    actor: Actor
    make_rules: Callable[[Limits], Rules]
    codec: TerseCodec | None = CODEC

    def rules(self, limits: Limits) -> Rules:
        return self.make_rules(limits)

    def policy(self, temperature: float) -> Policy:
        return Counting(ScriptedPolicy(self.actor, self.codec))


@dataclass(frozen=True)
class Scripted:
    """A source whose weights are its options."""

    version: int = 0
    seeded: bool = False

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, PROTOCOL, CODEC)

    def fingerprint(self, seed: int) -> str:
        return digest(type(self).__name__, self.version, seed if self.seeded else None)

    @property
    def actor(self) -> Actor:
        return OracleActor(EXPERT, PROTOCOL)

    def load(self, seed: int) -> ScriptedPlayer:
        loads.append(seed)
        return ScriptedPlayer(self.actor, self.rules)


@dataclass(frozen=True)
class Noise(Scripted):
    """Anything at all."""

    @property
    def actor(self) -> Actor:
        return RandomActor(PROTOCOL)


@dataclass(frozen=True)
class Guess:
    """Right with probability `right`, after a thought of so many tokens; wrong answers are all the same."""

    right: float
    tokens: int
    clones: int = 0

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        if self.clones and observation.can_delegate and not observation.exchanges:
            return PROTOCOL.render(Delegate((CloneRequest("+"),) * self.clones))
        answer = "1" if rng.random() < self.right else "0"
        return PROTOCOL.render(Answer(answer), "+" * (self.tokens - 3))  # <ans>, the answer, <end>


@dataclass(frozen=True)
class Known(Scripted):
    """`Guess` as a policy."""

    right: float = 0.5
    tokens: int = 10
    clones: int = 0

    def fingerprint(self, seed: int) -> str:
        return digest("known", self.right, self.tokens, self.clones)

    @property
    def actor(self) -> Actor:
        return Guess(self.right, self.tokens, self.clones)


@dataclass(frozen=True)
class Look:
    """Gives documents `a` and `b` to a clone each, or reads `a`, and answers.

    Attributes:
        by_chance: it reads `a` or `b`, and knows the answer only from `b`.
    """

    by_chance: bool = False

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        knows = True
        if observation.exchanges:
            knows = not self.by_chance or "b" in (observation.exchanges[-1].documents or {})
        elif observation.can_delegate:
            return HERMES.render(Delegate((CloneRequest("Look.", ("a",)), CloneRequest("Look.", ("b",)))))
        elif observation.can_read:
            return HERMES.render(Read(("b" if self.by_chance and rng.random() < 0.5 else "a",)))
        return HERMES.render(Answer("red house in Ulm" if knows else "?"))


@dataclass(frozen=True)
class Looking(Scripted):
    """`Look` as a policy of text."""

    by_chance: bool = False

    def rules(self, limits: Limits) -> Rules:
        return Rules(limits, HERMES, WordCounter())

    def fingerprint(self, seed: int) -> str:
        return digest("looking", self.by_chance)

    def load(self, seed: int) -> ScriptedPlayer:
        return ScriptedPlayer(Look(self.by_chance), self.rules, codec=None)


class Contrary:
    """A grader that likes no answer that is right."""

    def grade(self, task: Task, answer: str | None) -> Grade:
        right = answer is not None and answer != task.answer
        return Grade(float(right), right, answer is not None)


@dataclass(frozen=True)
class OneClone(Strategy):
    """Delegation with so many clones: a strategy of one's own."""

    clones: int = 1

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_clones=self.clones)


class Floors:
    """A grader that could not say of some answers what its rule is."""

    def grade(self, task: Task, answer: str | None) -> Grade:
        right = answer == task.answer
        return Grade(float(right), right, answer is not None, "" if right or answer is None else "too hard to say")
