"""A sequential test: noisy witnesses, each with a price, and a question of when enough of them have been asked.

Source: the sequential tests of Wald (1945, *Sequential Tests of Statistical Hypotheses*), with several hypotheses.

The documents A, B, ... are noisy copies of one list of digits, `k3a2q0`: a letter and a digit for each entry. In each
copy each digit is right with probability `accuracy`, else it is one of the other digits, all equally likely. The prompt
`?k;25` asks for the true digit of field `k`, and states the price of a clone, 25 thousandths of a right answer.

A clone is a witness: it gets the field, `k`, and one document, writes the entry, `k3`, and replies 3. The root asks one
witness per call, in the order of the keys. After each reply it writes all replies so far, grouped by digit, the price,
and the sizes of the two largest groups: `3302;25;21`. The largest group comes first, and of equally large groups the
one that was as large before. Then it asks the next witness or answers with the first digit that it wrote, the
plurality of the replies.

Demonstrations ask a number of witnesses that is uniformly random, whatever the replies and the price. So nothing in
them says when to stop.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Between, Checked, Distinct, NotEmpty
from selfcest_env.tasks.source import (
    GIVE_UP,
    Proposal,
    Style,
    documents_in_sight,
    draw_int,
    is_root,
    make_task,
    may_delegate,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Task
from selfcest_env.views import Observation

KEYS = string.ascii_uppercase
FIELDS = string.ascii_lowercase
_QUESTION = re.compile(r"\?([a-z]);([0-9]{2})")
_ENTRIES = re.compile(r"(?:[a-z][0-9])+")
_DIGIT = re.compile(r"[0-9]")


class WitnessQuery(NamedTuple):
    """The question of a prompt: a field, and the price of a clone in thousandths."""

    field: str
    price: int

    def write(self) -> str:
        return f"?{self.field};{self.price:02d}"


def parse(text: str) -> WitnessQuery | None:
    """Return the question of a prompt, or `None` if the text is no such question."""
    match = _QUESTION.fullmatch(text)
    return WitnessQuery(match[1], int(match[2])) if match else None


def group_replies(replies: Iterable[str]) -> str:
    """Group digits, the largest group first, so that the first digit is the plurality.

    Of equally large groups the one comes first that had so many digits first.
    """
    groups: list[str] = []
    for digit in replies:
        index = next((i for i, group in enumerate(groups) if group[0] == digit), len(groups))
        grown = (groups.pop(index) if index < len(groups) else "") + digit
        while index and len(groups[index - 1]) < len(grown):
            index -= 1
        groups.insert(index, grown)
    return "".join(groups)


@dataclass(frozen=True)
class Witnesses(Checked):
    """Source of questions about noisy copies of one list, with a price for each copy that is consulted.

    Attributes:
        witnesses: number of noisy copies; the size of a group of replies is written in one digit.
        accuracy: probability that a digit of a copy is right.
        digits: number of digits of which an entry has one, from 0 on.
        fields: number of entries of a list.
        prices: prices of a clone in thousandths, of which one is drawn; the reward term
            `CloneCost(price=0.001, price_key="price")`.
        accepts_pluralities: whether the plurality of any number of witnesses counts as right. The trainer checks that
            demonstrations are right, and this one errs where the witnesses do.
    """

    name: ClassVar[str] = "witnesses"
    witnesses: Annotated[int, Between(1, 9)] = 7
    accuracy: Annotated[float, Between(0, 1)] = 0.7
    digits: Annotated[int, Between(2, 10)] = 4
    fields: Annotated[int, Between(1, len(FIELDS))] = 3
    prices: Annotated[tuple[Annotated[int, Between(0, 99)], ...], NotEmpty(), Distinct()] = tuple(range(10, 90, 5))
    accepts_pluralities: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accuracy * self.digits <= 1:
            raise ConfigError(
                f"accuracy is {self.accuracy} and digits {self.digits}; expected an accuracy above 1 / digits: else "
                "the plurality is no better than a guess"
            )

    def draw(self, rng: np.random.Generator) -> Task:
        names = [FIELDS[i] for i in rng.permutation(len(FIELDS))[: self.fields]]
        truth = rng.integers(self.digits, size=self.fields)
        context: dict[str, str] = {}
        for key in KEYS[: self.witnesses]:
            is_right = rng.random(self.fields) < self.accuracy
            # A shift of 1 to digits - 1 is one of the other digits.
            shifts = np.where(is_right, 0, rng.integers(1, self.digits, size=self.fields))
            copy = (truth + shifts) % self.digits
            context[key] = "".join(f"{name}{digit}" for name, digit in zip(names, copy, strict=True))
        index = draw_int(rng, 0, self.fields - 1)
        query = WitnessQuery(names[index], self.prices[draw_int(rng, 0, len(self.prices) - 1)])
        metadata = {"size": self.witnesses, "price": query.price}
        task = make_task(self.name, query.write(), str(truth[index]), metadata, context)
        return replace(task, aliases=_list_pluralities(task, query)) if self.accepts_pluralities else task

    def understands(self, observation: Observation) -> bool:
        return parse(observation.brief.text) is not None or _is_witness(observation)

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        if _is_witness(observation):
            (document,) = observation.brief.documents.values()
            digit = look_up(document, observation.brief.text)
            return Proposal(Answer(digit), observation.brief.text + digit) if digit else GIVE_UP
        query = parse(observation.brief.text)
        if query is None:
            return GIVE_UP
        asked, replies = _read_calls(observation)
        unasked = [key for key in observation.brief.keys if key not in asked]
        # After k of n witnesses with probability 1 / (n - k + 1), so that each number from 1 to n is equally likely.
        stops = bool(replies) and rng.random() * (len(unasked) + 1) < 1
        if is_root(observation) and unasked and may_delegate(observation) and not stops:
            return Proposal(Delegate((CloneRequest(query.field, (unasked[0],)),)), write_state(replies, query))
        if not asked:  # an agent without clones reads the copies that it was given
            entries = [look_up(text, query.field) for text in documents_in_sight(observation).values()]
            replies = [digit for digit in entries if digit]
        return Proposal(Answer(group_replies(replies)[0]), write_state(replies, query)) if replies else GIVE_UP


def _list_pluralities(task: Task, query: WitnessQuery) -> tuple[str, ...]:
    """Return the pluralities of the first 1, 2, ... witnesses, each once."""
    replies = [look_up(document, query.field) for document in task.context.values()]
    pluralities = [group_replies(replies[: number + 1])[0] for number in range(len(replies))]
    return tuple(dict.fromkeys(pluralities))


def look_up(document: str, field: str) -> str:
    """Return the digit of a field; empty if the document has no such entry."""
    if not _ENTRIES.fullmatch(document):
        return ""
    return dict(zip(document[::2], document[1::2], strict=True)).get(field, "")


def _is_witness(observation: Observation) -> bool:
    """Return whether the agent is a clone with one document and one field."""
    text = observation.brief.text
    is_field = len(text) == 1 and text in FIELDS
    return not is_root(observation) and is_field and len(observation.brief.documents) == 1


def _read_calls(observation: Observation) -> tuple[list[str], list[str]]:
    """Return the keys of the witnesses that were asked, and the digits that they replied."""
    keys: list[str] = []
    digits: list[str] = []
    for exchange in observation.exchanges:
        if isinstance(exchange.action, Delegate) and exchange.replies:
            for request in exchange.action.requests:
                keys += request.shared_context
            digits += [reply.text for reply in exchange.replies if reply.text and _DIGIT.fullmatch(reply.text)]
    return keys, digits


def write_state(replies: Sequence[str], query: WitnessQuery) -> str:
    """Return the thought of the root before it decides; empty before the first reply."""
    if not replies:
        return ""
    sizes = [size for _, size in Counter(replies).most_common(2)]
    second = sizes[1] if len(sizes) > 1 else 0
    return f"{group_replies(replies)};{query.price:02d};{sizes[0]}{second}"
