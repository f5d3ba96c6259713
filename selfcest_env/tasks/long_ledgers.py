"""Sums over long keyed ledgers: the work grows with the entries, and each ledger can be worked through apart.

The prompt `?[1]C[2]E` names ledgers; the answer is the last digit of the sum of all their entries. A ledger is a list
of fields, each a letter and a digit: `k3a7q0`. The letters are shuffled for every task and the same in all its ledgers,
so that there is something to copy by, and a ledger can be told from another by its key alone. `?[1]C[2]E%5` asks modulo
5. The numbers say which ledger comes next: after a key alone the list of the documents that there are, in which every
key stands as well, goes on in another way than the question, and small models then learn neither.

For chat models the same in words: the question in English, a ledger as `cups 3, lamps 7`.

The total of named entries is bounded, not the length of each ledger: under a bound on each, the number in a clone's
objective, `[4]`, would tell how long its ledger can be, and a longer one would be new to it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.tasks.source import (
    GIVE_UP,
    PHRASINGS,
    PLAIN,
    TERSE,
    Proposal,
    Style,
    add_up_replies,
    check_choice,
    check_int,
    check_span,
    draw_int,
    format_label,
    is_root,
    last_replies,
    make_task,
    may_delegate,
    may_read,
    read_digit,
    running_sum,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Task
from selfcest_env.views import Observation

KEYS, FIELDS = string.ascii_uppercase, string.ascii_lowercase
WORDS = (
    *("apples", "bags", "balls", "beds", "books", "boxes", "cups", "desks", "doors", "eggs", "fans", "forks", "hats"),
    *("jars", "keys", "lamps", "maps", "nails", "pens", "pots", "rings", "rugs", "shoes", "spoons", "tables", "tents"),
)
AT_ONCE, ONE_BY_ONE = "at_once", "one_by_one"

Entries = tuple[tuple[str, int], ...]  # field and digit


class LongLedgerQuery(NamedTuple):
    """What is asked: of a root about the ledgers `keys`, of a clone, as part `part` of a call, about the one it has.

    In words every clone is asked the same: its place in the call says which part it is.
    """

    keys: tuple[str, ...]
    part: int
    modulus: int
    phrasing: str = TERSE

    def write(self) -> str:
        if self.phrasing == PLAIN:
            ledgers = "ledgers" if len(self.keys) > 1 else "ledger"
            whose = f"the {ledgers} {', '.join(self.keys)}" if self.keys else "your ledger"
            return f"What is the last digit of the sum of all amounts in {whose}?"
        what = "?" + "".join(_numbered(self.keys)) if self.keys else f"[{self.part}]"
        return what + (f"%{self.modulus}" if self.modulus != 10 else "")


_QUERY = re.compile(r"(?:\?((?:\[[0-9]{1,2}\][A-Z])+)|\[([0-9]{1,2})\])(?:%([2-9]))?")
_PLAIN_QUERY = re.compile(r"What is the .* amounts in (?:the ledgers? ([A-Z](?:, [A-Z])*)|your ledger)\?")
_ENTRIES = re.compile(r"([a-z][0-9])+")
_PLAIN_ENTRIES = re.compile(r"[a-z]+ [0-9](?:, [a-z]+ [0-9])*")


def parse(text: str) -> LongLedgerQuery | None:
    """The query a text asks; `None` if it asks something else."""
    if match := _PLAIN_QUERY.fullmatch(text):
        keys = tuple(match.group(1).split(", ")) if match.group(1) else ()
        query = LongLedgerQuery(keys, 0 if keys else 1, 10, PLAIN)
    elif match := _QUERY.fullmatch(text):
        numbered, part, modulus = match.groups()
        query = LongLedgerQuery(tuple(re.findall("[A-Z]", numbered or "")), int(part or 0), int(modulus or 10))
    else:
        return None
    return query if query.write() == text else None


def _numbered(keys: Iterable[str]) -> list[str]:
    return [f"[{number}]{key}" for number, key in enumerate(keys, 1)]


def read_entries(text: str) -> Entries:
    """The entries of a ledger, in letters or in words; an unreadable one has none."""
    if _PLAIN_ENTRIES.fullmatch(text):
        return tuple((word, int(digit)) for word, digit in (entry.split(" ") for entry in text.split(", ")))
    return tuple((a, int(b)) for a, b in zip(text[::2], text[1::2], strict=True)) if _ENTRIES.fullmatch(text) else ()


@dataclass(frozen=True)
class LongLedgers:
    """Source of sums over long keyed ledgers.

    Attributes:
        min_named, max_named: ledgers that the question names.
        min_length, max_length: entries of one ledger.
        max_entries: of all named ledgers together; `null`: no bound.
        unnamed: further ledgers, as long as the longest named one, that nobody asks for.
        modulus: of the sum, and of the digits.
        reading: how the expert reads by key: `one_by_one`, with a subtotal of each ledger, or `at_once`.
        phrasing: "terse" for the embedded model, "plain" English for language models, with a modulus of 10.
    """

    name: ClassVar[str] = "long_ledgers"
    min_named: int = 1
    max_named: int = 6
    min_length: int = 2
    max_length: int = 24
    max_entries: int | None = None
    unnamed: int = 1
    modulus: int = 10
    reading: str = ONE_BY_ONE
    phrasing: str = TERSE

    def __post_init__(self) -> None:
        check_span(self.name, ("min_named", "max_named"), (self.min_named, self.max_named), 1, len(KEYS))
        check_span(self.name, ("min_length", "max_length"), (self.min_length, self.max_length), 1, len(FIELDS))
        check_int(self.name, "unnamed", self.unnamed, 0, len(KEYS) - self.max_named)
        check_int(self.name, "modulus", self.modulus, 2, 10)
        check_choice(self.name, "reading", self.reading, (AT_ONCE, ONE_BY_ONE))
        check_choice(self.name, "phrasing", self.phrasing, PHRASINGS)
        if self.phrasing == PLAIN and self.modulus != 10:
            raise ConfigError(
                f"{self.name}.modulus is {self.modulus}; expected 10 where phrasing is 'plain', whose questions "
                "are about the last digit"
            )
        if self.max_entries is not None and self.max_entries < self.max_named * self.min_length:
            raise ConfigError(
                f"{self.name}.max_entries is {self.max_entries}; expected null or at least max_named x min_length = "
                f"{self.max_named * self.min_length}"
            )

    def draw(self, rng: np.random.Generator) -> Task:
        lengths = self._lengths(rng)
        count = len(lengths) + self.unnamed
        keys = [KEYS[i] for i in rng.permutation(len(KEYS))[:count]]
        names = FIELDS if self.phrasing == TERSE else WORDS
        fields = [names[i] for i in rng.permutation(len(names))]
        ledgers: dict[str, Entries] = {}
        for key, length in zip(keys, [*lengths, *[max(lengths)] * self.unnamed], strict=True):
            digits = rng.integers(self.modulus, size=length)
            ledgers[key] = tuple((field, int(digit)) for field, digit in zip(fields, digits, strict=False))
        named = tuple(keys[: len(lengths)])
        answer = sum(digit for key in named for _, digit in ledgers[key]) % self.modulus
        context = {key: _write(ledgers[key], self.phrasing) for key in sorted(ledgers)}
        metadata = {"size": sum(lengths), "named": len(named), "documents": count}
        return make_task(
            self.name, LongLedgerQuery(named, 0, self.modulus, self.phrasing).write(), str(answer), metadata, context
        )

    def _lengths(self, rng: np.random.Generator) -> list[int]:
        """Entries of each named ledger; whoever draws first may take what the others can spare."""
        named = draw_int(rng, self.min_named, self.max_named)
        left, lengths = self.max_entries or named * self.max_length, list[int]()
        for others in reversed(range(named)):
            lengths.append(draw_int(rng, self.min_length, min(self.max_length, left - others * self.min_length)))
            left -= lengths[-1]
        return [lengths[i] for i in rng.permutation(named)]

    def understands(self, observation: Observation) -> bool:
        return parse(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        query = parse(observation.brief.text)
        if query is None:
            return GIVE_UP
        documents = dict(observation.brief.documents)
        if not query.keys:
            return _own(query, [read_entries(text) for text in documents.values()])
        if call := last_replies(observation):
            return _join([read_digit(reply) for reply in call[1]], query)
        delegate = may_delegate(observation, len(query.keys)) and is_root(observation)
        missing = [key for key in query.keys if key not in documents]
        if delegate and (style is Style.DELEGATE or (missing and not may_read(observation))):
            parts = [query._replace(keys=(), part=number) for number in range(1, len(query.keys) + 1)]
            calls = [CloneRequest(part.write(), (key,)) for part, key in zip(parts, query.keys, strict=True)]
            return Proposal(Delegate(tuple(calls)))
        return self._read(query, documents, missing, observation)

    def _read(
        self, query: LongLedgerQuery, documents: dict[str, str], missing: list[str], observation: Observation
    ) -> Proposal:
        brought = {key: text for past in observation.exchanges for key, text in (past.documents or {}).items()}
        read = {key: read_entries(text) for key, text in (documents | brought).items()}
        missing = [key for key in missing if key not in read]
        if missing and not may_read(observation):
            return GIVE_UP
        if self.reading == ONE_BY_ONE and len(missing) + len(brought) == len(query.keys):
            return _one_by_one(query, [read[key] for key in query.keys if key in read])
        return Proposal(Read(tuple(missing))) if missing else _at_once(query, read)


def _write(entries: Entries, phrasing: str) -> str:
    if phrasing == PLAIN:
        return ", ".join(f"{field} {digit}" for field, digit in entries)
    return "".join(f"{field}{digit}" for field, digit in entries)


def _running(entries: Entries, total: int, modulus: int) -> tuple[str, int]:
    """Field, digit and running total of every entry, from a total."""
    thought = ""
    for field, digit in entries:
        total = (total + digit) % modulus
        thought += f"{field}{digit}{total}"
    return thought, total


def _own(query: LongLedgerQuery, ledgers: Sequence[Entries]) -> Proposal:
    if not any(ledgers):
        return GIVE_UP
    entries = tuple(entry for ledger in ledgers for entry in ledger)
    thought, total = running_sum(entries, PLAIN) if query.phrasing == PLAIN else _running(entries, 0, query.modulus)
    return Proposal(Answer(str(total)), thought)


def _join(values: Sequence[int], query: LongLedgerQuery) -> Proposal:
    if query.phrasing == PLAIN:
        return add_up_replies(values, PLAIN)
    thought, total = _running(
        tuple((format_label(i, TERSE), value) for i, value in enumerate(values)), 0, query.modulus
    )
    return Proposal(Answer(str(total)), thought)


def _at_once(query: LongLedgerQuery, read: dict[str, Entries]) -> Proposal:
    """Number, key and restated total before the entries of each ledger: `[1]C0k33a70[2]E0...`.

    In words a line for each ledger, see `_line`.
    """
    if query.phrasing == PLAIN:
        lines = [_line(query, [read[k] for k in query.keys[:number]]) for number in range(1, len(query.keys) + 1)]
        return Proposal(Answer(str(lines[-1][1])), "\n".join(text for text, _ in lines))
    thought, total = "", 0
    for number, key in enumerate(query.keys, 1):
        entries, after = _running(read[key], total, query.modulus)
        thought += f"[{number}]{key}{total}{entries}"
        total = after
    return Proposal(Answer(str(total)), thought)


def _one_by_one(query: LongLedgerQuery, ledgers: Sequence[Entries]) -> Proposal:
    """What the reader writes after so many ledgers: `=00[1]C`, then `k33a70,0=00[1]C[2]E`, ...

    For each ledger, entries and running total from 0. After `,` stands how the sum goes on: the sum before, `=`, the
    ledger's total, the sum now, which has the shape of one more entry. Then its place in the question and the next one,
    which it asks for. In words it is `_line` of the last ledger.
    """
    if query.phrasing == PLAIN:
        text, total = _line(query, ledgers) if ledgers else ("", 0)
        rest = query.keys[len(ledgers) :]
        return Proposal(Read(rest[:1]) if rest else Answer(str(total)), text)
    plan, done = _numbered(query.keys), len(ledgers)
    if not ledgers:
        return Proposal(Read((query.keys[0],)), f"=00{plan[0]}")
    before = sum(digit for ledger in ledgers[:-1] for _, digit in ledger) % query.modulus
    thought, own = _running(ledgers[-1], 0, query.modulus)
    total = (before + own) % query.modulus
    thought += f",{before}={own}{total}"
    if done == len(plan):
        return Proposal(Answer(str(total)), thought)
    return Proposal(Read((query.keys[done],)), thought + plan[done - 1] + plan[done])


def _line(query: LongLedgerQuery, ledgers: Sequence[Entries]) -> tuple[str, int]:
    """The last ledger's line, and the sum so far: `E. cups: 3 (3); lamps: 8 (1). So far 9 + 1 = 0`."""
    before = sum(digit for ledger in ledgers[:-1] for _, digit in ledger) % 10
    thought, own = running_sum(ledgers[-1], PLAIN)
    total = (before + own) % 10
    return f"{query.keys[len(ledgers) - 1]}. {thought}. So far {before} + {own} = {total}", total
