"""One turn of a reader with an overwritten memory, as a task: MemAgent (arXiv 2507.02259).

The reader sees the question, its memory and one part of the text, and answers with the new memory. After the last part
it answers the question from the memory, or asks another question, for which the text is read again. Every turn is a
fresh context, so its length does not grow with the text. A strategy plays all turns of a text; this source gives single
turns, for demonstrations and for RL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.structure import Between, Checked
from selfcest_env.tasks.source import (
    GIVE_UP,
    IDENTITY,
    Proposal,
    Style,
    TaskSource,
    content_hash,
    documents_in_sight,
    draw_int,
    identity_of,
)
from selfcest_env.types import Answer, Scalar, Task
from selfcest_env.views import Observation

EMPTY_MEMORY = "nothing"
_UPDATE = "Read the next part and answer with the new memory, which replaces the old one. Keep what the question needs."
_CONCLUDE = "All parts were read. Answer the question from the memory."
_AGAIN = re.compile(r"(.+?)(?: before (part [0-9]+))?\?")
# Most times that an expert may read a text.
_MAX_PASSES = 8
_TURN = re.compile(rf"Question: (.*)\nMemory: (.*)\n({re.escape(_UPDATE)}|{re.escape(_CONCLUDE)})")


class MemoryTurn(NamedTuple):
    """The task of one turn.

    Attributes:
        question: question about the whole text.
        memory: memory before the turn.
        is_last: whether the question is to be answered.
    """

    question: str
    memory: str
    is_last: bool

    @classmethod
    def read(cls, prompt: str) -> MemoryTurn | None:
        match = _TURN.fullmatch(prompt)
        return None if match is None else cls(match[1], match[2], match[3] == _CONCLUDE)

    def write(self) -> str:
        """Return the prompt. Line breaks become spaces, so that a memory cannot look like another part of it."""
        question = " ".join(self.question.split())
        memory = " ".join(self.memory.split()) or EMPTY_MEMORY
        return f"Question: {question}\nMemory: {memory}\n{_CONCLUDE if self.is_last else _UPDATE}"


class Pass(NamedTuple):
    """One reading of a text.

    Attributes:
        question: question that it is to answer.
        keys: keys of the parts, in the order of reading.
    """

    question: str
    keys: tuple[str, ...]

    @classmethod
    def read(cls, answer: str, keys: Sequence[str]) -> Pass | None:
        """Return the reading that an answer asks for, such as `Where is Mary?` or `Where is Mary before part 5?`.

        Args:
            answer: answer of a last turn.
            keys: keys of all parts of the text.

        Returns:
            `None` if the answer is no question, or names a part that the text does not have.
        """
        match = _AGAIN.fullmatch(answer)
        if match is None:
            return None
        question, end = match.groups()
        if end is None:
            return cls(answer, tuple(keys))
        return cls(f"{question}?", tuple(keys[: keys.index(end)])) if end in keys else None


@runtime_checkable
class RemembersSource(Protocol):
    """A source of long texts whose expert can read them with a memory."""

    def draw(self, rng: np.random.Generator) -> Task: ...

    def remember(self, question: str, memory: str, key: str, text: str) -> Proposal:
        """Answer with the memory after a part of the text, which has this key."""
        ...

    def conclude(self, question: str, memory: str) -> Proposal:
        """Answer the question from the memory after the last part, or ask another one (`Pass.read`)."""
        ...


class _Step(NamedTuple):
    """A turn, the keys of its parts (one or none), and the expert's answer."""

    turn: MemoryTurn
    keys: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class MemorySteps(Checked):
    """Source of single turns of a reader with a memory, on the texts of another source.

    The truth of a turn is the expert's memory, so RL can train turns by their own reward.

    Attributes:
        source: source of the texts, for example `babilong`.
        last_share: share of the tasks that answer the question from the memory of the whole text.
    """

    name: ClassVar[str] = "memory_steps"
    source: TaskSource
    last_share: Annotated[float, Between(0, 1)] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.source, RemembersSource):
            raise ConfigError(
                f"source is a {type(self.source).__name__}, whose expert has no memory; expected a source with "
                "remember and conclude, such as babilong"
            )

    def draw(self, rng: np.random.Generator) -> Task:
        text = self.source.draw(rng)
        steps = self._read(text)
        is_last = not text.context or rng.random() < self.last_share
        drawn = [step for step in steps if step.turn.is_last == is_last]
        step = drawn[draw_int(rng, 0, len(drawn) - 1)]
        metadata: dict[str, Scalar] = {
            "family": self.name,
            "base": text.source,
            "size": steps.index(step),
            "qa_rule": "squad",
        }
        identity = identity_of(self.source, text)
        if identity is not None:
            metadata[IDENTITY] = identity
        task = replace(
            text,
            prompt=step.turn.write(),
            answer=step.answer,
            source=self.name,
            context={key: text.context[key] for key in step.keys},
            metadata=metadata,
        )
        return replace(task, task_id=content_hash(task))

    def _read(self, text: Task) -> list[_Step]:
        """Return all turns in which the expert reads a text."""
        steps: list[_Step] = []
        reading = Pass(text.prompt, tuple(text.context))
        for _ in range(_MAX_PASSES):
            memory = EMPTY_MEMORY
            for key in reading.keys:
                proposal = self._expert.remember(reading.question, memory, key, text.context[key])
                answer = self._answer(text, proposal)
                steps.append(_Step(MemoryTurn(reading.question, memory, False), (key,), answer))
                memory = answer
            answer = self._answer(text, self._expert.conclude(reading.question, memory))
            steps.append(_Step(MemoryTurn(reading.question, memory, True), (), answer))
            again = Pass.read(answer, tuple(text.context))
            if again is None:
                return steps
            reading = again
        raise TaskError(f"{self.name}: the expert asks about {text.prompt!r} after {_MAX_PASSES} readings of its text")

    def identity(self, task: Task) -> str | None:
        """Return the identity of the text, so that all turns on one text are in the same part of a split."""
        return str(task.metadata[IDENTITY]) if IDENTITY in task.metadata else None

    def understands(self, observation: Observation) -> bool:
        return MemoryTurn.read(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        turn = MemoryTurn.read(observation.brief.text)
        if turn is None:
            return GIVE_UP
        if turn.is_last:
            return self._expert.conclude(turn.question, turn.memory)
        documents = documents_in_sight(observation)
        if not documents:
            return GIVE_UP
        key, text = next(iter(documents.items()))
        return self._expert.remember(turn.question, turn.memory, key, text)

    @property
    def _expert(self) -> RemembersSource:
        assert isinstance(self.source, RemembersSource)  # checked at construction
        return self.source

    def _answer(self, text: Task, proposal: Proposal) -> str:
        if proposal == GIVE_UP or not isinstance(proposal.action, Answer):
            raise TaskError(
                f"{self.name}: the expert of {type(self.source).__name__} cannot read {text.prompt!r} with a memory; "
                "expected questions that it answers, such as those of bAbI's tasks 1, 2 and 3"
            )
        return proposal.action.text
