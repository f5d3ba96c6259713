"""bAbI: short stories of simple statements, and questions about them (CC BY 3.0)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import DataError
from selfcest_env.structure import Between
from selfcest_env.tasks import rooms
from selfcest_env.tasks.files import Record, list_files, read_text
from selfcest_env.tasks.finite import FileSource, squeeze
from selfcest_env.tasks.source import Proposal, Style
from selfcest_env.types import Task
from selfcest_env.views import Observation

_LINE = re.compile(r"([0-9]+) (.*)")


class StorySource:
    """The base of sources of stories whose questions about rooms the expert of `rooms` answers.

    The documents of a task are its statements in order, a sentence each. The metadata hold their number (`size`) and
    two JSON lists: `facts`, the indices from 0 of the statements that the question needs, and `support`, the keys of
    the documents with these statements.
    """

    def draw(self, rng: np.random.Generator) -> Task:
        raise NotImplementedError(f"{type(self).__name__} has no draw(rng)")

    def tasks(self) -> tuple[Task, ...]:
        raise NotImplementedError(f"{type(self).__name__} has no tasks()")

    def identity(self, task: Task) -> str:
        """Return a digest of the question and its story, because `Where is Mary?` occurs in many stories."""
        text = squeeze(" ".join((*task.context.values(), task.prompt)))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def understands(self, observation: Observation) -> bool:
        return rooms.understands(observation)

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        return rooms.propose(observation, style)


@dataclass(frozen=True)
class Babi(FileSource, StorySource):
    """Source of the official text files (`ID text`, or `ID question TAB answer TAB ids`). Every question is a task.

    The documents of a task are the statements before the question, in parts; see `StorySource`. The expert answers the
    questions about places (tasks 1, 2, 3, 6) and gives up on all others.

    Attributes:
        statements_per_document: number of statements of a part.
        last_question: whether only the last question of each story is a task. Questions of one story share statements,
            so they are no independent samples.
    """

    name: ClassVar[str] = "babi"
    suffixes: ClassVar[tuple[str, ...]] = (".txt",)
    statements_per_document: Annotated[int, Between(1, 1000)] = 5
    last_question: bool = False

    def records(self) -> Iterator[Record]:
        for file in list_files(self.path, self.suffixes):
            records = _read_stories(file)
            yield from _keep_last_questions(records) if self.last_question else records

    def read(self, record: Record) -> Task | None:
        documents = group_statements(record.texts("story"), self.statements_per_document)
        facts = record.items("facts")
        return self.make(
            record,
            record.text("question"),
            record.text("answer"),
            documents,
            size=len(record.items("story")),
            documents=len(documents),
            facts=json.dumps(facts),
            support=json.dumps(find_document_keys(facts, self.statements_per_document)),
            qa_rule="squad",
        )

    identity = StorySource.identity  # that of `FileSource` is the question alone


def group_statements(statements: tuple[str, ...], length: int) -> dict[str, str]:
    """Return documents `part 1`, `part 2`, ... with `length` statements each."""
    starts = range(0, len(statements), length)
    return {f"part {i}": " ".join(statements[start : start + length]) for i, start in enumerate(starts, 1)}


def find_document_keys(places: Iterable[int], length: int) -> list[str]:
    """Return the keys of the parts of this length that contain the statements at these places, from 0."""
    return list(dict.fromkeys(f"part {place // length + 1}" for place in places))


def _read_stories(file: Path) -> Iterator[Record]:
    """Yield a record for each question, numbered by its line, with the statements of its story so far."""
    story: list[str] = []
    begins = 0  # line on which the story begins
    index_by_id: dict[str, int] = {}  # index of each statement in the story
    for number, line in enumerate(read_text(file).splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise DataError(f"{file}, line {number}: {line[:60]!r}; expected a number, a space and a text")
        # The ids start again with each story.
        if match[1] == "1":
            story = []
            begins = number
            index_by_id = {}
        text, *rest = match[2].split("\t")
        if not rest:
            if match[1] in index_by_id:
                raise DataError(f"{file}, line {number}: {line[:60]!r}; a statement of this story has that number")
            index_by_id[match[1]] = len(story)
            story.append(text.strip())
        elif len(rest) == 2 and rest[0].strip():
            unknown = [fact for fact in rest[1].split() if fact not in index_by_id]
            if unknown:
                raise DataError(
                    f"{file}, line {number}: supporting fact {unknown[0][:20]!r} is no statement before the question"
                )
            facts = [index_by_id[fact] for fact in rest[1].split()]
            data = {
                "question": text.strip(),
                "answer": rest[0].strip(),
                "story": list(story),
                "facts": facts,
                "begins": begins,
            }
            yield Record(str(file), number, data, unit="line")
        else:
            raise DataError(f"{file}, line {number}: {line[:60]!r}; expected question, answer and ids between tabs")


def _keep_last_questions(records: Iterable[Record]) -> Iterator[Record]:
    last: Record | None = None
    for record in records:
        if last is not None and record.data["begins"] != last.data["begins"]:
            yield last
        last = record
    if last is not None:
        yield last
