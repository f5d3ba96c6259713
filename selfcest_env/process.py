"""Process rewards: a judge of single turns, as a reward term.

A judge sees one turn and its agent's past, but neither the outcome, nor a sibling, nor a later turn. So the reward of
a turn depends only on the turns that it descends from, which the credit scheme `to_go` requires. A judge gets all turns
of a rollout in one call, and equal turns once: replays keep most turns of their episode.

    @dataclass(frozen=True)
    class Politeness(ProcessTerm):
        weight: float = 0.1

        def judge(self, steps: Sequence[ProcessStep]) -> list[float]:
            return [self.weight * ("please" in step.text) for step in steps]

A reward for every turn pays for taking turns and for spawning clones that take some; mind the sign.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from selfcest_env.errors import InfrastructureError
from selfcest_env.graders import Grade
from selfcest_env.record import AgentRecord, ByTurn, EpisodeRecord, Turn
from selfcest_env.structure import to_builtins
from selfcest_env.types import Fault, Outcome, Role, Status, Task, TurnKey

REMEMBERED = 200_000  # cached judgements of earlier calls, some tens of megabytes
Named = tuple[AgentRecord, list[bytes]]


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier turn of the agent: its text, its outcome, and the reply to each objective of its call."""

    text: str
    outcome: Outcome
    fault: Fault | None
    replies: tuple[str | None, ...]


@dataclass(frozen=True)
class ProcessStep:
    """One turn with everything that a judge may see.

    Attributes:
        task: of the episode, ground truth included.
        depth: of the agent in the tree; 0 is the root.
        objective: what the agent was asked; of the root the prompt.
        shared_context: keys of the documents that it was handed. What it has read since stands in its calls alone.
        past: its earlier turns.
        text: what it wrote.
        outcome, fault: what that came to.
        generated_tokens: what that cost.
        status: how the agent ended, if this is its last turn: a reward of an agent as a whole is one of that turn.
    """

    task: Task
    depth: int
    objective: str
    shared_context: tuple[str, ...]
    past: tuple[PastTurn, ...]
    text: str
    outcome: Outcome
    fault: Fault | None
    generated_tokens: int
    status: Status | None

    @property
    def role(self) -> Role:
        return Role.CLONE if self.depth else Role.ROOT


class ProcessTerm(ABC):
    """Base of a reward term that judges turns; its value is their sum. A subclass has `judge`, and options."""

    @abstractmethod
    def judge(self, steps: Sequence[ProcessStep]) -> Sequence[float | InfrastructureError]:
        """One finite number for each step, from it alone: equal steps are judged once and remembered.

        An `InfrastructureError` stands for a step that a server's fault has left unjudged.
        """

    def prepare(self, records: Sequence[EpisodeRecord]) -> None:
        """Judge what is new in these records, or was left unjudged, in one call.

        Raises `ValueError` for another number of judgements than steps, or one that is not finite.
        """
        for name in [name for name, judged in self._judged.items() if isinstance(judged, InfrastructureError)]:
            del self._judged[name]
        for name in list(islice(self._judged, max(0, len(self._judged) - REMEMBERED))):
            del self._judged[name]
        self._judge_new([(record, _digest_turns(record)) for record in records])

    def by_turn(self, record: EpisodeRecord) -> ByTurn:
        """Raises `InfrastructureError` if a step was left unjudged; the next `prepare` has it judged again."""
        if len(self._judged) > 2 * REMEMBERED:  # of somebody who prepares nothing
            self.prepare([record])
        named = list(_digest_turns(record))
        self._judge_new([(record, named)])
        return {agent.agent_id: tuple(map(self._known, names)) for agent, names in named}

    def _known(self, name: bytes) -> float:
        judged = self._judged[name]
        if isinstance(judged, InfrastructureError):
            raise InfrastructureError(str(judged)) from judged
        return judged

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return sum_turns(self.by_turn(record))

    def _judge_new(self, records: Iterable[tuple[EpisodeRecord, Iterable[Named]]]) -> None:
        new: dict[bytes, tuple[EpisodeRecord, AgentRecord, int]] = {}
        for record, named in records:
            for agent, names in named:
                new.update({name: (record, agent, i) for i, name in enumerate(names) if name not in self._judged})
        if not new:
            return
        judgements: Sequence[float | InfrastructureError]
        try:
            judgements = self.judge([_make_step(*place) for place in new.values()])
        except InfrastructureError as error:
            judgements = [error] * len(new)
        values = [value if isinstance(value, InfrastructureError) else float(value) for value in judgements]
        if len(values) != len(new):
            raise ValueError(
                f"{type(self).__name__}.judge gave {len(values)} numbers for {len(new)} steps; expected one for each"
            )
        for value, (record, agent, turn) in zip(values, new.values(), strict=True):
            if isinstance(value, float) and not math.isfinite(value):
                key = TurnKey(record.episode_id, agent.agent_id, turn)
                raise ValueError(f"{type(self).__name__}.judge gave {value} for {key}; expected a finite number")
        self._judged.update(zip(new, values, strict=True))

    @cached_property
    def _judged(self) -> dict[bytes, float | InfrastructureError]:
        return {}


def sum_turns(turns: ByTurn) -> float:
    """Return the sum over the turns of all agents."""
    return math.fsum(value for values in turns.values() for value in values)


def _make_step(record: EpisodeRecord, agent: AgentRecord, index: int) -> ProcessStep:
    past = tuple(
        PastTurn(turn.generation.text, turn.facts.outcome, turn.facts.fault, _replies(record, turn))
        for turn in agent.turns[:index]
    )
    turn = agent.turns[index]
    is_last = index == len(agent.turns) - 1
    return ProcessStep(
        record.task,
        agent.depth,
        agent.objective,
        agent.shared_context,
        past,
        turn.generation.text,
        turn.facts.outcome,
        turn.facts.fault,
        turn.facts.generated_tokens,
        agent.status if is_last else None,
    )


def _replies(record: EpisodeRecord, turn: Turn) -> tuple[str | None, ...]:
    """Return the reply to each objective of a turn's call; `None` where a clone was refused or did not reply."""
    children = iter(turn.facts.children)
    refused = turn.facts.refused
    num_objectives = len(turn.facts.children) + len(refused)
    return tuple(
        None if position in refused else record.by_id[next(children)].reply for position in range(num_objectives)
    )


def _digest_turns(record: EpisodeRecord) -> Iterator[Named]:
    """Yield every agent with a digest for each of its turns. Digests are equal only for equal steps of equal tasks."""
    task = _digest(to_builtins(record.task))
    for agent in record.agents:
        digests = []
        # A chain of digests: of the past before a turn, then of the turn, then with the replies that it got.
        past = _digest(task.hex(), agent.depth, agent.objective, agent.shared_context)
        for index, turn in enumerate(agent.turns):
            facts = turn.facts
            is_last = index == len(agent.turns) - 1
            step = _digest(past.hex(), turn.generation.text, facts.outcome, facts.fault, facts.generated_tokens)
            digests.append(_digest(step.hex(), agent.status if is_last else None))
            past = _digest(step.hex(), _replies(record, turn))
        yield agent, digests


def _digest(*values: object) -> bytes:
    text = json.dumps(values, sort_keys=True).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
