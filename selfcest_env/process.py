"""Process rewards: a judge of single turns, as a reward term.

A judge sees one turn and its agent's past, but neither the outcome, nor a sibling, nor a later turn. So the reward of
a turn depends only on the turns that it descends from, which the credit scheme `to_go` requires. A judge gets all turns
of a rollout in one call, and equal turns once: replays keep most turns of their episode.

    @dataclass(frozen=True)
    class Politeness(ProcessTerm):
        weight: float = 0.1

        def judge(self, steps: Sequence[ProcessStep]) -> list[float]:
            return [self.weight * ("please" in step.text) for step in steps]

A positive reward per turn also rewards more turns, and more clones, since these take turns too.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice

from selfcest_env.errors import InfrastructureError
from selfcest_env.graders import Grade
from selfcest_env.record import AgentRecord, ByTurn, EpisodeRecord, Turn
from selfcest_env.structure import to_builtins
from selfcest_env.types import Fault, Outcome, Role, Status, Task, TurnKey

MAX_CACHED = 200_000  # cached judgements of earlier calls, some tens of megabytes
AgentDigests = tuple[AgentRecord, list[bytes]]  # an agent with a digest for each of its turns


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier turn of the agent: its text, its outcome, and the reply to each objective of its call."""

    text: str
    outcome: Outcome
    fault: Fault | None
    replies: tuple[str | None, ...]


@dataclass(frozen=True)
class ProcessStep:
    """One turn, with all that a judge may see.

    Attributes:
        task: task of the episode, ground truth included.
        depth: depth of the agent in the tree; 0 is the root.
        objective: the agent's objective; for the root, the prompt.
        shared_context: keys of the documents that it was given. Only its calls show which documents it has read since.
        past: its earlier turns.
        text: its generation in this turn.
        outcome, fault: the result of the turn.
        generated_tokens: tokens of the generation.
        status: the agent's final status if this is its last turn, else `None`. A reward for a whole agent belongs to
            its last turn.
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
    """Base of a reward term that judges turns. Its value is the sum over all turns of the episode."""

    @abstractmethod
    def judge(self, steps: Sequence[ProcessStep]) -> Sequence[float | InfrastructureError]:
        """Return one finite number for each step.

        It must depend on that step only, because equal steps are judged once and cached. An `InfrastructureError` in
        the place of a number marks a step that a server has failed to judge.
        """

    def prepare(self, records: Sequence[EpisodeRecord]) -> None:
        """Judge the steps of these records that are not cached yet in one call, and retry failed ones.

        Raises:
            ValueError: there are more or fewer judgements than steps, or one is not finite.
        """
        for digest, judgement in list(self._judgements.items()):
            if isinstance(judgement, InfrastructureError):
                del self._judgements[digest]
        for digest in list(islice(self._judgements, max(0, len(self._judgements) - MAX_CACHED))):  # the oldest ones
            del self._judgements[digest]
        self._judge_new([(record, _digest_turns(record)) for record in records])

    def by_turn(self, record: EpisodeRecord) -> ByTurn:
        """Return the judgement of each turn by agent.

        Raises:
            InfrastructureError: a server has failed to judge a step; the next `prepare` tries again.
        """
        if len(self._judgements) > 2 * MAX_CACHED:  # the caller never calls `prepare`, which empties the cache
            self.prepare([record])
        digests_by_agent = list(_digest_turns(record))
        self._judge_new([(record, digests_by_agent)])
        return {agent.agent_id: tuple(map(self._get_judgement, digests)) for agent, digests in digests_by_agent}

    def _get_judgement(self, digest: bytes) -> float:
        judgement = self._judgements[digest]
        if isinstance(judgement, InfrastructureError):
            raise InfrastructureError(str(judgement)) from judgement
        return judgement

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return sum_turns(self.by_turn(record))

    def _judge_new(self, records: Iterable[tuple[EpisodeRecord, Iterable[AgentDigests]]]) -> None:
        new: dict[bytes, tuple[EpisodeRecord, AgentRecord, int]] = {}
        for record, digests_by_agent in records:
            for agent, digests in digests_by_agent:
                for turn, digest in enumerate(digests):
                    if digest not in self._judgements:
                        new[digest] = (record, agent, turn)
        if not new:
            return
        judgements: Sequence[float | InfrastructureError]
        try:
            judgements = self.judge([_make_step(*turn) for turn in new.values()])
        except InfrastructureError as error:
            judgements = [error] * len(new)
        given: object = judgements
        if isinstance(given, str | Mapping | Set) or not isinstance(given, Iterable):
            raise ValueError(f"{type(self).__name__}.judge returned {given!r:.100}; expected a list of numbers")
        judgements = list(judgements)
        if any(isinstance(value, str | bool) for value in judgements):
            raise ValueError(f"{type(self).__name__}.judge returned {judgements!r:.100}; expected a list of numbers")
        values = [value if isinstance(value, InfrastructureError) else float(value) for value in judgements]
        if len(values) != len(new):
            raise ValueError(
                f"{type(self).__name__}.judge returned {len(values)} numbers for {len(new)} steps; expected as many"
            )
        for value, (record, agent, turn) in zip(values, new.values(), strict=True):
            if isinstance(value, float) and not math.isfinite(value):
                key = TurnKey(record.episode_id, agent.agent_id, turn)
                raise ValueError(f"{type(self).__name__}.judge returned {value} for {key}; expected a finite number")
        self._judgements.update(zip(new, values, strict=True))

    @cached_property
    def _judgements(self) -> dict[bytes, float | InfrastructureError]:
        return {}


def sum_turns(turns: ByTurn) -> float:
    """Return the sum over the turns of all agents."""
    return math.fsum(chain.from_iterable(turns.values()))


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


def _digest_turns(record: EpisodeRecord) -> Iterator[AgentDigests]:
    """Yield every agent with a digest for each of its turns. Digests are equal only for equal steps of equal tasks."""
    task = _digest(to_builtins(record.task))
    for agent in record.agents:
        digests = []
        # A hash chain: `past` covers all turns before a turn, with the replies to their calls.
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
