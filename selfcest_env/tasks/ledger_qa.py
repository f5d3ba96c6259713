"""Questions over keyed documents, of which only a few matter: delegating by key buys total tokens.

`sum`: the prompt `?BFK` names documents; the answer is the last digit of the sum of all their digits. `chain`: each
document starts with the key of the next; `?B>3` means start at B and visit 3 documents in all, then add up likewise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from selfcest_env.protocol import Reply
from selfcest_env.structure import Between, Checked, OneOf, check_order
from selfcest_env.tasks.source import (
    GIVE_UP,
    KEYS,
    PHRASINGS,
    PLAIN,
    TERSE,
    Proposal,
    Style,
    add_up_replies,
    draw_int,
    is_root,
    last_replies,
    make_task,
    may_delegate,
    may_read,
    read_digit,
    running_sum,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Scalar, Task
from selfcest_env.views import Observation

SUM, CHAIN = "sum", "chain"


class LedgerQuery(NamedTuple):
    """What is asked. A clone's query has no keys: it is about the documents it was given.

    Tersely a clone that adds up is asked for part `[1]`, `[2]`, ...: the number keeps the place in the question for the
    root, which without it repeats or skips keys. Then `visits` is that number.
    """

    mode: str
    keys: tuple[str, ...]
    visits: int
    phrasing: str

    def write(self) -> str:
        if self.phrasing == TERSE:
            if not self.keys:
                return f"[{self.visits}]" if self.mode == SUM else ">"
            return "?" + "".join(self.keys) + (f">{self.visits}" if self.mode == CHAIN else "")
        if self.mode == SUM:
            whose = f"the ledgers {', '.join(self.keys)}" if self.keys else "your ledger"
            return f"Add up all entries of {whose}. Answer with the last digit of the sum."
        if not self.keys:
            return (
                "Add up all entries of your ledger. Answer with the key of its next ledger and then the last digit of "
                "the sum, as in 'K9'."
            )
        return (
            f"Start at ledger {self.keys[0]} and go on to the next ledger it names, until you have visited "
            f"{self.visits} ledgers in all. Add up all entries of these. Answer with the last digit of the sum."
        )


_TERSE_PART = re.compile(r"\[([0-9]{1,2})\]")
_TERSE_SUM = re.compile(r"\?([A-Za-z]+)")
_TERSE_CHAIN = re.compile(r"\?([A-Za-z])>([0-9]{1,2})")
_PLAIN_SUM = re.compile(r"Add up all entries of the ledgers ([A-Za-z](?:, [A-Za-z])*)\. .*", re.S)
_PLAIN_CHAIN = re.compile(r"Start at ledger ([A-Za-z]) .* visited ([0-9]{1,2}) ledgers in all\. .*", re.S)
_OWN = [LedgerQuery(mode, (), 1, phrasing) for mode in (SUM, CHAIN) for phrasing in PHRASINGS]


def parse(text: str) -> LedgerQuery | None:
    """The query a text asks, in any mode and phrasing; `None` if it asks something else."""
    text = text.strip()
    if match := _TERSE_PART.fullmatch(text):
        return LedgerQuery(SUM, (), int(match.group(1)), TERSE)
    for query in _OWN:
        if text == query.write():
            return query
    for pattern, phrasing in ((_TERSE_CHAIN, TERSE), (_PLAIN_CHAIN, PLAIN)):
        if match := pattern.fullmatch(text):
            return LedgerQuery(CHAIN, (match.group(1),), int(match.group(2)), phrasing)
    if match := _TERSE_SUM.fullmatch(text):
        return LedgerQuery(SUM, tuple(match.group(1)), len(match.group(1)), TERSE)
    if match := _PLAIN_SUM.fullmatch(text):
        keys = tuple(match.group(1).split(", "))
        return LedgerQuery(SUM, keys, len(keys), PLAIN)
    return None


class LedgerDocument(NamedTuple):
    """A document: its digits, and in a chain the key of the next document."""

    digits: tuple[int, ...]
    next_key: str = ""

    def write(self, phrasing: str) -> str:
        if phrasing == TERSE:
            return self.next_key + "".join(map(str, self.digits))
        entries = f"Entries: {', '.join(map(str, self.digits))}."
        return f"Next ledger: {self.next_key}. {entries}" if self.next_key else entries


_TERSE_LEDGER = re.compile(r"([A-Za-z]?)([0-9]+)")
_PLAIN_LEDGER = re.compile(r"(?:Next ledger: ([A-Za-z])\. )?Entries: ([0-9](?:, [0-9])*)\.")


def read_ledger(text: str) -> LedgerDocument:
    """A document in either phrasing; an unreadable one is empty."""
    if match := _TERSE_LEDGER.fullmatch(text.strip()):
        return LedgerDocument(tuple(map(int, match.group(2))), match.group(1))
    if match := _PLAIN_LEDGER.fullmatch(text.strip()):
        return LedgerDocument(tuple(map(int, match.group(2).split(", "))), match.group(1) or "")
    return LedgerDocument(())


_Keys = Annotated[int, Between(1, len(KEYS))]


@dataclass(frozen=True)
class LedgerQA(Checked):
    """Source of questions over keyed documents.

    Attributes:
        mode: "sum", whose parts are independent, or "chain", which is serial.
        min_documents, max_documents: documents of one task; of two sets with disjoint counts none shares a task.
        min_named, max_named: documents that a sum names, never more than there are.
        min_hops, max_hops: documents that a chain visits, likewise.
        min_length, max_length: digits of one document.
        phrasing: "terse" for the embedded model, "plain" English for language models.
    """

    name: ClassVar[str] = "ledger_qa"
    mode: Annotated[str, OneOf(SUM, CHAIN)] = SUM
    min_documents: _Keys = 4
    max_documents: _Keys = 12
    min_named: _Keys = 2
    max_named: _Keys = 4
    min_hops: _Keys = 2
    max_hops: _Keys = 4
    min_length: Annotated[int, Between(1, 100)] = 3
    max_length: Annotated[int, Between(1, 100)] = 6
    phrasing: Annotated[str, OneOf(*PHRASINGS)] = TERSE

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("documents", "named", "hops", "length"):
            check_order(self, f"min_{what}", f"max_{what}")
        visits = "named" if self.mode == SUM else "hops"
        check_order(self, f"min_{visits}", "min_documents")  # else the smallest task would have too few documents

    def draw(self, rng: np.random.Generator) -> Task:
        count = draw_int(rng, self.min_documents, self.max_documents)
        low, high = (self.min_named, self.max_named) if self.mode == SUM else (self.min_hops, self.max_hops)
        visits = draw_int(rng, low, min(high, count))
        keys = [KEYS[int(i)] for i in rng.permutation(len(KEYS))[:count]]
        # One cycle through all documents: every chain visits distinct ones, and no document stands out.
        tour = [keys[int(i)] for i in rng.permutation(count)]
        following = dict(zip(tour, tour[1:] + tour[:1], strict=True)) if self.mode == CHAIN else {}
        ledgers = {key: LedgerDocument(self._digits(rng), following.get(key, "")) for key in keys}
        visited = tour[:visits]
        query = LedgerQuery(self.mode, tuple(visited if self.mode == SUM else visited[:1]), visits, self.phrasing)
        answer = sum(sum(ledgers[key].digits) for key in visited) % 10
        context = {key: ledger.write(self.phrasing) for key, ledger in ledgers.items()}
        metadata: dict[str, Scalar] = {"mode": self.mode, "size": visits, "documents": count}
        return make_task(self.name, query.write(), str(answer), metadata, context)

    def _digits(self, rng: np.random.Generator) -> tuple[int, ...]:
        length = draw_int(rng, self.min_length, self.max_length)
        return tuple(int(digit) for digit in rng.integers(0, 10, size=length))

    def understands(self, observation: Observation) -> bool:
        return parse(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        query = parse(observation.brief.text)
        if query is None:
            return GIVE_UP
        seen = _seen(observation)
        if not query.keys:
            return _own(query, seen)
        return (
            _propose_sum(query, seen, observation, style)
            if query.mode == SUM
            else _propose_chain(query, seen, observation, style)
        )


def _seen(observation: Observation) -> dict[str, LedgerDocument]:
    """Every document whose text the agent has seen."""
    texts: dict[str, str] = dict(observation.brief.documents)
    for exchange in observation.exchanges:
        texts.update(exchange.documents or {})
    return {key: read_ledger(text) for key, text in texts.items()}


def _own(query: LedgerQuery, seen: Mapping[str, LedgerDocument]) -> Proposal:
    """A clone with its document before it: digit and running total, then what was asked."""
    digits = [digit for ledger in seen.values() for digit in ledger.digits]
    if not digits:
        return GIVE_UP
    thought, total = running_sum([("", digit) for digit in digits], query.phrasing)
    next_key = list(seen.values())[-1].next_key if query.mode == CHAIN else ""
    return Proposal(Answer(f"{next_key}{total}"), thought)


def _add_up(keys: Sequence[str], seen: Mapping[str, LedgerDocument], phrasing: str) -> Proposal:
    """Key, then digit and running total over all documents; tersely `[1]B0` `33` `58` `[2]F8` `19` ...

    In the terse form a document's number says which key of the question comes next, and the restated total keeps the
    distance from one total to the next the same across documents; the next key of a chain stands among the digits and
    counts as nothing. Without the two a model of 0.2 M parameters did not learn to add up over documents.
    """
    if phrasing != TERSE:
        items = [(key if i == 0 else "", digit) for key in keys for i, digit in enumerate(seen[key].digits)]
        thought, total = running_sum(items, phrasing)
        return Proposal(Answer(str(total)), thought)
    thought, total = "", 0
    for number, key in enumerate(keys, 1):
        ledger = seen[key]
        thought += f"[{number}]{key}{total}" + (f"{ledger.next_key}{total}" if ledger.next_key else "")
        for digit in ledger.digits:
            total = (total + digit) % 10
            thought += f"{digit}{total}"
    return Proposal(Answer(str(total)), thought)


def _propose_sum(
    query: LedgerQuery, seen: Mapping[str, LedgerDocument], observation: Observation, style: Style
) -> Proposal:
    if call := last_replies(observation):
        return add_up_replies([read_digit(reply) for reply in call[1]], query.phrasing)
    missing = tuple(key for key in query.keys if key not in seen)
    if not missing and not (style is Style.DELEGATE and may_delegate(observation, len(query.keys))):
        return _add_up(query.keys, seen, query.phrasing)
    parts = [query._replace(keys=(), visits=number) for number in range(1, len(query.keys) + 1)]
    ask = Proposal(
        Delegate(tuple(CloneRequest(part.write(), (key,)) for part, key in zip(parts, query.keys, strict=True)))
    )
    return _get(ask, Proposal(Read(missing)), len(query.keys), observation, style)


def _propose_chain(
    query: LedgerQuery, seen: Mapping[str, LedgerDocument], observation: Observation, style: Style
) -> Proposal:
    key, values = query.keys[0], list[int]()
    for exchange in observation.exchanges:
        for reply in exchange.replies:
            link = _link(reply)
            if link is None:
                # Without the next key the chain cannot be followed by calls; documents may still be read.
                return _follow(query, seen, observation, Style.READ)
            key = link[0]
            values.append(link[1])
    if values and len(values) >= query.visits:
        return _combine_chain(values, query.phrasing)
    if style is Style.DELEGATE and may_delegate(observation):
        own = query._replace(keys=()).write()
        return Proposal(Delegate((CloneRequest(own, (key,)),)), _hop(len(values), query.phrasing))
    return _follow(query, seen, observation, style)


def _follow(query: LedgerQuery, seen: Mapping[str, LedgerDocument], observation: Observation, style: Style) -> Proposal:
    """Walk the documents that are in sight; ask for the first that is not."""
    visited, key = list[str](), query.keys[0]
    while len(visited) < query.visits:
        if not key:  # the chain breaks off: this document names no next one
            return GIVE_UP
        if key not in seen:
            ask = Proposal(Delegate((CloneRequest(query._replace(keys=()).write(), (key,)),)))
            read = Proposal(Read((key,)), _hop(len(visited), query.phrasing))
            return _get(ask, read, 1, observation, Style.READ if visited else style)
        visited.append(key)
        key = seen[key].next_key
    return _add_up(visited, seen, query.phrasing)


def _hop(done: int, phrasing: str) -> str:
    """The number of the hop that a turn begins, so that later turns can refer to it."""
    return f"[{done + 1}]" if phrasing == TERSE else ""


def _combine_chain(values: Sequence[int], phrasing: str) -> Proposal:
    """Add up what the hops brought: number, value, running total."""
    if phrasing != TERSE:
        return add_up_replies(values, phrasing)
    thought, total = running_sum([(f"[{i}]", value) for i, value in enumerate(values, 1)], phrasing)
    return Proposal(Answer(str(total)), thought)


def _get(ask: Proposal, read: Proposal, num_clones: int, observation: Observation, style: Style) -> Proposal:
    """Documents that are out of sight: by a clone or by reading, in the style's order, if there is any way at all."""
    ways = [(may_read(observation), read), (may_delegate(observation, num_clones) and is_root(observation), ask)]
    if style is Style.DELEGATE:
        ways.reverse()
    return next((way for possible, way in ways if possible), GIVE_UP)


_LINK = re.compile(r"([A-Za-z])([0-9])")


def _link(reply: Reply) -> tuple[str, int] | None:
    match = _LINK.fullmatch((reply.text or "").strip())
    return (match.group(1), int(match.group(2))) if match else None
