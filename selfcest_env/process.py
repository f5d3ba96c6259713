"""Process rewards: a judge of single turns, as a reward term.

A judge sees one turn and what its agent had seen by then: never the outcome, a sibling, or what came later. So what a
turn is given cannot be moved by a turn that it does not descend from, on which `to_go` rests. It is asked about all
turns of a rollout at once, and about equal ones once: replays keep most of their episode's.

    @dataclass(frozen=True)
    class Politeness(ProcessTerm):
        weight: float = 0.1

        def judge(self, steps: Sequence[Step]) -> list[float]:
            return [self.weight * ("please" in step.text) for step in steps]

A reward for every turn pays for taking turns and for spawning clones that take some; mind the sign.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from selfcest_env.graders import Grade
from selfcest_env.record import AgentRecord, EpisodeRecord
from selfcest_env.types import AgentId, Fault, Outcome, Role, Task

_REMEMBERED = 200_000  # judgements: some tens of megabytes


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier turn of the agent: what it wrote, what came of it, and of a call the replies, `None` for a failure."""

    text: str
    outcome: Outcome
    fault: Fault | None
    replies: tuple[str | None, ...]


@dataclass(frozen=True)
class Step:
    """One turn, as far as it may be judged.

    Attributes:
        task: of the episode, ground truth included; equal ids mean equal problems.
        depth: of the agent in the tree; 0 is the root.
        objective: what the agent was asked; of the root the prompt.
        shared_context: keys of the documents that it was handed.
        past: its earlier turns.
        text: what it wrote.
        outcome, fault: what that came to.
        generated_tokens: what that cost.
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

    @property
    def role(self) -> Role:
        return Role.CLONE if self.depth else Role.ROOT


def steps_of(record: EpisodeRecord, agent: AgentRecord) -> Iterator[Step]:
    """Every turn of an agent, in order."""
    past: tuple[PastTurn, ...] = ()
    for turn in agent.turns:
        facts, text = turn.facts, turn.generation.text
        yield Step(
            record.task,
            agent.depth,
            agent.objective,
            agent.shared_context,
            past,
            text,
            facts.outcome,
            facts.fault,
            facts.generated_tokens,
        )
        replies = tuple(record.by_id[child].reply for child in facts.children)
        past = (*past, PastTurn(text, facts.outcome, facts.fault, replies))


class ProcessTerm(ABC):
    """Base of a reward term that judges turns; its value is their sum. A subclass is a class with options and `judge`.

    A judgement of an agent as a whole is one of its last turn, whose outcome says that it is the last.
    """

    @abstractmethod
    def judge(self, steps: Sequence[Step]) -> Sequence[float]:
        """One finite number for each step, from it alone: equal steps are judged once and remembered."""

    def prepare(self, records: Sequence[EpisodeRecord]) -> None:
        """Judge what is new in these records, in one call.

        Raises `ValueError` for another number of judgements than steps.
        """
        new: dict[bytes, Step] = {}
        for record in records:
            for agent in record.agents:
                for step in steps_of(record, agent):
                    if (name := _digest(step)) not in self._judged:
                        new[name] = step
        if not new:
            return
        judgements = list(self.judge(list(new.values())))
        if len(judgements) != len(new):
            raise ValueError(f"{type(self).__name__}.judge gave {len(judgements)} numbers for {len(new)} steps")
        self._judged.update(zip(new, judgements, strict=True))

    def by_turn(self, record: EpisodeRecord) -> Mapping[AgentId, tuple[float, ...]]:
        self.prepare([record])
        found = {
            agent.agent_id: tuple(self._judged[_digest(step)] for step in steps_of(record, agent))
            for agent in record.agents
        }
        for name in list(islice(self._judged, max(0, len(self._judged) - _REMEMBERED))):
            del self._judged[name]
        return found

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return sum(sum(judgements) for judgements in self.by_turn(record).values())

    @cached_property
    def _judged(self) -> dict[bytes, float]:
        return {}


def _digest(step: Step) -> bytes:
    """The same for equal steps of equal tasks."""
    past = [[turn.text, turn.outcome, turn.fault, turn.replies] for turn in step.past]
    known = [step.task.source, step.task.task_id, step.depth, step.objective, step.shared_context, past]
    said = json.dumps([*known, step.text, step.outcome, step.fault, step.generated_tokens])
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).digest()
