"""Long contexts from short ones: a question among paragraphs of other questions, or a story among other text.

Both draw a new context each time and give, in `tasks`, one fixed context per question for evaluation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, islice
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import Between, Checked
from selfcest_env.tasks.babi import Babi, find_document_keys, group_statements
from selfcest_env.tasks.finite import MAX_SEED, FiniteSource
from selfcest_env.tasks.plan import appears_in, normalize_words
from selfcest_env.tasks.qa import QuestionSource
from selfcest_env.tasks.rooms import people
from selfcest_env.tasks.source import IDENTITY, Proposal, Style, content_hash
from selfcest_env.types import Scalar, Task
from selfcest_env.views import Observation

_TRIES_PER_PARAGRAPH = 50
_SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z])")
_NAME = re.compile(r"[A-Z][a-z]+")
_NUMBERED = re.compile(r" \([0-9]+\)$")


@dataclass(frozen=True)
class Distractors(Checked):
    """The questions of `source`, among more paragraphs, in random order (as RULER and LongBench build theirs).

    A paragraph of another question is not taken if it has the title of one that is there, or if the answer or an alias
    stands in it.

    Attributes:
        source: the questions; its expert solves them here too.
        paragraphs: how many to add.
        donors: whose paragraphs to add, those of `source` if left out.
        seed: of the fixed contexts of `tasks`.
    """

    name: ClassVar[str] = "distractors"
    source: QuestionSource
    paragraphs: Annotated[int, Between(1, 1_000_000)] = 80
    donors: FiniteSource | None = None
    seed: Annotated[int, Between(0, MAX_SEED)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_finite(f"{self.name}.donors", self.donors or self.source)

    def draw(self, rng: np.random.Generator) -> Task:
        return self.stretch(self.source.draw(rng), rng)

    def tasks(self) -> tuple[Task, ...]:
        return tuple(self.stretch(task, _fixed(self.name, self.seed, task)) for task in self.source.tasks())

    def identity(self, task: Task) -> str:
        return self.source.identity(task)

    def stretch(self, task: Task, rng: np.random.Generator) -> Task:
        """The same question among more paragraphs. Raises `TaskError` if there are not enough that fit."""
        titles = {normalize_words(_NUMBERED.sub("", key)) for key in task.context}
        answers = (task.answer, *task.aliases)
        added: dict[str, str] = {}
        for _ in range(_TRIES_PER_PARAGRAPH * self.paragraphs):
            key, text = self._pool[int(rng.integers(len(self._pool)))]
            if normalize_words(key) not in titles and not any(appears_in(answer, text) for answer in answers):
                titles.add(normalize_words(key))
                added[key] = text
            if len(added) == self.paragraphs:
                break
        else:
            raise TaskError(
                f"{self.name}: found {len(added)} of {self.paragraphs} paragraphs for {task.prompt!r} among "
                f"{len(self._pool)}; lower paragraphs or give donors with more of them"
            )
        items = [*task.context.items(), *added.items()]
        context = dict(items[int(i)] for i in rng.permutation(len(items)))
        return _rename(task, self.name, context, {"added": self.paragraphs})

    @cached_property
    def _pool(self) -> tuple[tuple[str, str], ...]:
        donors = self.source if self.donors is None else self.donors
        pairs = {(_NUMBERED.sub("", key), text): None for task in donors.tasks() for key, text in task.context.items()}
        if not pairs:
            raise TaskError(f"{self.name}: the questions of the donors have no documents to take paragraphs from")
        return tuple(pairs)

    def understands(self, observation: Observation) -> bool:
        return self.source.understands(observation)

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        return self.source.propose(observation, rng, style)


@dataclass(frozen=True)
class Babilong(Checked):
    """The stories of `source`, in order, among sentences of other text (as BABILong builds its own).

    A sentence that names someone of the story is not taken.

    Attributes:
        source: the stories; its expert solves them here too.
        filler: questions over documents, whose documents give the sentences; runs of a document stay in order.
        sentences: how many to add.
        sentences_per_document: statements and other sentences of one document.
        seed: of the fixed contexts of `tasks`.
    """

    name: ClassVar[str] = "babilong"
    source: Babi
    filler: FiniteSource
    sentences: Annotated[int, Between(1, 1_000_000)] = 200
    sentences_per_document: Annotated[int, Between(1, 10_000)] = 20
    seed: Annotated[int, Between(0, MAX_SEED)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_finite(f"{self.name}.filler", self.filler)

    def draw(self, rng: np.random.Generator) -> Task:
        return self.stretch(self.source.draw(rng), rng)

    def tasks(self) -> tuple[Task, ...]:
        return tuple(self.stretch(task, _fixed(self.name, self.seed, task)) for task in self.source.tasks())

    def identity(self, task: Task) -> str:
        return str(task.metadata[IDENTITY])

    def stretch(self, task: Task, rng: np.random.Generator) -> Task:
        """The same story, each statement at a random place among consecutive sentences of the filler."""
        story = split_sentences(" ".join(task.context.values()))
        if len(story) != task.metadata["size"]:
            raise TaskError(
                f"{self.name}: a statement of {task.prompt!r}, {task.metadata['file']}, is not one sentence"
            )
        filler = self._filler(people(task.prompt, story), rng)
        places = sorted(rng.permutation(len(story) + len(filler))[: len(story)].tolist())
        mixed = list(filler)
        for place, statement in zip(places, story, strict=True):
            mixed.insert(place, statement)
        context = group_statements(tuple(mixed), self.sentences_per_document)
        facts = [places[fact] for fact in json.loads(str(task.metadata["facts"]))]
        added: dict[str, Scalar] = {
            "added": self.sentences,
            "facts": json.dumps(facts),
            "support": json.dumps(find_document_keys(facts, self.sentences_per_document)),
            IDENTITY: self.source.identity(task),
        }
        return _rename(task, self.name, context, added)

    def _filler(self, names: Set[str], rng: np.random.Generator) -> list[str]:
        """Sentences of the pool in order, from a random one on, again from the start where it ends."""
        start, found = int(rng.integers(len(self._pool))), list[str]()
        for i in range(len(self._pool)):
            sentence = self._pool[(start + i) % len(self._pool)]
            if names.isdisjoint(_NAME.findall(sentence)):
                found.append(sentence)
            if len(found) == self.sentences:
                break
        if not found:
            raise TaskError(f"{self.name}: every sentence of the filler names one of {', '.join(sorted(names))}")
        return list(islice(cycle(found), self.sentences))

    @cached_property
    def _pool(self) -> tuple[str, ...]:
        texts = dict.fromkeys(text for task in self.filler.tasks() for text in task.context.values())
        pool = tuple(sentence for text in texts for sentence in split_sentences(text))
        if not pool:
            raise TaskError(f"{self.name}: the filler has no documents to take sentences from")
        return pool

    def understands(self, observation: Observation) -> bool:
        return self.source.understands(observation)

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        return self.source.propose(observation, rng, style)


def split_sentences(text: str) -> list[str]:
    """Cut at a full stop and the like before a capital letter: near enough for text that only fills."""
    return [piece for piece in _SENTENCE_END.split(" ".join(text.split())) if piece]


def _check_finite(where: str, source: object) -> None:
    if not isinstance(source, FiniteSource):
        raise ConfigError(f"{where} is a {type(source).__name__}; expected a source that reads its tasks from a file")


def _fixed(name: str, seed: int, task: Task) -> np.random.Generator:
    return np.random.default_rng(stream_seed(name, seed, task.task_id))


def _rename(task: Task, name: str, context: Mapping[str, str], added: Mapping[str, Scalar]) -> Task:
    """The task as one of this source, with its new context and the name of its old source in `base`."""
    facts: dict[str, Scalar] = {"family": name, "base": task.source, "documents": len(context)}
    renamed = replace(task, source=name, context=context, metadata={**task.metadata, **facts, **added})
    return replace(renamed, task_id=content_hash(renamed))
