"""One turn of a reader with an overwritten memory, as a task: MemAgent (arXiv 2507.02259).

The reader sees the question, its memory and one part of the text, and answers with the new memory. After the last part
it answers the question from the memory. Every turn is a fresh context, so its length does not grow with the text. A
strategy plays all turns of a text; this source gives single turns, for demonstrations and for RL.
"""

from __future__ import annotations

import re
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


@runtime_checkable
class RemembersSource(Protocol):
    """A source of long texts whose expert can read them with a memory."""

    def draw(self, rng: np.random.Generator) -> Task: ...

    def remember(self, question: str, memory: str, text: str) -> Proposal:
        """Answer with the memory after a part of the text."""
        ...

    def conclude(self, question: str, memory: str) -> Proposal:
        """Answer the question from the memory after the last part."""
        ...


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
        parts = list(text.context.items())
        is_last = not parts or rng.random() < self.last_share
        num_read = len(parts) if is_last else draw_int(rng, 0, len(parts) - 1)
        memory = EMPTY_MEMORY
        for _, part in parts[:num_read]:
            memory = self._answer(text, self._expert.remember(text.prompt, memory, part))
        turn = MemoryTurn(text.prompt, memory, is_last)
        answer = text.answer
        context: dict[str, str] = {}
        if not is_last:
            key, part = parts[num_read]
            context = {key: part}
            answer = self._answer(text, self._expert.remember(text.prompt, memory, part))
        metadata: dict[str, Scalar] = {"family": self.name, "base": text.source, "size": num_read, "qa_rule": "squad"}
        identity = identity_of(self.source, text)
        if identity is not None:
            metadata[IDENTITY] = identity
        task = replace(text, prompt=turn.write(), answer=answer, source=self.name, context=context, metadata=metadata)
        return replace(task, task_id=content_hash(task))

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
        return self._expert.remember(turn.question, turn.memory, " ".join(documents.values()))

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
