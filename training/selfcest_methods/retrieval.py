"""`bm25`, `bm25_read`, `bm25_sentences` and `oracle_documents` choose some of a task's text for the policy.

Source: BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009), by the library bm25s (Lù, arXiv
2407.03618). With two hops, names next to the question's words in the documents of the first search are searched for
in a second one, as in multi-hop retrieval (e.g. arXiv 2009.12756, with learned queries). Details: docs/methods.md.

Expected effect: few tokens at any length, and a low accuracy where a fact shares no word with the question.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from selfcest_agents.player import Player
from selfcest_env.errors import ConfigError, install_hint
from selfcest_env.record import EpisodeRecord
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.tasks import TaskSource
from selfcest_env.tasks.prose import count_words, pack_sentences, split_paragraph
from selfcest_env.tasks.support import gold_support, says_support
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import DelegatingStrategy, Instance, Monolithic, PlayContext, Strategy

_NUMBERED_PART = re.compile(r"part [0-9]+")
_WORD = r"(?u)\b\w+\b"  # also of one character, unlike the default of bm25s


@dataclass(frozen=True)
class _ShortenedTask(Strategy):
    """The base of strategies that play a task with a part of its text."""

    def shorten(self, task: Task) -> Task:
        """Return the task to play."""
        raise NotImplementedError(f"{type(self).__name__} has no shorten(task)")

    def play_once(
        self, instances: Sequence[Instance], limits: Sequence[Limits], sample: int, context: PlayContext, player: Player
    ) -> list[EpisodeRecord]:
        shortened = [replace(instance, task=self.shorten(instance.task)) for instance in instances]
        return super().play_once(shortened, limits, sample, context, player)


@dataclass(frozen=True)
class _ChosenDocuments(_ShortenedTask):
    """The base of strategies that play a task with some of its documents."""

    def choose_documents(self, task: Task) -> Collection[str]:
        """Return the keys of the documents to keep."""
        raise NotImplementedError(f"{type(self).__name__} has no choose_documents(task)")

    def shorten(self, task: Task) -> Task:
        return keep_documents(task, self.choose_documents(task))


def keep_documents(task: Task, keys: Collection[str]) -> Task:
    """Return the task with these documents, in the order of the task.

    Numbered parts are numbered again from 1, so that a short text looks like any other short text.
    """
    documents = [(key, text) for key, text in task.context.items() if key in keys]
    if all(_NUMBERED_PART.fullmatch(key) for key, _ in documents):
        documents = [(f"part {number}", text) for number, (_, text) in enumerate(documents, 1)]
    return replace(task, context=dict(documents))


@dataclass(frozen=True)
class _Bm25Options(_ChosenDocuments, Checked):
    """The options of a search by BM25 for the words of the task's prompt.

    Attributes:
        documents: number of documents to keep.
        hops: number of searches. With 2, the first half of the documents are the best of the first search, and the
            others the best of a search for names that stand in these beside words of the prompt.
    """

    # 1: "Mr." ends no sentence in the search for names.
    # 2: keys that are titles, words of one character, and names with accents are searched as well.
    version: ClassVar[int] = 2
    documents: Count = 4
    hops: Literal[1, 2] = 1

    def check(self, context: PlayContext) -> None:
        super().check(context)
        _check_library()

    def choose_documents(self, task: Task) -> Collection[str]:
        keys = list(task.context)
        if len(keys) <= self.documents:
            return keys
        # A root that delegates sees the keys. Of numbered parts they say nothing.
        search = _Search(
            [text if _NUMBERED_PART.fullmatch(key) else f"{key}.\n{text}" for key, text in task.context.items()]
        )
        words = search.tokenize(task.prompt)
        ranking = search.rank(words)
        if self.hops == 2:
            # The first search gets the odd document.
            best = ranking[: (self.documents + 1) // 2]
            names = search.find_names(best, words)
            if names:
                ranking = list(dict.fromkeys((*best, *search.rank(names))))
        return [keys[index] for index in ranking[: self.documents]]


@stored_as("selfcest_methods.retrieval:Bm25", documents="documents", hops="hops")
@dataclass(frozen=True)
class Bm25(_Bm25Options, DelegatingStrategy):
    """The policy may delegate the documents that BM25 finds, as it delegates those of a short text."""


@stored_as("selfcest_methods.retrieval:Bm25Read", documents="documents", hops="hops")
@dataclass(frozen=True)
class Bm25Read(_Bm25Options, Monolithic):
    """The root sees the full text of the documents that BM25 finds, as in retrieval-augmented generation."""


@stored_as("selfcest_methods.retrieval:Bm25Sentences", words="words", hops="hops")
@dataclass(frozen=True)
class Bm25Sentences(_ShortenedTask, DelegatingStrategy, Checked):
    """The policy may delegate sentences that BM25 finds, packed into parts that are no longer than the task's.

    In a story among other text, such as `babilong`, hardly any other sentence has a name that the question has.

    Attributes:
        words: largest number of words of the sentences.
        hops: number of searches. With 2, names in the sentences that the first search finds, in at most half of the
            words, are searched for in a second one.
    """

    # 1: as 2 of `_Bm25Options`. A sentence that is too long alone is left out. If none is found, the first ones stay.
    version: ClassVar[int] = 1
    words: Count = 800
    hops: Literal[1, 2] = 2

    def check(self, context: PlayContext) -> None:
        super().check(context)
        _check_library()

    def shorten(self, task: Task) -> Task:
        sentences: list[str] = []
        for text in task.context.values():
            sentences += split_paragraph(text)
        if not sentences:
            return task
        indices = sorted(self._choose_sentences(task.prompt, sentences))
        length = max(map(count_words, task.context.values()))
        documents = pack_sentences([sentences[index] for index in indices], length)
        return replace(task, context={f"part {number}": " ".join(part) for number, part in enumerate(documents, 1)})

    def _choose_sentences(self, prompt: str, sentences: Sequence[str]) -> list[int]:
        """Return the indices of sentences with a word of a query, the best first; without any, the first sentences."""
        search = _Search(sentences)
        query = search.tokenize(prompt)
        chosen = _fill(search.find(query), sentences, self.words // self.hops)
        if self.hops == 2:
            names = search.find_names(chosen, query)
            ranking = dict.fromkeys((*chosen, *search.find(names)))
            chosen = _fill(list(ranking), sentences, self.words)
        # A text in which nothing is found, or whose sentences are all too long, is not left empty.
        return chosen or _fill(range(len(sentences)), sentences, self.words) or [0]


def _fill(ranking: Sequence[int], sentences: Sequence[str], words: int) -> list[int]:
    """Return the first sentences of a ranking that have at most so many words together, without longer ones."""
    chosen: list[int] = []
    left = words
    for index in ranking:
        length = count_words(sentences[index])
        if length > words:
            continue
        left -= length
        if left < 0:
            break
        chosen.append(index)
    return chosen


def _check_library() -> None:
    if importlib.util.find_spec("bm25s") is None:
        raise ConfigError(f"the strategy needs the package bm25s; run: {install_hint('retrieval')}")


@stored_as("selfcest_methods.retrieval:OracleDocuments")
@dataclass(frozen=True)
class OracleDocuments(_ChosenDocuments, DelegatingStrategy):
    """The policy may delegate the documents with the supporting facts: an upper bound for every search."""

    oracle: ClassVar[bool] = True

    def choose_documents(self, task: Task) -> Collection[str]:
        return gold_support(task)

    def check_tasks(self, tasks: Sequence[Task], source: TaskSource) -> None:
        for task in tasks:
            if not says_support(task):
                raise ConfigError(
                    f"task {task.task_id} of {type(source).__name__} does not say which documents it needs; name only "
                    "families whose tasks have the metadata key support in the strategy's families"
                )


class _Search:
    """The documents of a task, indexed by bm25s with its default constants (k1 1.5, b 0.75).

    Args:
        texts: texts of the documents.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        # Not imported above, because the package is an extra.
        self._library: Any = importlib.import_module("bm25s")
        self._texts = texts
        words = [self.tokenize(text) for text in texts]
        self._has_words = any(words)
        self._index = self._library.BM25()
        if self._has_words:
            self._index.index(words, show_progress=False)

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text in small letters, without stop words."""
        # The longer list of stop words: the shorter one keeps "where".
        (words,) = self._library.tokenize(
            [text], stopwords="en_plus", token_pattern=_WORD, return_ids=False, show_progress=False
        )
        return list(words)

    def rank(self, words: Sequence[str]) -> list[int]:
        """Return the indices of all documents, the best first; equally good ones in their order."""
        scores = self._score(words)
        return sorted(range(len(self._texts)), key=lambda index: (-scores[index], index))

    def find(self, words: Sequence[str]) -> list[int]:
        """Return the indices of the documents that have one of the words, the best first, as `rank`."""
        scores = self._score(words)
        return [index for index in self.rank(words) if scores[index] > 0]

    def _score(self, words: Sequence[str]) -> list[float]:
        if not words or not self._has_words:
            return [0.0] * len(self._texts)
        scores: list[float] = self._index.get_scores(list(words)).tolist()
        return scores

    def find_names(self, indices: Sequence[int], words: Sequence[str]) -> list[str]:
        """Return the names in sentences of these documents that have one of the words, in the form of `tokenize`."""
        names: dict[str, None] = {}
        for index in indices:
            for sentence in split_paragraph(self._texts[index]):
                if not set(words).isdisjoint(self.tokenize(sentence)):
                    # `tokenize` drops capitalised stop words, such as the first word of a sentence.
                    capitalised = [word for word in re.findall(_WORD, sentence) if word[0].isupper() and len(word) > 1]
                    names |= dict.fromkeys(self.tokenize(" ".join(capitalised)))
        return [name for name in names if name not in words]
