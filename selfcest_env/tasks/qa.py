"""The base class of sources of questions over documents, and the source of a user's own questions."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from selfcest_env.errors import DataError, did_you_mean
from selfcest_env.tasks.files import Record
from selfcest_env.tasks.finite import FileSource
from selfcest_env.tasks.plan import PlanStep, QuestionPlan
from selfcest_env.tasks.reader import PLAN, Reader
from selfcest_env.tasks.source import Proposal, Style
from selfcest_env.types import Scalar, Task
from selfcest_env.views import Observation

KEYS = ("question", "answer", "documents", "support", "id")
TEXTS_ELSEWHERE = frozenset({"context", "contexts", "ctxs", "docs", "document", "paragraphs", "passage", "passages"})
DATA_SETS = ("hotpotqa", "two_wiki", "musique")
NO_PLAN = "no gold decomposition"


def make_unique_keys(titles: Iterable[str]) -> tuple[str, ...]:
    """Return a unique key for each document: its title, or `title (2)` for the second document of that title."""
    keys: dict[str, None] = {}
    for title in titles:
        base = title.strip() or "untitled"
        key = base
        number = 1
        while key in keys:
            number += 1
            key = f"{base} ({number})"
        keys[key] = None
    return tuple(keys)


@dataclass(frozen=True)
class QuestionSource(FileSource):
    """Source of questions over documents. Its expert solves those whose gold decomposition leads to the answer.

    Attributes:
        decomposable_only: whether to leave out the questions that the expert cannot solve.
    """

    decomposable_only: bool = False

    def question(
        self,
        record: Record,
        text: str,
        answer: str,
        documents: Mapping[str, str],
        *,
        plan: QuestionPlan | None,
        support: Sequence[str] | None,
        aliases: tuple[str, ...] = (),
        metadata: Mapping[str, Scalar],
    ) -> Task | None:
        """Return the task of a record; `None` if an option leaves it out.

        The metadata key `support` (a JSON list) names the documents that the question needs. `plan` holds the
        decomposition of the question. If the expert cannot use it, `plan_fault` holds the reason instead.

        Args:
            record: the record.
            text: the question.
            answer: the right answer.
            documents: texts by unique key.
            plan: the gold decomposition, if there is one.
            support: keys of the documents that the question needs; `None` if the record does not name them.
            aliases: other right answers.
            metadata: further metadata.
        """
        for key, value in (("question", text), ("answer", answer)):
            if not value.strip():
                raise record.mismatch(key, "a text that is not empty")
        if not all(alias.strip() for alias in aliases):
            raise DataError(f"{record.place}: one of its right answers is empty; remove it")
        fault = NO_PLAN if plan is None else plan.fault(documents, (answer, *aliases))
        facts: dict[str, Scalar] = {"documents": len(documents)}
        if support is not None:
            facts["support"] = json.dumps(support, ensure_ascii=False)
        if plan is not None and not fault:
            facts |= {PLAN: plan.write(), "size": len(plan.steps)}
        elif self.decomposable_only:
            return None
        else:
            facts |= {"plan_fault": fault}
        return self.make(record, text.strip(), answer.strip(), documents, aliases, **facts, **metadata)

    @cached_property
    def reader(self) -> Reader:
        return Reader(self.tasks())

    def understands(self, observation: Observation) -> bool:
        return self.reader.understands(observation)

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        return self.reader.propose(observation, rng, style)


def single_step_plan(question: str, keys: Sequence[str], answer: str) -> QuestionPlan | None:
    """Return a plan with one step: the whole question, asked of all documents that it needs."""
    return QuestionPlan((PlanStep(question.strip(), tuple(keys), (answer.strip(),)),)) if keys else None


@dataclass(frozen=True)
class UserQuestions(QuestionSource):
    """Source of a user's own questions, from JSON lines, a JSON array or a folder of such files.

    A record has `question` and `answer`, a string, or a list whose first item is the answer and whose other items are
    aliases. It may have `documents` (an object of texts by key, or a list of texts or of objects with `title` and
    `text`), `support` (keys of the documents that the question needs) and `id`. A warning names every other key. A
    record with texts under a key of another layout is refused.
    """

    name: ClassVar[str] = "questions"

    def read(self, record: Record) -> Task | None:
        self._check_keys(record)
        answers = _answers(record)
        documents = _documents(record) if record.has("documents") else {}
        support = record.texts("support") if record.has("support") else None
        if not documents.keys() >= {*(support or ())}:
            raise record.mismatch("support", f"keys of its documents, which are {', '.join(documents) or 'none'}")
        question = record.text("question")
        metadata = {"id": record.text("id")} if record.has("id") else dict[str, Scalar]()
        plan = single_step_plan(question, support or (), answers[0])
        aliases = answers[1:]
        return self.question(
            record, question, answers[0], documents, plan=plan, support=support, aliases=aliases, metadata=metadata
        )

    def _check_keys(self, record: Record) -> None:
        unknown_keys = [key for key in record.data if key not in KEYS]
        for key in unknown_keys:
            if key in TEXTS_ELSEWHERE and not record.has("documents"):
                raise record.error(
                    key,
                    "is not read, and there are no 'documents'; give texts under that key, or read the file by the "
                    f"source of its data set ({', '.join(DATA_SETS)})",
                )
        for key in unknown_keys:
            if key not in self._warned_keys:
                self._warned_keys.add(key)
                warnings.warn(
                    f"{self.name}: {record.place}: {key} is not read.{did_you_mean(key, KEYS)} "
                    f"Expected {', '.join(KEYS)}",
                    stacklevel=2,
                )

    @cached_property
    def _warned_keys(self) -> set[str]:
        return set()


def _answers(record: Record) -> tuple[str, ...]:
    if isinstance(record.data.get("answer"), str):
        return (record.text("answer"),)
    if not isinstance(record.data.get("answer"), list) or not record.items("answer"):
        raise record.mismatch("answer", "a string, or a list of strings that all count as right")
    return record.texts("answer")


def _documents(record: Record) -> dict[str, str]:
    """Return the documents of a record by unique key, in any of the accepted layouts."""
    documents = record.data["documents"]
    if isinstance(documents, dict):
        part = record.part("documents")
        return {key: part.text(key) for key in documents}
    items = record.items("documents")
    if all(isinstance(item, str) for item in items):
        return {f"document {number}": text for number, text in enumerate(items, 1)}
    parts = record.parts("documents")
    keys = make_unique_keys(part.text("title") for part in parts)
    return {key: part.text("text") for key, part in zip(keys, parts, strict=True)}
