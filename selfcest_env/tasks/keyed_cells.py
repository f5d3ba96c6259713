"""Look up one digit in each of many keyed documents: many clones, and an answer that can be graded cell by cell.

The prompt `?AcBqCa` asks for field `c` of document A, `q` of B and `a` of C. A document is a list of fields, each a
letter and a digit, in random order: `k3c4q0`. The clone of a cell gets the document and the field, `c`. It writes the
entry, `c4`, and replies 4. The answer labels the digits with letters, `a4b0c7`. The terse protocol labels replies in
the same way, so that the root only copies them.

`!AcBqCa` asks for the digit of the *next* field. Its clones get the same objectives, write `c4q0` and reply 0. A policy
that was trained on both kinds of questions cannot tell which one a clone is meant to answer. It is a convention that
only the return can settle. With `asks: by_letter` each letter has a convention: `?AcBqCa` asks for the digit of the
field itself if its letter is the first, third, fifth, ... of the alphabet, and for the next field's digit otherwise. No
letter tells about another, so the policy must learn each letter from the clones that were asked for it.

The cells are independent. With the grader `cells` the return is a sum over clones, for which counterfactual and
per-part credit help most. With `coupling: all` it is their conjunction, for which they cannot help.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from selfcest_env.errors import check_integer
from selfcest_env.structure import Between, Checked, check_order
from selfcest_env.tasks.source import (
    GIVE_UP,
    TERSE,
    Proposal,
    Style,
    documents_in_sight,
    documents_read,
    draw_int,
    find_last_call,
    format_label,
    is_root,
    make_task,
    may_delegate,
    may_read,
    read_digit,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Task
from selfcest_env.views import Observation

KEYS = string.ascii_uppercase
FIELDS = string.ascii_lowercase
_MARKS = {"own": "?", "next": "!", "by_letter": "?"}
_QUESTION = re.compile(r"([?!])((?:[A-Z][a-z])+)")
_ENTRIES = re.compile(r"(?:[a-z][0-9])+")


@dataclass(frozen=True)
class KeyedCells(Checked):
    """Source of questions for one digit of each of several documents.

    Attributes:
        min_cells, max_cells: number of documents. Each is asked for one field.
        min_fields, max_fields: number of fields of a document.
        asks: `own` for the digits of the named fields, `next` for those of the fields after them, or `by_letter`. A
            clone cannot tell them apart, so each needs its own family with its own expert, and no mixture.
    """

    name: ClassVar[str] = "keyed_cells"
    min_cells: Annotated[int, Between(1, len(KEYS))] = 16
    max_cells: Annotated[int, Between(1, len(KEYS))] = 16
    min_fields: Annotated[int, Between(1, len(FIELDS))] = 8
    max_fields: Annotated[int, Between(1, len(FIELDS))] = 8
    asks: Literal["own", "next", "by_letter"] = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "min_cells", "max_cells")
        check_order(self, "min_fields", "max_fields")
        if self.asks != "own":
            check_integer("min_fields", self.min_fields, 2, len(FIELDS), "the named field and the next one")

    def draw(self, rng: np.random.Generator) -> Task:
        count = draw_int(rng, self.min_cells, self.max_cells)
        keys = [KEYS[i] for i in rng.permutation(len(KEYS))[:count]]
        question = _MARKS[self.asks]
        answer = ""
        context: dict[str, str] = {}
        for key in keys:
            length = draw_int(rng, self.min_fields, self.max_fields)
            fields = [FIELDS[i] for i in rng.permutation(len(FIELDS))[:length]]
            digits = rng.integers(10, size=length)
            # The last field has no next one.
            index = draw_int(rng, 0, length - (1 if self.asks == "own" else 2))
            context[key] = "".join(f"{field}{digit}" for field, digit in zip(fields, digits, strict=True))
            question += key + fields[index]
            digit = digits[index + self._offset(fields[index])]
            answer += format_label(len(answer) // 2, TERSE) + str(digit)
        sorted_context = {key: context[key] for key in sorted(context)}
        return make_task(self.name, question, answer, {"size": count, "cells": "".join(keys)}, sorted_context)

    def understands(self, observation: Observation) -> bool:
        return self._read_cells(observation) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        cells = self._read_cells(observation)
        if cells is None:
            return GIVE_UP
        if call := find_last_call(observation):
            return Proposal(Answer(_label_digits([str(read_digit(reply)) for reply in call.replies])))
        given_documents = observation.brief.documents
        missing = tuple(key for key, _ in cells if key not in given_documents)
        can_delegate = is_root(observation) and may_delegate(observation, len(cells))
        if can_delegate and (style is Style.DELEGATE or (missing and not may_read(observation))):
            return Proposal(Delegate(tuple(CloneRequest(field, (key,)) for key, field in cells)))
        if missing and not documents_read(observation):
            return Proposal(Read(missing)) if may_read(observation) else GIVE_UP
        documents = documents_in_sight(observation)
        entries = [_look_up(documents.get(key, ""), field, self._offset(field)) for key, field in cells]
        if not all(entries):
            return GIVE_UP
        digits = [entry[-1] for entry in entries]
        if is_root(observation):
            return Proposal(Answer(_label_digits(digits)))
        return Proposal(Answer(digits[0]), entries[0])

    def _offset(self, field: str) -> int:
        """Return the distance in fields from the named field to the field whose digit is asked for."""
        return {"own": 0, "next": 1, "by_letter": FIELDS.index(field) % 2}[self.asks]

    def _read_cells(self, observation: Observation) -> list[tuple[str, str]] | None:
        """Return the document key and the field of each cell; `None` for questions of another kind.

        A clone has one cell. Its objective does not tell the kinds apart.
        """
        text = observation.brief.text
        documents = observation.brief.documents
        if not is_root(observation) and len(text) == 1 and text in FIELDS and len(documents) == 1:
            return [(key, text) for key in documents]
        match = _QUESTION.fullmatch(text)
        if match is None or match[1] != _MARKS[self.asks]:
            return None
        return [(pair[0], pair[1]) for pair in re.findall("[A-Z][a-z]", match[2])]


def _label_digits(digits: Sequence[str]) -> str:
    return "".join(format_label(index, TERSE) + digit for index, digit in enumerate(digits))


def _look_up(document: str, field: str, offset: int) -> str:
    """Return the entries from a field to the one `offset` fields later; empty if the document lacks one of them."""
    if not _ENTRIES.fullmatch(document):
        return ""
    index = document[::2].find(field)
    if index < 0:
        return ""
    num_entries = 1 + offset
    entries = document[2 * index : 2 * (index + num_entries)]
    return entries if len(entries) == 2 * num_entries else ""
