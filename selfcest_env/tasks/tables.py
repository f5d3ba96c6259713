"""Questions for a table with a row for each of several documents, and their expert.

The question names the columns, of which the first is the document's key, and the rows. A clone gets the columns and
some documents, and replies with their rows, `| Ormby | 1843 |`, so that the root only copies them. There is no terse
phrasing, because the embedded model has neither `|` nor line breaks. The similar source for it is `keyed_cells`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from selfcest_env.graders.wide import EVALUATION, ROW_DOCUMENTS, read_row, write_row, write_table
from selfcest_env.structure import Between, Checked, OneOf
from selfcest_env.tasks.source import (
    GIVE_UP,
    Proposal,
    Style,
    documents_in_sight,
    find_last_call,
    is_root,
    may_delegate,
    may_read,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Scalar
from selfcest_env.views import Observation

AT_ONCE = "at_once"
ONE_BY_ONE = "one_by_one"
_QUESTION = re.compile(
    r"Make a Markdown table with the columns ([^\n]+)\. Take values as they stand in the documents\. Its rows:"
    r"((?:\n- [^\n]+)+)"
)
_PART = re.compile(r"Write one line for each of your documents, without a header: ([^\n]+)")


@dataclass(frozen=True, slots=True)
class TableQuestion:
    """A question for a table.

    Attributes:
        columns: names of the columns. The first is for the key.
        keys: keys of the documents, with one row each; empty for a clone, which is asked for rows of all its documents.
    """

    columns: tuple[str, ...]
    keys: tuple[str, ...] = ()

    def write(self) -> str:
        columns = write_row(self.columns)
        if not self.keys:
            return f"Write one line for each of your documents, without a header: {columns}"
        rows = "".join(f"\n- {key}" for key in self.keys)
        return (
            f"Make a Markdown table with the columns {columns}. Take values as they stand in the documents. "
            f"Its rows:{rows}"
        )

    @classmethod
    def read(cls, text: str) -> TableQuestion | None:
        """Read a question that `write` returned; `None` for any other text."""
        if match := _QUESTION.fullmatch(text):
            question = cls(read_row(match[1]), tuple(match[2].split("\n- ")[1:]))
        elif match := _PART.fullmatch(text):
            question = cls(read_row(match[1]))
        else:
            return None
        return question if question.write() == text else None


def table_metadata(
    question: TableQuestion, steps: Mapping[str, Mapping[str, Any]], documents: int
) -> Mapping[str, Scalar]:
    """Return the metadata of a task whose rows are about one document each.

    Args:
        question: the question of the task.
        steps: preparation and metric of each column, as in `eval_pipeline` of WideSearch.
        documents: number of documents of the task.
    """
    evaluation = {"required": question.columns, "unique_columns": question.columns[:1], "eval_pipeline": steps}
    return {
        "size": len(question.keys),
        "columns": len(question.columns),
        "documents": documents,
        "support": json.dumps(question.keys, ensure_ascii=False),
        EVALUATION: json.dumps(evaluation, ensure_ascii=False),
        ROW_DOCUMENTS: json.dumps(question.keys, ensure_ascii=False),
    }


@dataclass(frozen=True)
class TableExpert(Checked):
    """The base class of sources of tables, with their expert.

    Attributes:
        per_clone: number of documents for each clone.
        reading: `at_once` reads all documents in one turn, `one_by_one` writes the row of each before the next.
    """

    per_clone: Annotated[int, Between(1, 1000)] = 1
    reading: Annotated[str, OneOf(AT_ONCE, ONE_BY_ONE)] = AT_ONCE

    def find_value(self, key: str, text: str, column: str) -> str | None:
        """Return the value of a column in a document, or `None` if the document lacks it."""
        raise NotImplementedError(f"{type(self).__name__} has no find_value(key, text, column)")

    def read_question(self, observation: Observation) -> TableQuestion | None:
        """Return the question of an agent if it is of this family, else `None`."""
        raise NotImplementedError(f"{type(self).__name__} has no read_question(observation)")

    def understands(self, observation: Observation) -> bool:
        return self.read_question(observation) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        question = self.read_question(observation)
        if question is None:
            return GIVE_UP
        texts = documents_in_sight(observation)
        if not question.keys:
            rows = self._fill_rows(question, texts, tuple(texts))
            return Proposal(Answer("\n".join(map(write_row, rows)))) if rows else GIVE_UP
        if call := find_last_call(observation):
            return _join_rows(question, [reply.text or "" for reply in call.replies])
        missing = [key for key in question.keys if key not in texts]
        parts = [question.keys[i : i + self.per_clone] for i in range(0, len(question.keys), self.per_clone)]
        can_delegate = is_root(observation) and may_delegate(observation, len(parts))
        if can_delegate and (style is Style.DELEGATE or (missing and not may_read(observation))):
            objective = TableQuestion(question.columns).write()
            return Proposal(Delegate(tuple(CloneRequest(objective, part) for part in parts)))
        if not missing:
            rows = self._fill_rows(question, texts, question.keys)
            return Proposal(Answer(write_table(question.columns, rows))) if rows else GIVE_UP
        if not may_read(observation):
            return GIVE_UP
        newest_keys = tuple(observation.exchanges[-1].documents or {}) if observation.exchanges else ()
        thought = "\n".join(map(write_row, self._fill_rows(question, texts, newest_keys) or ()))
        return Proposal(Read(tuple(missing if self.reading == AT_ONCE else missing[:1])), thought)

    def _fill_rows(
        self, question: TableQuestion, texts: Mapping[str, str], keys: Sequence[str]
    ) -> list[tuple[str, ...]] | None:
        """Return the rows of these documents, or `None` if a document lacks a value."""
        rows: list[tuple[str, ...]] = []
        for key in keys:
            values = [self.find_value(key, texts[key], column) for column in question.columns[1:]]
            if None in values:
                return None
            rows.append((key, *(value or "" for value in values)))
        return rows


def _join_rows(question: TableQuestion, replies: Sequence[str]) -> Proposal:
    """Return the table of the clones' rows, in the order of the question. Missing rows are left out."""
    row_by_key: dict[str, tuple[str, ...]] = {}
    for line in "\n".join(replies).split("\n"):
        row = read_row(line)
        if len(row) == len(question.columns):
            row_by_key[row[0]] = row
    rows = [row_by_key[key] for key in question.keys if key in row_by_key]
    return Proposal(Answer(write_table(question.columns, rows))) if rows else GIVE_UP
