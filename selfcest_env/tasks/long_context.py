"""Build long contexts from short ones: a question among paragraphs of other questions, or a story among other text.

Both sources draw a new context for every task. `tasks` has one fixed context per question, for evaluation.
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
from selfcest_env.structure import Between, Checked, check_unused
from selfcest_env.tasks.babi import StorySource
from selfcest_env.tasks.finite import MAX_SEED, FiniteSource
from selfcest_env.tasks.plan import appears_in, normalize_words
from selfcest_env.tasks.prose import Prose, count_words, pack_sentences
from selfcest_env.tasks.qa import QuestionSource
from selfcest_env.tasks.rooms import conclude_from_memory, is_event, people, remember
from selfcest_env.tasks.source import IDENTITY, Proposal, Style, content_hash
from selfcest_env.types import Scalar, Task
from selfcest_env.views import Observation

_TRIES_PER_PARAGRAPH = 50
_SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z])")
_NAME = re.compile(r"[A-Z][a-z]+")
_NUMBERED = re.compile(r" \([0-9]+\)$")


@dataclass(frozen=True)
class Distractors(Checked):
    """Source of the questions of another source with additional paragraphs, in random order, as in RULER and LongBench.

    A paragraph is not added if the context has one with the same title, or if it contains the answer or an alias.

    Attributes:
        source: source of the questions. Its expert solves the long tasks too.
        paragraphs: number of paragraphs to add.
        donors: source of the additional paragraphs (default: `source`).
        seed: random seed of the fixed contexts of `tasks`.
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
        return tuple(self.stretch(task, _fixed_rng(self.name, self.seed, task)) for task in self.source.tasks())

    def identity(self, task: Task) -> str:
        return self.source.identity(task)

    def stretch(self, task: Task, rng: np.random.Generator) -> Task:
        """Return the question with more paragraphs. Raises `TaskError` if there are not enough that fit."""
        titles = {normalize_words(_find_title(key, task.context)) for key in task.context}
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
        paragraphs: dict[tuple[str, str], None] = {}  # title and text in order, each once
        for task in donors.tasks():
            for key, text in task.context.items():
                paragraphs[_find_title(key, task.context), text] = None
        if not paragraphs:
            raise TaskError(f"{self.name}: the questions of the donors have no documents; give donors with documents")
        return tuple(paragraphs)

    def understands(self, observation: Observation) -> bool:
        return self.source.understands(observation)

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        return self.source.propose(observation, rng, style)


def _find_title(key: str, context: Mapping[str, str]) -> str:
    """Return the title of a document: its key without the number that tells it from another one of the same title."""
    title = _NUMBERED.sub("", key)
    return title if title in context and f"{title} (2)" in context else key


@dataclass(frozen=True)
class Babilong(Checked):
    """Source of the stories of another source among sentences of other text, as in BABILong.

    The statements keep their order. A sentence that names a person of the story is not added, nor a sentence of a book
    that reads like a statement. All sentences of prose are consecutive ones of one book.

    Attributes:
        source: source of the stories. Its expert solves the long tasks too.
        filler: folder of plain text (a mapping with `path`, see `Prose`), or a source of questions over documents,
            whose documents provide the sentences in order.
        sentences: number of sentences to add.
        sentences_per_document: number of sentences, statements included, of a document.
        words: number of words to add instead of `sentences`; the last sentence may exceed it. It needs prose.
        words_per_document: largest number of words of a document, instead of `sentences_per_document`. Longer
            sentences of the filler are left out.
        seed: random seed of the fixed contexts of `tasks`.
    """

    name: ClassVar[str] = "babilong"
    source: StorySource
    filler: FiniteSource | Prose
    sentences: Annotated[int, Between(1, 1_000_000)] = 200
    sentences_per_document: Annotated[int, Between(1, 10_000)] = 20
    seed: Annotated[int, Between(0, MAX_SEED)] = 0
    words: Annotated[int, Between(1, 100_000_000)] | None = None
    words_per_document: Annotated[int, Between(20, 1_000_000)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.words is not None:
            check_unused(self, "words decides the length", "sentences")
            if not isinstance(self.filler, Prose):
                raise ConfigError("words needs prose as filler; give filler a path to plain text, or set sentences")
        if self.words_per_document is not None:
            check_unused(self, "words_per_document decides the documents", "sentences_per_document")
        if not isinstance(self.filler, Prose):
            _check_finite(f"{self.name}.filler", self.filler)

    def draw(self, rng: np.random.Generator) -> Task:
        return self.stretch(self.source.draw(rng), rng)

    def tasks(self) -> tuple[Task, ...]:
        return tuple(self.stretch(task, _fixed_rng(self.name, self.seed, task)) for task in self.source.tasks())

    def identity(self, task: Task) -> str:
        return str(task.metadata[IDENTITY])

    def stretch(self, task: Task, rng: np.random.Generator) -> Task:
        """Return the story with each statement at a random place among consecutive sentences of the filler."""
        story = split_sentences(" ".join(task.context.values()))
        if len(story) != task.metadata["size"]:
            place = task.metadata.get("file", task.source)
            raise TaskError(
                f"{self.name}: a statement of {task.prompt!r}, {place}, has several sentences or none; "
                "expected one sentence per statement"
            )
        names = people(task.prompt, story)
        added: dict[str, Scalar] = {}
        if isinstance(self.filler, Prose):
            book, filler = self._draw_prose(names, rng)
            added["book"] = book
        else:
            filler = self._draw_sentences(names, rng)
        places = sorted(rng.permutation(len(story) + len(filler))[: len(story)].tolist())
        mixed = list(filler)
        for place, statement in zip(places, story, strict=True):
            mixed.insert(place, statement)
        documents = self._group(mixed)
        keys = [f"part {number}" for number, document in enumerate(documents, 1) for _ in document]
        context = {f"part {number}": " ".join(document) for number, document in enumerate(documents, 1)}
        facts = [places[fact] for fact in json.loads(str(task.metadata["facts"]))]
        added |= {
            "added": len(filler),
            "facts": json.dumps(facts),
            "support": json.dumps(list(dict.fromkeys(keys[fact] for fact in facts))),
            IDENTITY: self.source.identity(task),
        }
        return _rename(task, self.name, context, added)

    def _group(self, sentences: list[str]) -> list[list[str]]:
        """Return the sentences of each document. A document is full before the next one starts."""
        if self.words_per_document is None:
            length = self.sentences_per_document
            return [sentences[start : start + length] for start in range(0, len(sentences), length)]
        return pack_sentences(sentences, self.words_per_document)

    def _draw_prose(self, names: Set[str], rng: np.random.Generator) -> tuple[str, list[str]]:
        """Return the name of a book and consecutive sentences of it, without those that `_is_usable` refuses.

        Raises:
            TaskError: the book is too short. No sentence is repeated.
        """
        book, candidates = self._checked_prose.draw_book(rng)
        sentences: list[str] = []
        words = 0
        for sentence in candidates:
            if not self._is_usable(sentence, names):
                continue
            sentences.append(sentence)
            words += count_words(sentence)
            is_enough = len(sentences) == self.sentences if self.words is None else words >= self.words
            if is_enough:
                return book, sentences
        raise TaskError(
            f"{self.name}: the book {book} has {len(sentences)} usable sentences with {words} words, and "
            f"{self._length} are asked for; lower that number, or remove the book"
        )

    def _is_usable(self, sentence: str, names: Set[str]) -> bool:
        """Return whether a sentence of a book names none of the people, is no statement, and fits a document."""
        if not names.isdisjoint(_NAME.findall(sentence)) or is_event(sentence):
            return False
        return self.words_per_document is None or count_words(sentence) <= self.words_per_document

    @property
    def _length(self) -> str:
        return f"{self.sentences} sentences" if self.words is None else f"{self.words} words"

    @cached_property
    def _checked_prose(self) -> Prose:
        """The filler, checked before the first task. Raises `TaskError` if a book is too short for `words`."""
        assert isinstance(self.filler, Prose)
        if self.words is not None:
            self.filler.check_length(self.words)
        return self.filler

    def _draw_sentences(self, names: Set[str], rng: np.random.Generator) -> list[str]:
        """Return consecutive sentences of the pool from a random position, without those that have one of the names.

        At its end the pool continues from its start. If it is too small, sentences repeat.
        """
        start = int(rng.integers(len(self._pool)))
        sentences: list[str] = []
        for i in range(len(self._pool)):
            sentence = self._pool[(start + i) % len(self._pool)]
            if names.isdisjoint(_NAME.findall(sentence)):
                sentences.append(sentence)
            if len(sentences) == self.sentences:
                break
        if not sentences:
            raise TaskError(
                f"{self.name}: every sentence of the filler names one of {', '.join(sorted(names))}; give another "
                "filler"
            )
        return list(islice(cycle(sentences), self.sentences))

    @cached_property
    def _pool(self) -> tuple[str, ...]:
        texts: dict[str, None] = {}  # in order, each once
        assert not isinstance(self.filler, Prose)
        for task in self.filler.tasks():
            texts |= dict.fromkeys(task.context.values())
        pool: list[str] = []
        for text in texts:
            pool += split_sentences(text)
        if not pool:
            raise TaskError(f"{self.name}: the questions of the filler have no documents; give a filler with documents")
        return tuple(pool)

    def understands(self, observation: Observation) -> bool:
        return self.source.understands(observation)

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        return self.source.propose(observation, rng, style)

    def remember(self, question: str, memory: str, key: str, text: str) -> Proposal:
        return remember(question, memory, key, text)

    def conclude(self, question: str, memory: str) -> Proposal:
        return conclude_from_memory(question, memory)


def split_sentences(text: str) -> list[str]:
    """Split a text after `.`, `!` or `?` before a capital letter. This is precise enough for filler text."""
    return [piece for piece in _SENTENCE_END.split(" ".join(text.split())) if piece]


def _check_finite(where: str, source: object) -> None:
    if not isinstance(source, FiniteSource):
        raise ConfigError(f"{where} is a {type(source).__name__}; expected a source that reads its tasks from a file")


def _fixed_rng(name: str, seed: int, task: Task) -> np.random.Generator:
    return np.random.default_rng(stream_seed(name, seed, task.task_id))


def _rename(task: Task, name: str, context: Mapping[str, str], added: Mapping[str, Scalar]) -> Task:
    """Return the task with a new source and context, and with the name of its old source in the metadata key `base`."""
    facts: dict[str, Scalar] = {"family": name, "base": task.source, "documents": len(context)}
    renamed = replace(task, source=name, context=context, metadata={**task.metadata, **facts, **added})
    return replace(renamed, task_id=content_hash(renamed))
