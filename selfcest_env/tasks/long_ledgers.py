"""Sums over long keyed ledgers. The work grows with the entries, and clones can add up the ledgers separately.

The prompt `?[1]C[2]E` names ledgers, and the answer is the last digit of the sum of all their entries. `?[1]C[2]E%5`
asks for the sum modulo 5. An entry is a letter and a digit: `k3a7q0` has three entries. The letters are shuffled for
every task and are the same in all its ledgers. So a model can copy by letter, and only the key tells ledgers apart.

The numbers say which ledger comes next. The list of available documents contains every key too, in another order than
the question. Small models cannot learn both orders if the context is a key without a number.

For chat models the question is in English, and a ledger is `cups 3, lamps 7`.

`max_entries` bounds the total of the named entries instead of each ledger. If each ledger were bounded, the number of a
clone's objective, `[4]`, would reveal how long its ledger can be, and longer ledgers would be out of distribution.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from selfcest_env.errors import ConfigError, check_integer
from selfcest_env.structure import Between, Checked, OneOf, check_order
from selfcest_env.tasks.source import (
    GIVE_UP,
    PHRASINGS,
    PLAIN,
    TERSE,
    Proposal,
    Style,
    add_up_replies,
    documents_read,
    draw_int,
    find_last_call,
    format_label,
    is_root,
    make_task,
    may_delegate,
    may_read,
    read_digit,
    running_sum,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Task
from selfcest_env.views import Observation

KEYS = string.ascii_uppercase
FIELDS = string.ascii_lowercase
WORDS = (
    *("apples", "bags", "balls", "beds", "books", "boxes", "cups", "desks", "doors", "eggs", "fans", "forks", "hats"),
    *("jars", "keys", "lamps", "maps", "nails", "pens", "pots", "rings", "rugs", "shoes", "spoons", "tables", "tents"),
)
AT_ONCE = "at_once"
ONE_BY_ONE = "one_by_one"
CARRIED = "carried"

Entries = tuple[tuple[str, int], ...]  # field and digit


class LongLedgerQuery(NamedTuple):
    """A question.

    Attributes:
        keys: the ledgers that the question names; empty for a clone, which is asked about the ledger it was given.
        part: number of a clone's part in the call. The plain phrasing does not write it.
        modulus: modulus of the sum.
        phrasing: "terse" or "plain".
    """

    keys: tuple[str, ...]
    part: int
    modulus: int
    phrasing: str = TERSE

    def write(self) -> str:
        if self.phrasing == PLAIN:
            ledgers = "ledgers" if len(self.keys) > 1 else "ledger"
            named = f"the {ledgers} {', '.join(self.keys)}" if self.keys else "your ledger"
            return f"What is the last digit of the sum of all amounts in {named}?"
        question = "?" + "".join(_number_keys(self.keys)) if self.keys else f"[{self.part}]"
        return question + (f"%{self.modulus}" if self.modulus != 10 else "")


_QUERY = re.compile(r"(?:\?((?:\[[0-9]{1,2}\][A-Z])+)|\[([0-9]{1,2})\])(?:%([2-9]))?")
_PLAIN_QUERY = re.compile(r"What is the .* amounts in (?:the ledgers? ([A-Z](?:, [A-Z])*)|your ledger)\?")
_ENTRIES = re.compile(r"([a-z][0-9])+")
_PLAIN_ENTRIES = re.compile(r"[a-z]+ [0-9](?:, [a-z]+ [0-9])*")


def parse(text: str) -> LongLedgerQuery | None:
    """Return the query of a text, or `None` if the text is no such query."""
    if match := _PLAIN_QUERY.fullmatch(text):
        keys = tuple(match.group(1).split(", ")) if match.group(1) else ()
        query = LongLedgerQuery(keys, 0 if keys else 1, 10, PLAIN)
    elif match := _QUERY.fullmatch(text):
        numbered, part, modulus = match.groups()
        query = LongLedgerQuery(tuple(re.findall("[A-Z]", numbered or "")), int(part or 0), int(modulus or 10))
    else:
        return None
    return query if query.write() == text else None


def _number_keys(keys: Iterable[str]) -> list[str]:
    return [f"[{number}]{key}" for number, key in enumerate(keys, 1)]


def read_entries(text: str) -> Entries:
    """Return the entries of a ledger in letters or in words. An unreadable ledger has none."""
    if _PLAIN_ENTRIES.fullmatch(text):
        pairs = [entry.split(" ") for entry in text.split(", ")]
        return tuple((word, int(digit)) for word, digit in pairs)
    if _ENTRIES.fullmatch(text):
        return tuple((field, int(digit)) for field, digit in zip(text[::2], text[1::2], strict=True))
    return ()


_Named = Annotated[int, Between(1, len(KEYS))]
_Length = Annotated[int, Between(1, len(FIELDS))]


@dataclass(frozen=True)
class LongLedgers(Checked):
    """Source of sums over long keyed ledgers.

    Attributes:
        min_named, max_named: number of ledgers that the question names.
        min_length, max_length: number of entries of a ledger.
        max_entries: maximum number of entries of all named ledgers together; `null` sets no limit.
        unnamed: number of further ledgers, which are as long as the longest named one.
        modulus: modulus of the sum. Entries are digits below it.
        reading: how the expert reads: `one_by_one`, with a subtotal of each ledger; `carried`, one by one with the sum
            so far, so that a thought needs only the last one (terse phrasing only); or `at_once`.
        phrasing: "terse" for the embedded model, "plain" English for language models, with a modulus of 10.
    """

    name: ClassVar[str] = "long_ledgers"
    min_named: _Named = 1
    max_named: _Named = 6
    min_length: _Length = 2
    max_length: _Length = 24
    max_entries: int | None = None
    unnamed: int = 1
    modulus: Annotated[int, Between(2, 10)] = 10
    reading: Annotated[str, OneOf(AT_ONCE, ONE_BY_ONE, CARRIED)] = ONE_BY_ONE
    phrasing: Annotated[str, OneOf(*PHRASINGS)] = TERSE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "min_named", "max_named")
        check_order(self, "min_length", "max_length")
        check_integer("unnamed", self.unnamed, 0, len(KEYS) - self.max_named)
        if self.phrasing == PLAIN and self.modulus != 10:
            raise ConfigError(
                f"modulus is {self.modulus}; expected 10 where phrasing is 'plain', whose questions are about the last "
                "digit"
            )
        if self.phrasing == PLAIN and self.reading == CARRIED:
            raise ConfigError("reading is 'carried' and phrasing is 'plain'; expected reading: one_by_one or at_once")
        fewest_entries = self.max_named * self.min_length
        if self.max_entries is not None and self.max_entries < fewest_entries:
            raise ConfigError(
                f"max_entries is {self.max_entries}; expected null or at least max_named x min_length = "
                f"{fewest_entries}"
            )

    def draw(self, rng: np.random.Generator) -> Task:
        return self._draw_task(self._draw_lengths(rng), rng)

    def draw_of_size(self, size: int, rng: np.random.Generator) -> Task:
        """Draw a task whose named ledgers have `size` entries together. Every such split is equally likely."""
        num_named = draw_int(rng, self.min_named, self.max_named)
        while True:
            lengths = [draw_int(rng, self.min_length, self.max_length) for _ in range(num_named - 1)]
            lengths.append(size - sum(lengths))
            if self.min_length <= lengths[-1] <= self.max_length:
                return self._draw_task(lengths, rng)

    def _draw_task(self, lengths: Sequence[int], rng: np.random.Generator) -> Task:
        count = len(lengths) + self.unnamed
        keys = [KEYS[i] for i in rng.permutation(len(KEYS))[:count]]
        names = FIELDS if self.phrasing == TERSE else WORDS
        fields = [names[i] for i in rng.permutation(len(names))]
        ledgers: dict[str, Entries] = {}
        for key, length in zip(keys, [*lengths, *[max(lengths)] * self.unnamed], strict=True):
            digits = rng.integers(self.modulus, size=length)
            ledgers[key] = tuple((field, int(digit)) for field, digit in zip(fields, digits, strict=False))
        named = tuple(keys[: len(lengths)])
        answer = sum(_add_digits(ledgers[key]) for key in named) % self.modulus
        context = {key: write_entries(ledgers[key], self.phrasing) for key in sorted(ledgers)}
        metadata = {"size": sum(lengths), "named": len(named), "documents": count}
        query = LongLedgerQuery(named, 0, self.modulus, self.phrasing)
        return make_task(self.name, query.write(), str(answer), metadata, context)

    def _draw_lengths(self, rng: np.random.Generator) -> list[int]:
        """Draw the number of entries of each named ledger."""
        num_named = draw_int(rng, self.min_named, self.max_named)
        entries_left = self.max_entries or num_named * self.max_length
        lengths: list[int] = []
        for num_later in reversed(range(num_named)):
            # Every later ledger must still get its minimum.
            most = min(self.max_length, entries_left - num_later * self.min_length)
            length = draw_int(rng, self.min_length, most)
            lengths.append(length)
            entries_left -= length
        # The first ledger can be longer than later ones, so the order is shuffled.
        return [lengths[i] for i in rng.permutation(num_named)]

    def understands(self, observation: Observation) -> bool:
        return parse(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        query = parse(observation.brief.text)
        if query is None:
            return GIVE_UP
        documents = dict(observation.brief.documents)
        if not query.keys:
            return _answer_clone_query(query, [read_entries(text) for text in documents.values()])
        if call := find_last_call(observation):
            return _add_up_replies([read_digit(reply) for reply in call.replies], query)
        can_delegate = may_delegate(observation, len(query.keys)) and is_root(observation)
        missing = [key for key in query.keys if key not in documents]
        if can_delegate and (style is Style.DELEGATE or (missing and not may_read(observation))):
            requests: list[CloneRequest] = []
            for number, key in enumerate(query.keys, 1):
                part = query._replace(keys=(), part=number)
                requests.append(CloneRequest(part.write(), (key,)))
            return Proposal(Delegate(tuple(requests)))
        return self._read(query, documents, missing, observation)

    def _read(
        self, query: LongLedgerQuery, documents: dict[str, str], missing: list[str], observation: Observation
    ) -> Proposal:
        new_documents = documents_read(observation)
        ledgers = {key: read_entries(text) for key, text in (documents | new_documents).items()}
        missing = [key for key in missing if key not in ledgers]
        if missing and not may_read(observation):
            return GIVE_UP
        # Reading one by one needs all named ledgers to be read, because each turn adds up the last one.
        if self.reading != AT_ONCE and len(missing) + len(new_documents) == len(query.keys):
            read = _read_one_by_one if self.reading == ONE_BY_ONE else _carry_sum
            return read(query, [ledgers[key] for key in query.keys if key in ledgers])
        return Proposal(Read(tuple(missing))) if missing else _add_up_at_once(query, ledgers)


def write_entries(entries: Entries, phrasing: str = TERSE) -> str:
    """Write a ledger; the inverse of `read_entries`."""
    if phrasing == PLAIN:
        return ", ".join(f"{field} {digit}" for field, digit in entries)
    return "".join(f"{field}{digit}" for field, digit in entries)


def _add_digits(entries: Entries) -> int:
    return sum(digit for _, digit in entries)


def _add_entries(entries: Entries, total: int, modulus: int) -> tuple[str, int]:
    """Add entries to a total.

    Returns:
        A thought with the field, digit and running total of every entry, and the new total.
    """
    thought = ""
    for field, digit in entries:
        total = (total + digit) % modulus
        thought += f"{field}{digit}{total}"
    return thought, total


def _answer_clone_query(query: LongLedgerQuery, ledgers: Sequence[Entries]) -> Proposal:
    if not any(ledgers):
        return GIVE_UP
    entries: Entries = ()
    for ledger in ledgers:
        entries += ledger
    if query.phrasing == PLAIN:
        thought, total = running_sum(entries, PLAIN)
    else:
        thought, total = _add_entries(entries, 0, query.modulus)
    return Proposal(Answer(str(total)), thought)


def _add_up_replies(values: Sequence[int], query: LongLedgerQuery) -> Proposal:
    return add_up_replies(values, PLAIN) if query.phrasing == PLAIN else add_up_parts(values, query.modulus)


def add_up_parts(values: Sequence[int], modulus: int) -> Proposal:
    """Add up the replies of clones, each with the letter of its place in the call, as if they were entries."""
    labelled = tuple((format_label(index, TERSE), value) for index, value in enumerate(values))
    thought, total = _add_entries(labelled, 0, modulus)
    return Proposal(Answer(str(total)), thought)


def _add_up_at_once(query: LongLedgerQuery, ledgers: dict[str, Entries]) -> Proposal:
    """Add up all ledgers in one thought.

    Before the entries of each ledger are its number, its key and the total so far: `[1]C0k33a70[2]E0...`. The plain
    thought has a line for each ledger, see `_plain_line`.
    """
    if query.phrasing == PLAIN:
        lines: list[str] = []
        ledgers_so_far: list[Entries] = []
        total = 0
        for key in query.keys:
            ledgers_so_far.append(ledgers[key])
            line, total = _plain_line(query, ledgers_so_far)
            lines.append(line)
        return Proposal(Answer(str(total)), "\n".join(lines))
    thought = ""
    total = 0
    for number, key in enumerate(query.keys, 1):
        entries, new_total = _add_entries(ledgers[key], total, query.modulus)
        thought += f"[{number}]{key}{total}{entries}"
        total = new_total
    return Proposal(Answer(str(total)), thought)


def _read_one_by_one(query: LongLedgerQuery, ledgers: Sequence[Entries]) -> Proposal:
    """Add the last ledger to the sum, and read the next one.

    The terse thoughts are `=00[1]C`, then `k33a70,0=00[1]C[2]E`, and so on. A thought has the entries of the ledger
    with running totals from 0. After the comma are the sum before, `=`, the total of the ledger and the new sum, which
    looks like one more entry. Then it names the place of this ledger in the question and the next ledger, which it
    reads. The plain thought is `_plain_line`.
    """
    if query.phrasing == PLAIN:
        line, total = _plain_line(query, ledgers) if ledgers else ("", 0)
        unread = query.keys[len(ledgers) :]
        return Proposal(Read(unread[:1]) if unread else Answer(str(total)), line)
    numbered_keys = _number_keys(query.keys)
    num_done = len(ledgers)
    if num_done == 0:
        return Proposal(Read((query.keys[0],)), f"=00{numbered_keys[0]}")
    sum_before = sum(map(_add_digits, ledgers[:-1])) % query.modulus
    thought, ledger_total = _add_entries(ledgers[-1], 0, query.modulus)
    total = (sum_before + ledger_total) % query.modulus
    thought += f",{sum_before}={ledger_total}{total}"
    if num_done == len(numbered_keys):
        return Proposal(Answer(str(total)), thought)
    return Proposal(Read((query.keys[num_done],)), thought + numbered_keys[num_done - 1] + numbered_keys[num_done])


def _carry_sum(query: LongLedgerQuery, ledgers: Sequence[Entries]) -> Proposal:
    """Add the last ledger to the sum, and read the next one.

    The thoughts are `=0[1]C`, then `[1],0k33a70=0[1]C[2]E`, and so on. A thought has the ledger's place, the sum
    before, the entries with running totals from this sum, `=` and the new sum. Then it names this ledger and the next
    one. All that it copies stands in the question, in the last ledger or at the end of the last thought.
    """
    numbered_keys = _number_keys(query.keys)
    num_done = len(ledgers)
    if num_done == 0:
        return Proposal(Read((query.keys[0],)), f"=0{numbered_keys[0]}")
    sum_before = sum(map(_add_digits, ledgers[:-1])) % query.modulus
    entries, total = _add_entries(ledgers[-1], sum_before, query.modulus)
    thought = f"[{num_done}],{sum_before}{entries}={total}{numbered_keys[num_done - 1]}"
    if num_done == len(numbered_keys):
        return Proposal(Answer(str(total)), thought)
    return Proposal(Read((query.keys[num_done],)), thought + numbered_keys[num_done])


def _plain_line(query: LongLedgerQuery, ledgers: Sequence[Entries]) -> tuple[str, int]:
    """Return the line of the last ledger, and the sum so far: `E. cups: 3 (3); lamps: 8 (1). So far 9 + 1 = 0`."""
    sum_before = sum(map(_add_digits, ledgers[:-1])) % 10
    thought, ledger_total = running_sum(ledgers[-1], PLAIN)
    total = (sum_before + ledger_total) % 10
    return f"{query.keys[len(ledgers) - 1]}. {thought}. So far {sum_before} + {ledger_total} = {total}", total
