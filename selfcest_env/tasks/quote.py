"""A retrieval task without any computation: quote documents by key. It serves as a curriculum and as a probe.

A policy with many documents must find a key before it can learn from the text behind it. A small model does not learn
this from documents of digits, but it does from documents of many different symbols.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.structure import Between, Checked, OneOf, check_order
from selfcest_env.tasks.source import (
    GIVE_UP,
    KEYS,
    Proposal,
    Style,
    documents_in_sight,
    draw_int,
    make_task,
    may_read,
)
from selfcest_env.types import Answer, Read, Task
from selfcest_env.views import Observation

DIGITS = "digits"
ANY = "any"
_SYMBOLS = {DIGITS: string.digits, ANY: string.digits + KEYS}
_QUERY = re.compile(r"=([A-Za-z]+)")


_Keys = Annotated[int, Between(1, len(KEYS))]


@dataclass(frozen=True)
class Quote(Checked):
    """Source of quotations: the prompt `=BF` asks for `[1]B...[2]F...`, each key followed by its document.

    Attributes:
        min_documents, max_documents: number of documents of a task.
        min_named, max_named: number of documents to quote, at most all documents of the task.
        min_length, max_length: number of symbols of a document.
        alphabet: "digits", or "any" for digits and letters.
    """

    name: ClassVar[str] = "quote"
    min_documents: _Keys = 2
    max_documents: _Keys = 4
    min_named: _Keys = 2
    max_named: _Keys = 4
    min_length: Annotated[int, Between(1, 100)] = 3
    max_length: Annotated[int, Between(1, 100)] = 10
    alphabet: Annotated[str, OneOf(*_SYMBOLS)] = ANY

    def __post_init__(self) -> None:
        super().__post_init__()
        for quantity in ("documents", "named", "length"):
            check_order(self, f"min_{quantity}", f"max_{quantity}")
        # Otherwise the smallest task would have too few documents.
        check_order(self, "min_named", "min_documents")

    def draw(self, rng: np.random.Generator) -> Task:
        count = draw_int(rng, self.min_documents, self.max_documents)
        keys = [KEYS[int(i)] for i in rng.permutation(len(KEYS))[:count]]
        symbols = _SYMBOLS[self.alphabet]
        context: dict[str, str] = {}
        for key in keys:
            length = draw_int(rng, self.min_length, self.max_length)
            context[key] = "".join(symbols[int(i)] for i in rng.integers(len(symbols), size=length))
        num_named = draw_int(rng, self.min_named, min(self.max_named, count))
        named = [keys[int(i)] for i in rng.permutation(count)[:num_named]]
        metadata = {"size": len(named), "documents": count}
        return make_task(self.name, f"={''.join(named)}", _quotation(named, context), metadata, context)

    def understands(self, observation: Observation) -> bool:
        return _QUERY.fullmatch(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        query = _QUERY.fullmatch(observation.brief.text)
        if query is None:
            return GIVE_UP
        seen = documents_in_sight(observation)
        missing = tuple(key for key in query.group(1) if key not in seen)
        if missing:
            return Proposal(Read(missing)) if may_read(observation) else GIVE_UP
        return Proposal(Answer(_quotation(query.group(1), seen)))


def _quotation(keys: str | list[str], documents: dict[str, str]) -> str:
    return "".join(f"[{number}]{key}{documents[key]}" for number, key in enumerate(keys, 1))
