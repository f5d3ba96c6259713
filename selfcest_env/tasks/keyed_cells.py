"""A digit out of each of many keyed documents: many clones, and an answer that can be graded cell by cell.

The prompt `?AcBqCa` asks for field `c` of document A, `q` of B and `a` of C. The answer numbers their digits by
letters, `a4b0c7`, which is how replies reach a parent in the terse protocol, so that joining is copying. A document is
a list of fields, each a letter and a digit, in an order of its own: `k3c4q0`. The clone for a cell is told the field,
`c`, and is handed the document; it writes what it finds there, `c4`, and replies 4.

`!AcBqCa` asks for the digit of the *next* field each. Its clones are told the same; they write `c4q0` and reply 0.
Whoever has seen both kinds of questions answered knows what a clone may be meant to do, not which: a convention that
only the return can settle. With `asks: by_letter` there is one for each letter: `?AcBqCa` then means the field's own
digit where its letter is the first, third, fifth, ... of the alphabet, and the next one's elsewhere. No letter tells of
another, so that each is learned from its own clones alone.

Nothing joins the cells but their places in the answer. With the grader `cells` the return is a sum over clones, where
counterfactual and per-part credit have most to win; with `coupling: all` it is their conjunction, where they have
nothing to win.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from selfcest_env.structure import Checked
from selfcest_env.tasks.source import (
    GIVE_UP,
    TERSE,
    Proposal,
    Style,
    check_span,
    draw_int,
    format_label,
    is_root,
    last_replies,
    make_task,
    may_delegate,
    may_read,
    read_digit,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Task
from selfcest_env.views import Observation

KEYS, FIELDS = string.ascii_uppercase, string.ascii_lowercase
_MARKS = {"own": "?", "next": "!", "by_letter": "?"}
_QUESTION = re.compile(r"([?!])((?:[A-Z][a-z])+)")
_ENTRIES = re.compile(r"(?:[a-z][0-9])+")


@dataclass(frozen=True)
class KeyedCells(Checked):
    """Source of questions for one digit of each of several documents.

    Attributes:
        min_cells, max_cells: documents, each asked for one field.
        min_fields, max_fields: of one document.
        asks: `own`, for the digits of the fields that are named, `next`, for those of the fields after them, or
            `by_letter`. A clone cannot tell, so show each as a family of its own, with its expert, and not as one
            mixture.
    """

    name: ClassVar[str] = "keyed_cells"
    min_cells: int = 16
    max_cells: int = 16
    min_fields: int = 8
    max_fields: int = 8
    asks: Literal["own", "next", "by_letter"] = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_span(self.name, ("min_cells", "max_cells"), (self.min_cells, self.max_cells), 1, len(KEYS))
        fewest = 1 if self.asks == "own" else 2
        check_span(self.name, ("min_fields", "max_fields"), (self.min_fields, self.max_fields), fewest, len(FIELDS))

    def draw(self, rng: np.random.Generator) -> Task:
        count = draw_int(rng, self.min_cells, self.max_cells)
        keys = [KEYS[i] for i in rng.permutation(len(KEYS))[:count]]
        question, answer, context = _MARKS[self.asks], "", dict[str, str]()
        for key in keys:
            length = draw_int(rng, self.min_fields, self.max_fields)
            fields = [FIELDS[i] for i in rng.permutation(len(FIELDS))[:length]]
            digits = rng.integers(10, size=length)
            asked = draw_int(rng, 0, length - (1 if self.asks == "own" else 2))
            context[key] = "".join(f"{field}{digit}" for field, digit in zip(fields, digits, strict=True))
            question += key + fields[asked]
            answer += format_label(len(answer) // 2, TERSE) + str(digits[asked + self._further(fields[asked])])
        listed = {key: context[key] for key in sorted(context)}
        return make_task(self.name, question, answer, {"size": count, "cells": "".join(keys)}, listed)

    def understands(self, observation: Observation) -> bool:
        return self._asked(observation) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        asked, documents = self._asked(observation), dict(observation.brief.documents)
        if asked is None:
            return GIVE_UP
        if call := last_replies(observation):
            return Proposal(Answer(_labelled([str(read_digit(reply)) for reply in call[1]])))
        missing = tuple(key for key, _ in asked if key not in documents)
        delegate = is_root(observation) and may_delegate(observation, len(asked))
        if delegate and (style is Style.DELEGATE or (missing and not may_read(observation))):
            return Proposal(Delegate(tuple(CloneRequest(field, (key,)) for key, field in asked)))
        brought = {key: text for past in observation.exchanges for key, text in (past.documents or {}).items()}
        if missing and not brought:
            return Proposal(Read(missing)) if may_read(observation) else GIVE_UP
        found = [_found((documents | brought).get(key, ""), field, self._further(field)) for key, field in asked]
        if not all(found):
            return GIVE_UP
        digits = [entries[-1] for entries in found]
        return Proposal(Answer(_labelled(digits))) if is_root(observation) else Proposal(Answer(digits[0]), found[0])

    def _further(self, field: str) -> int:
        """How many fields after the named one stands the digit that is asked for."""
        return {"own": 0, "next": 1, "by_letter": FIELDS.index(field) % 2}[self.asks]

    def _asked(self, observation: Observation) -> list[tuple[str, str]] | None:
        """Document and field of each cell, of a question of this kind; of a clone those of its one cell, of either."""
        text, documents = observation.brief.text, dict(observation.brief.documents)
        if not is_root(observation) and len(text) == 1 and text in FIELDS and len(documents) == 1:
            return [(key, text) for key in documents]
        found = _QUESTION.fullmatch(text)
        if found is None or found[1] != _MARKS[self.asks]:
            return None
        return [(pair[0], pair[1]) for pair in re.findall("[A-Z][a-z]", found[2])]


def _labelled(digits: Sequence[str]) -> str:
    return "".join(format_label(place, TERSE) + digit for place, digit in enumerate(digits))


def _found(entries: str, field: str, further: int) -> str:
    """A field with its digit and so many fields after it; empty if there are none, or if these are no entries."""
    place = entries[::2].find(field) if _ENTRIES.fullmatch(entries) else -1
    found = entries[2 * place : 2 * (place + 1 + further)] if place >= 0 else ""
    return found if len(found) == 2 * (1 + further) else ""
