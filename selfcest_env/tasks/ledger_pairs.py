"""Counts of equal entries over all pairs of keyed ledgers: an answer that needs two far places of the text at once.

The prompt `*[1]C[2]E[3]A` names ledgers (see `long_ledgers`) with the same fields. The answer is the number of fields
in which two of them have the same digit, added up over all pairs, modulo 10. No subtotal of one ledger is enough: each
pair needs both texts. A reader with an attention window can read both ledgers of a pair again, for as many tokens as a
clone for each pair. Or it reads each ledger once and keeps a table of the digits so far, as long as the table fits into
the window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Between, Checked, OneOf, check_order
from selfcest_env.tasks.long_ledgers import (
    FIELDS,
    KEYS,
    Entries,
    add_up_parts,
    read_entries,
    write_entries,
)
from selfcest_env.tasks.source import (
    GIVE_UP,
    Proposal,
    Style,
    documents_read,
    draw_int,
    find_last_call,
    is_root,
    make_task,
    may_delegate,
    may_read,
    read_digit,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Read, Task
from selfcest_env.views import Observation

AGAIN = "again"
TABLE = "table"
MODULUS = 10

Pair = tuple[str, str]  # the keys of two ledgers

_QUESTION = re.compile(r"\*((?:\[[0-9]{1,2}\][A-Z]){2,})")
_PART = re.compile(r"\*\[[0-9]{1,2}\]")


def parse(text: str) -> tuple[str, ...] | None:
    """Return the keys that a question names; none for a clone's objective, `None` if the text is neither."""
    if _PART.fullmatch(text):
        return ()
    match = _QUESTION.fullmatch(text)
    return tuple(re.findall("[A-Z]", match.group(1))) if match else None


@dataclass(frozen=True)
class LedgerPairs(Checked):
    """Source of counts over pairs of ledgers.

    Attributes:
        min_named, max_named: number of ledgers that the question names.
        min_length, max_length: number of entries of a ledger; all ledgers of a task have equally many.
        max_comparisons: largest number of pairs times entries; `null` sets no limit.
        digits: entries are digits below it. Fewer digits are equal more often.
        reading: whether the expert reads both ledgers of each pair (`again`), or every ledger once and keeps the digits
            of each field in a table (`table`).
    """

    name: ClassVar[str] = "ledger_pairs"
    min_named: Annotated[int, Between(2, 8)] = 2
    max_named: Annotated[int, Between(2, 8)] = 4
    min_length: Annotated[int, Between(1, 26)] = 1
    max_length: Annotated[int, Between(1, 26)] = 12
    max_comparisons: int | None = None
    digits: Annotated[int, Between(2, 10)] = 4
    reading: Annotated[str, OneOf(AGAIN, TABLE)] = AGAIN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "min_named", "max_named")
        check_order(self, "min_length", "max_length")
        least = self.min_named * (self.min_named - 1) // 2 * self.min_length
        if self.max_comparisons is not None and self.max_comparisons < least:
            raise ConfigError(
                f"max_comparisons is {self.max_comparisons}; expected null or at least {least}, the pairs of min_named "
                "ledgers times min_length"
            )

    def draw(self, rng: np.random.Generator) -> Task:
        while True:
            num_named = draw_int(rng, self.min_named, self.max_named)
            length = draw_int(rng, self.min_length, self.max_length)
            comparisons = num_named * (num_named - 1) // 2 * length
            if self.max_comparisons is None or comparisons <= self.max_comparisons:
                break
        keys = [KEYS[i] for i in rng.permutation(len(KEYS))[:num_named]]
        fields = [FIELDS[i] for i in rng.permutation(len(FIELDS))[:length]]
        ledgers: dict[str, Entries] = {}
        for key in keys:
            ledgers[key] = tuple(zip(fields, map(int, rng.integers(self.digits, size=length)), strict=True))
        count = sum(_count_equal(ledgers[first], ledgers[second]) for first, second in combinations(keys, 2))
        prompt = "*" + "".join(f"[{number}]{key}" for number, key in enumerate(keys, 1))
        metadata = {"size": comparisons, "named": num_named, "documents": num_named}
        context = {key: write_entries(ledgers[key]) for key in sorted(ledgers)}
        return make_task(self.name, prompt, str(count % MODULUS), metadata, context)

    def understands(self, observation: Observation) -> bool:
        return parse(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        keys = parse(observation.brief.text)
        if keys is None:
            return GIVE_UP
        ledgers = {key: read_entries(text) for key, text in observation.brief.documents.items()}
        if not keys:
            if len(ledgers) != 2:
                return GIVE_UP
            thought, count = _compare(*ledgers.values())
            return Proposal(Answer(str(count)), thought)
        if call := find_last_call(observation):
            return add_up_parts([read_digit(reply) for reply in call.replies], MODULUS)
        pairs = list(combinations(keys, 2))
        if style is Style.DELEGATE and is_root(observation) and may_delegate(observation, len(pairs)):
            requests = [CloneRequest(f"*[{number}]", pair) for number, pair in enumerate(pairs, 1)]
            return Proposal(Delegate(tuple(requests)))
        ledgers |= {key: read_entries(text) for key, text in documents_read(observation).items()}
        if self.reading == TABLE:
            return self._read_into_table(keys, ledgers, observation)
        return self._read_again(pairs, ledgers, observation)

    def _read_into_table(
        self, keys: Sequence[str], ledgers: Mapping[str, Entries], observation: Observation
    ) -> Proposal:
        """Write the table with the ledger that was read last, and read the next."""
        num_read = observation.turn
        if set(keys[:num_read]) - ledgers.keys():
            return GIVE_UP
        thought, count = _write_table([ledgers[key] for key in keys[:num_read]])
        if num_read >= len(keys):
            return Proposal(Answer(str(count)), thought)
        if not may_read(observation):
            return GIVE_UP
        return Proposal(Read((keys[num_read],)), f"{thought}[{num_read + 1}]{keys[num_read]}")

    def _read_again(self, pairs: Sequence[Pair], ledgers: dict[str, Entries], observation: Observation) -> Proposal:
        """Compare the pair that was read last, and read the next; see `long_ledgers` for the form of the thought."""
        num_read = observation.turn
        thought = "=00"
        total = 0
        for pair in pairs[:num_read]:
            if set(pair) - ledgers.keys():
                return GIVE_UP
            thought, total = _add_pair(ledgers, pair, total)
        if num_read >= len(pairs):
            return Proposal(Answer(str(total)), thought)
        if not may_read(observation):
            return GIVE_UP
        done = f"[{num_read}]" if num_read else ""
        return Proposal(Read(pairs[num_read]), f"{thought}{done}[{num_read + 1}]{''.join(pairs[num_read])}")


def _count_equal(first: Entries, second: Entries) -> int:
    return sum(a == b for a, b in zip(first, second, strict=True))


def _compare(first: Entries, second: Entries) -> tuple[str, int]:
    """Return a thought with each field, both digits and the count so far, and the count modulo 10."""
    thought = ""
    count = 0
    for (field, first_digit), (_, second_digit) in zip(first, second, strict=True):
        count = (count + (first_digit == second_digit)) % MODULUS
        thought += f"{field}{first_digit}{second_digit}{count}"
    return thought, count


def _write_table(ledgers: Sequence[Entries]) -> tuple[str, int]:
    """Return a thought that adds the last ledger to the table of the others, and the count modulo 10.

    It begins with the count of the others. Each row has a field, its digits in all ledgers, how many of them the last
    one equals, and the count so far.
    """
    if not ledgers:
        return "=0", 0
    *earlier, last = ledgers
    count = sum(_count_equal(first, second) for first, second in combinations(earlier, 2)) % MODULUS
    thought = f"={count}"
    for place, (field, digit) in enumerate(last):
        digits = [ledger[place][1] for ledger in earlier]
        matches = digits.count(digit)
        count = (count + matches) % MODULUS
        thought += f"{field}{''.join(map(str, digits))}{digit}{matches}{count}"
    return thought, count


def _add_pair(ledgers: dict[str, Entries], pair: Pair, total: int) -> tuple[str, int]:
    """Return the thought that compares a pair and adds its count to the total, and the new total."""
    thought, count = _compare(ledgers[pair[0]], ledgers[pair[1]])
    new_total = (total + count) % MODULUS
    return f"{thought},{total}={count}{new_total}", new_total
