"""Questions for a table, one row for each of several documents, and the expert for all of them.

The question names columns, of which the first is the document's key, and the rows that are wanted. A clone is told the
columns and handed its documents; it replies with their rows, `| Ormby | 1843 |`, so that joining is copying. There is
no terse phrasing: the embedded model has neither `|` nor line breaks, and `keyed_cells` is its kind of table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from selfcest_env.graders.wide import EVALUATION, ROW_DOCUMENTS, read_row, write_row, write_table
from selfcest_env.structure import Between, Checked, OneOf
from selfcest_env.tasks.source import GIVE_UP, Proposal, Style, is_root, last_replies, may_delegate, may_read
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Scalar
from selfcest_env.views import Observation

AT_ONCE, ONE_BY_ONE = "at_once", "one_by_one"
_QUESTION = re.compile(
    r"Make a Markdown table with the columns ([^\n]+)\. Take values as they stand in the documents\. Its rows:"
    r"((?:\n- [^\n]+)+)"
)
_PART = re.compile(r"Write one line for each of your documents, without a header: ([^\n]+)")


@dataclass(frozen=True, slots=True)
class TableQuestion:
    """What is asked: of a root the rows `keys`, of a clone those of its documents, whichever they are.

    Attributes:
        columns: the first is for the key.
        keys: documents, one row each; empty for a clone.
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
        """Inverse of `write`; `None` for any other text."""
        if found := _QUESTION.fullmatch(text):
            question = cls(read_row(found[1]), tuple(found[2].split("\n- ")[1:]))
        elif found := _PART.fullmatch(text):
            question = cls(read_row(found[1]))
        else:
            return None
        return question if question.write() == text else None


def table_facts(
    question: TableQuestion, steps: Mapping[str, Mapping[str, Any]], documents: int
) -> Mapping[str, Scalar]:
    """Metadata of a task whose rows are about one document each.

    Args:
        steps: how each column is prepared and compared, as in `eval_pipeline` of WideSearch.
        documents: how many there are.
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


Find = Callable[[str, str, str], str | None]  # key, text, column -> what the text says of the column


@dataclass(frozen=True)
class TableExpert(Checked):
    """How the expert of a table works.

    Attributes:
        per_clone: documents that it hands to one clone.
        reading: how it reads by key: all documents `at_once`, or `one_by_one`, writing down each row before the next.
    """

    per_clone: Annotated[int, Between(1, 1000)] = 1
    reading: Annotated[str, OneOf(AT_ONCE, ONE_BY_ONE)] = AT_ONCE

    def find(self, key: str, text: str, column: str) -> str | None:
        """What a document says of a column, `None` if nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no find(key, text, column)")

    def asked(self, observation: Observation) -> TableQuestion | None:
        """The question of an agent, if it is of this family."""
        raise NotImplementedError(f"{type(self).__name__} has no asked(observation)")

    def understands(self, observation: Observation) -> bool:
        return self.asked(observation) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        question = self.asked(observation)
        if question is None:
            return GIVE_UP
        news = (observation.exchanges[-1].documents or {}) if observation.exchanges else {}
        texts = dict(observation.brief.documents)
        for exchange in observation.exchanges:
            texts.update(exchange.documents or {})
        if not question.keys:
            rows = self._rows(question, texts, tuple(texts))
            return Proposal(Answer("\n".join(map(write_row, rows)))) if rows else GIVE_UP
        if call := last_replies(observation):
            return _joined(question, [reply.text or "" for reply in call[1]])
        missing = [key for key in question.keys if key not in texts]
        parts = [question.keys[i : i + self.per_clone] for i in range(0, len(question.keys), self.per_clone)]
        delegate = is_root(observation) and may_delegate(observation, len(parts))
        if delegate and (style is Style.DELEGATE or (missing and not may_read(observation))):
            told = TableQuestion(question.columns).write()
            return Proposal(Delegate(tuple(CloneRequest(told, part) for part in parts)))
        if not missing:
            rows = self._rows(question, texts, question.keys)
            return Proposal(Answer(write_table(question.columns, rows))) if rows else GIVE_UP
        if not may_read(observation):
            return GIVE_UP
        thought = "\n".join(map(write_row, self._rows(question, texts, tuple(news)) or ()))
        return Proposal(Read(tuple(missing if self.reading == AT_ONCE else missing[:1])), thought)

    def _rows(
        self, question: TableQuestion, texts: Mapping[str, str], keys: Sequence[str]
    ) -> list[tuple[str, ...]] | None:
        """The rows of these documents; `None` if one does not say all that is asked."""
        rows = []
        for key in keys:
            values = [self.find(key, texts[key], column) for column in question.columns[1:]]
            if None in values:
                return None
            rows.append((key, *(value or "" for value in values)))
        return rows


def _joined(question: TableQuestion, replies: Sequence[str]) -> Proposal:
    """The rows that clones brought, in the order of the question; what did not come is left out."""
    lines = [read_row(line) for reply in replies for line in reply.split("\n")]
    rows = {row[0]: row for row in lines if len(row) == len(question.columns)}
    found = [rows[key] for key in question.keys if key in rows]
    return Proposal(Answer(write_table(question.columns, found))) if found else GIVE_UP
