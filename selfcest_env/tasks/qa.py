"""Questions over documents: what the data sets share, and a user's own questions."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from selfcest_env.errors import did_you_mean
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
    """A key per document: its title, `title (2)` for the second with that title, and so on."""
    keys: dict[str, None] = {}
    for title in titles:
        base = title.strip() or "untitled"
        key, number = base, 1
        while key in keys:
            number += 1
            key = f"{base} ({number})"
        keys[key] = None
    return tuple(keys)


@dataclass(frozen=True)
class QuestionSource(FileSource):
    """Questions over documents, with an expert where the gold decomposition is known and leads to the answer.

    Attributes:
        decomposable_only: leave out the questions that the expert cannot solve.
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
        """The task of a record.

        Its metadata says in `support` (a JSON list) which documents are needed, in `plan` how the question falls apart,
        and where it does not, in `plan_fault`, why.

        Args:
            record: where it comes from.
            text, answer, aliases: the question and what counts as right.
            documents: texts by unique key.
            plan: the gold decomposition if there is one.
            support: keys of the documents that are needed; `None` if the record does not say.
            metadata: other facts.
        """
        for key, value in (("question", text), ("answer", answer)):
            if not value.strip():
                raise record.mismatch(key, "a text that is not empty")
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
    """One step: the whole question, for a reader of all the documents that are needed."""
    return QuestionPlan((PlanStep(question.strip(), tuple(keys), (answer.strip(),)),)) if keys else None


@dataclass(frozen=True)
class UserQuestions(QuestionSource):
    """A user's own questions, as JSON lines, a JSON array or a folder of these.

    A record has `question`, `answer` (a string, or a list whose other items are aliases) and may have `documents` (an
    object of texts by key, or a list of texts or of objects with `title` and `text`), `support` (keys of the documents
    that are needed) and `id`. A key beside these is named in a warning; a record that has its texts under the key of
    another layout is refused.
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
        unread = [key for key in record.data if key not in KEYS]
        for key in unread:
            if key in TEXTS_ELSEWHERE and not record.has("documents"):
                raise record.error(
                    key,
                    "is not read, and there are no 'documents'; give texts under that key, or read the file by the "
                    f"source of its data set ({', '.join(DATA_SETS)})",
                )
        for key in unread:
            if key not in self._warned:
                self._warned.add(key)
                said = f"{record.place}: {key} is not read; expected {', '.join(KEYS)}.{did_you_mean(key, KEYS)}"
                warnings.warn(f"{self.name}: {said}", stacklevel=2)

    @cached_property
    def _warned(self) -> set[str]:
        return set()


def _answers(record: Record) -> tuple[str, ...]:
    if isinstance(record.data.get("answer"), str):
        return (record.text("answer"),)
    if not isinstance(record.data.get("answer"), list) or not record.items("answer"):
        raise record.mismatch("answer", "a string, or a list of strings that all count as right")
    return record.texts("answer")


def _documents(record: Record) -> dict[str, str]:
    found = record.data["documents"]
    if isinstance(found, dict):
        part = record.part("documents")
        return {key: part.text(key) for key in found}
    items = record.items("documents")
    if all(isinstance(item, str) for item in items):
        return dict(zip(make_unique_keys(f"document {i}" for i in range(1, len(items) + 1)), items, strict=True))
    parts = record.parts("documents")
    keys = make_unique_keys(part.text("title") for part in parts)
    return {key: part.text("text") for key, part in zip(keys, parts, strict=True)}
