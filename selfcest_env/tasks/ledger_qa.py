"""Questions over keyed documents of which only a few matter, so that delegation by key saves total tokens.

In the mode `sum`, the prompt `?BFK` names documents, and the answer is the last digit of the sum of all their digits.
In the mode `chain`, each document starts with the key of the next one. The prompt `?B>3` means: start at B, visit 3
documents in all, and add up their digits in the same way.
"""

from __future__ import annotations

import itertools
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
    documents_in_sight,
    draw_int,
    find_last_call,
    is_root,
    make_task,
    may_delegate,
    may_read,
    read_digit,
    running_sum,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Scalar, Task
from selfcest_env.views import Observation

SUM = "sum"
CHAIN = "chain"


class LedgerQuery(NamedTuple):
    """A question.

    Attributes:
        mode: `SUM` or `CHAIN`.
        keys: the documents that the question names; empty for a clone, which is asked about the documents it was given.
        visits: number of documents to visit. In the terse question to a clone, `[1]`, `[2]`, ..., it is the number of
            the part. Without this number, a small model as the root repeats or skips keys.
        phrasing: "terse" or "plain".
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
            ledgers = f"the ledgers {', '.join(self.keys)}" if self.keys else "your ledger"
            return f"Add up all entries of {ledgers}. Answer with the last digit of the sum."
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
_CLONE_QUERIES = [LedgerQuery(mode, (), 1, phrasing) for mode, phrasing in itertools.product((SUM, CHAIN), PHRASINGS)]


def parse(text: str) -> LedgerQuery | None:
    """Return the query of a text, in any mode and phrasing, or `None` if the text is no such query."""
    text = text.strip()
    if match := _TERSE_PART.fullmatch(text):
        return LedgerQuery(SUM, (), int(match.group(1)), TERSE)
    for query in _CLONE_QUERIES:
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
    """A document: its digits, and in the mode `chain` the key of the next document."""

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
    """Read a document in either phrasing. An unreadable document has no digits."""
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
        mode: "sum", whose parts are independent, or "chain", whose parts are serial.
        min_documents, max_documents: number of documents of a task. Two sources whose ranges are disjoint share no
            task.
        min_named, max_named: number of documents that a sum names, at most all documents of the task.
        min_hops, max_hops: number of documents that a chain visits, at most all documents of the task.
        min_length, max_length: number of digits of a document.
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
        for quantity in ("documents", "named", "hops", "length"):
            check_order(self, f"min_{quantity}", f"max_{quantity}")
        # Otherwise the smallest task would have too few documents.
        check_order(self, "min_named" if self.mode == SUM else "min_hops", "min_documents")

    def draw(self, rng: np.random.Generator) -> Task:
        count = draw_int(rng, self.min_documents, self.max_documents)
        low, high = (self.min_named, self.max_named) if self.mode == SUM else (self.min_hops, self.max_hops)
        visits = draw_int(rng, low, min(high, count))
        keys = [KEYS[i] for i in rng.permutation(len(KEYS))[:count].tolist()]
        # One cycle leads through all documents. So every chain visits distinct documents, and none can be told apart.
        tour = [keys[i] for i in rng.permutation(count).tolist()]
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
        return tuple(rng.integers(0, 10, size=length).tolist())

    def understands(self, observation: Observation) -> bool:
        return parse(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        query = parse(observation.brief.text)
        if query is None:
            return GIVE_UP
        ledgers = {key: read_ledger(text) for key, text in documents_in_sight(observation).items()}
        if not query.keys:
            return _answer_clone_query(query, ledgers)
        if query.mode == SUM:
            return _propose_sum(query, ledgers, observation, style)
        return _propose_chain(query, ledgers, observation, style)


def _answer_clone_query(query: LedgerQuery, ledgers: Mapping[str, LedgerDocument]) -> Proposal:
    """Add up the clone's documents, with every digit and running total in the thought."""
    digits: list[int] = []
    for ledger in ledgers.values():
        digits += ledger.digits
    if not digits:
        return GIVE_UP
    thought, total = running_sum([("", digit) for digit in digits], query.phrasing)
    next_key = list(ledgers.values())[-1].next_key if query.mode == CHAIN else ""
    return Proposal(Answer(f"{next_key}{total}"), thought)


def _add_up(keys: Sequence[str], ledgers: Mapping[str, LedgerDocument], phrasing: str) -> Proposal:
    """Add up documents, with the key of each, its digits and the running totals in the thought.

    The terse thought is `[1]B0` `33` `58` `[2]F8` `19` ... The number of a document says which key of the question
    comes next. The total is restated after the key, so that the distance between two totals is the same everywhere. For
    the same reason the next key of a chain is written like a digit that adds 0. Without the number and the restated
    total, a model of 0.2 M parameters did not learn to add up over documents.
    """
    if phrasing != TERSE:
        items: list[tuple[str, int]] = []
        for key in keys:
            labels = (key if index == 0 else "" for index in range(len(ledgers[key].digits)))
            items += zip(labels, ledgers[key].digits, strict=True)
        thought, total = running_sum(items, phrasing)
        return Proposal(Answer(str(total)), thought)
    thought = ""
    total = 0
    for number, key in enumerate(keys, 1):
        ledger = ledgers[key]
        thought += f"[{number}]{key}{total}" + (f"{ledger.next_key}{total}" if ledger.next_key else "")
        for digit in ledger.digits:
            total = (total + digit) % 10
            thought += f"{digit}{total}"
    return Proposal(Answer(str(total)), thought)


def _propose_sum(
    query: LedgerQuery, ledgers: Mapping[str, LedgerDocument], observation: Observation, style: Style
) -> Proposal:
    if call := find_last_call(observation):
        return add_up_replies([read_digit(reply) for reply in call.replies], query.phrasing)
    missing = tuple(key for key in query.keys if key not in ledgers)
    if not missing and not (style is Style.DELEGATE and may_delegate(observation, len(query.keys))):
        return _add_up(query.keys, ledgers, query.phrasing)
    requests: list[CloneRequest] = []
    for number, key in enumerate(query.keys, 1):
        part = query._replace(keys=(), visits=number)
        requests.append(CloneRequest(part.write(), (key,)))
    delegation = Proposal(Delegate(tuple(requests)))
    return _get_documents(delegation, Proposal(Read(missing)), len(query.keys), observation, style)


def _propose_chain(
    query: LedgerQuery, ledgers: Mapping[str, LedgerDocument], observation: Observation, style: Style
) -> Proposal:
    key = query.keys[0]
    values: list[int] = []
    for exchange in observation.exchanges:
        for reply in exchange.replies:
            link = _read_link(reply)
            if link is None:
                # Without the next key, calls cannot follow the chain. The documents may still be read.
                return _follow_chain(query, ledgers, observation, Style.READ)
            key = link[0]
            values.append(link[1])
    if values and len(values) >= query.visits:
        return _add_up_hops(values, query.phrasing)
    if style is Style.DELEGATE and may_delegate(observation):
        clone_query = query._replace(keys=()).write()
        return Proposal(Delegate((CloneRequest(clone_query, (key,)),)), _label_hop(len(values), query.phrasing))
    return _follow_chain(query, ledgers, observation, style)


def _follow_chain(
    query: LedgerQuery, ledgers: Mapping[str, LedgerDocument], observation: Observation, style: Style
) -> Proposal:
    """Follow the chain through the documents in sight, and get the first document that is not in sight."""
    visited: list[str] = []
    key = query.keys[0]
    while len(visited) < query.visits:
        # A document without a next key breaks the chain.
        if not key:
            return GIVE_UP
        if key not in ledgers:
            call = Proposal(Delegate((CloneRequest(query._replace(keys=()).write(), (key,)),)))
            read = Proposal(Read((key,)), _label_hop(len(visited), query.phrasing))
            return _get_documents(call, read, 1, observation, Style.READ if visited else style)
        visited.append(key)
        key = ledgers[key].next_key
    return _add_up(visited, ledgers, query.phrasing)


def _label_hop(num_done: int, phrasing: str) -> str:
    """Return the number of the hop that this turn begins, to which later turns refer."""
    return f"[{num_done + 1}]" if phrasing == TERSE else ""


def _add_up_hops(values: Sequence[int], phrasing: str) -> Proposal:
    """Add up the digits of all hops, with the number of each hop and the running totals in the thought."""
    if phrasing != TERSE:
        return add_up_replies(values, phrasing)
    thought, total = running_sum([(f"[{i}]", value) for i, value in enumerate(values, 1)], phrasing)
    return Proposal(Answer(str(total)), thought)


def _get_documents(call: Proposal, read: Proposal, num_clones: int, observation: Observation, style: Style) -> Proposal:
    """Return the call or the read, whichever is possible and preferred by the style, or give up if neither is."""
    can_delegate = may_delegate(observation, num_clones) and is_root(observation)
    options = [(may_read(observation), read), (can_delegate, call)]
    if style is Style.DELEGATE:
        options.reverse()
    return next((proposal for is_possible, proposal in options if is_possible), GIVE_UP)


_LINK = re.compile(r"([A-Za-z])([0-9])")


def _read_link(reply: Reply) -> tuple[str, int] | None:
    """Return the next key and the digit of a clone's reply, such as `K9`; `None` for any other reply."""
    match = _LINK.fullmatch((reply.text or "").strip())
    return (match.group(1), int(match.group(2))) if match else None
