"""Process rewards: a judge of single turns, as a reward term.

A judge sees one turn and what its agent had seen by then: never the outcome, a sibling, or what came later. So what a
turn is given cannot be moved by a turn that it does not descend from, on which `to_go` rests. It is asked about all
turns of a rollout at once, and about equal ones once: replays keep most of their episode's.

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

REMEMBERED = 200_000  # judgements of earlier calls: some tens of megabytes
Named = tuple[AgentRecord, list[bytes]]


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier turn of the agent: what it wrote, what came of it, and of a call a reply for each objective, `None`
    where there was none."""

    text: str
    outcome: Outcome
    fault: Fault | None
    replies: tuple[str | None, ...]


@dataclass(frozen=True)
class ProcessStep:
    """One turn, as far as it may be judged.

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
        self._judge_new([(record, _named(record)) for record in records])

    def by_turn(self, record: EpisodeRecord) -> ByTurn:
        """Raises `InfrastructureError` if a step was left unjudged; the next `prepare` has it judged again."""
        if len(self._judged) > 2 * REMEMBERED:  # of somebody who prepares nothing
            self.prepare([record])
        named = list(_named(record))
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
        said: Sequence[float | InfrastructureError]
        try:
            said = self.judge([_make_step(*place) for place in new.values()])
        except InfrastructureError as error:
            said = [error] * len(new)
        found = [value if isinstance(value, InfrastructureError) else float(value) for value in said]
        if len(found) != len(new):
            raise ValueError(f"{type(self).__name__}.judge gave {len(found)} numbers for {len(new)} steps")
        for value, (record, agent, turn) in zip(found, new.values(), strict=True):
            if isinstance(value, float) and not math.isfinite(value):
                key = TurnKey(record.episode_id, agent.agent_id, turn)
                raise ValueError(f"{type(self).__name__}.judge gave {value} for {key}; expected a finite number")
        self._judged.update(zip(new, found, strict=True))

    @cached_property
    def _judged(self) -> dict[bytes, float | InfrastructureError]:
        return {}


def sum_turns(turns: ByTurn) -> float:
    """What the turns of all agents add up to."""
    return math.fsum(value for values in turns.values() for value in values)


def _make_step(record: EpisodeRecord, agent: AgentRecord, index: int) -> ProcessStep:
    past = tuple(
        PastTurn(turn.generation.text, turn.facts.outcome, turn.facts.fault, _replies(record, turn))
        for turn in agent.turns[:index]
    )
    turn, last = agent.turns[index], index == len(agent.turns) - 1
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
        agent.status if last else None,
    )


def _replies(record: EpisodeRecord, turn: Turn) -> tuple[str | None, ...]:
    children, refused = iter(turn.facts.children), turn.facts.refused
    asked = len(turn.facts.children) + len(refused)
    return tuple(None if place in refused else record.by_id[next(children)].reply for place in range(asked))


def _named(record: EpisodeRecord) -> Iterator[Named]:
    """Every agent with a name for each of its turns: the same for equal steps of equal tasks, and for no others."""
    task = _digest(to_builtins(record.task))
    for agent in record.agents:
        seen, names = _digest(task.hex(), agent.depth, agent.objective, agent.shared_context), []
        for index, turn in enumerate(agent.turns):
            facts, last = turn.facts, index == len(agent.turns) - 1
            wrote = _digest(seen.hex(), turn.generation.text, facts.outcome, facts.fault, facts.generated_tokens)
            names.append(_digest(wrote.hex(), agent.status if last else None))
            seen = _digest(wrote.hex(), _replies(record, turn))
        yield agent, names


def _digest(*said: object) -> bytes:
    text = json.dumps(said, sort_keys=True).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
