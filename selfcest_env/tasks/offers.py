"""A search among offers, each with a price: every clone brings one, and the root decides when one is good enough.

Source: optimal search with recall (Weitzman 1979, *Optimal Search for the Best Alternative*, Econometrica 47(3);
McCall 1970, *Economics of Information and Job Search*, Quarterly Journal of Economics 84(1)).

Each document A, B, ... is a source with an offer for every field, `k3a2q0`: a letter and a digit for each entry, where
all digits are equally likely. The prompt `?k;25` asks for an offer for field `k` and states the price of a clone. The
answer is the key of a document. It is worth the offer there in tenths, by the reward term `offer`, which pays only for
a document that a clone was given.

A clone gets the field, `k`, and one document, writes the entry, `k3`, and replies 3. The root calls one clone at a
time, in the order of the keys. After each reply it writes the key and the offer of this document, those of the best
offer so far (of equal ones the first), and the price: `B3A5;25`. Then it calls the next clone, or answers A.

Demonstrations stop after each reply with probability 0.5, whatever the offers and the price. So nothing in them says
when to stop.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from selfcest_env.errors import RewardError
from selfcest_env.graders.grade import Grade
from selfcest_env.record import EpisodeRecord
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
from selfcest_env.types import Answer, CloneRequest, Delegate, Scalar, Task
from selfcest_env.views import Observation

KEYS = string.ascii_uppercase
FIELDS = string.ascii_lowercase
_QUESTION = re.compile(r"\?([a-z]);([0-9]{2})")
_ENTRIES = re.compile(r"(?:[a-z][0-9])+")
_DIGIT = re.compile(r"[0-9]")


class OfferQuery(NamedTuple):
    """The question of a prompt: a field, and the price of a clone, a number of two digits."""

    field: str
    price: int

    def write(self) -> str:
        return f"?{self.field};{self.price:02d}"


class FoundOffer(NamedTuple):
    """The offer of a document for the field that is asked for."""

    key: str
    digit: str


def parse(text: str) -> OfferQuery | None:
    """Return the question of a prompt, or `None` if the text is no such question."""
    match = _QUESTION.fullmatch(text)
    return OfferQuery(match[1], int(match[2])) if match else None


def find_best(offers: Sequence[FoundOffer]) -> FoundOffer:
    """Return the best offer; of equal ones the first."""
    return max(offers, key=lambda offer: offer.digit)


@dataclass(frozen=True)
class Offers(Checked):
    """Source of searches for a good offer, with a price for each document that is read.

    Attributes:
        documents: number of documents, each with one offer for every field.
        fields: number of entries of a document.
        prices: stated prices of a clone, of which one is drawn. `CloneCost(price=0.002, price_key="price")` subtracts
            0.002 times the stated price from the reward for each clone.
    """

    name: ClassVar[str] = "offers"
    documents: Annotated[int, Between(1, len(KEYS))] = 6
    fields: Annotated[int, Between(1, len(FIELDS))] = 3
    prices: Annotated[tuple[Annotated[int, Between(0, 99)], ...], NotEmpty(), Distinct()] = (10, 20, 40, 60, 90)

    def draw(self, rng: np.random.Generator) -> Task:
        names = [FIELDS[i] for i in rng.permutation(len(FIELDS))[: self.fields]]
        digits = rng.integers(10, size=(self.documents, self.fields))
        context: dict[str, str] = {}
        for key, row in zip(KEYS, digits, strict=False):
            context[key] = "".join(f"{name}{digit}" for name, digit in zip(names, row, strict=True))
        index = draw_int(rng, 0, self.fields - 1)
        query = OfferQuery(names[index], self.prices[draw_int(rng, 0, len(self.prices) - 1)])
        offers = [FoundOffer(key, look_up(document, query.field)) for key, document in context.items()]
        metadata: dict[str, Scalar] = {"size": self.documents, "price": query.price}
        metadata["offers"] = "".join(offer.digit for offer in offers)
        best = find_best(offers).key
        task = make_task(self.name, query.write(), best, metadata, context)
        # Any document is a right answer. Its offer is a matter of the reward.
        return replace(task, aliases=tuple(key for key in context if key != best))

    def understands(self, observation: Observation) -> bool:
        return parse(observation.brief.text) is not None or _is_reader(observation)

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        if _is_reader(observation):
            (document,) = observation.brief.documents.values()
            digit = look_up(document, observation.brief.text)
            return Proposal(Answer(digit), observation.brief.text + digit) if digit else GIVE_UP
        query = parse(observation.brief.text)
        if query is None:
            return GIVE_UP
        asked, offers = _read_calls(observation)
        unasked = [key for key in observation.brief.keys if key not in asked]
        if is_root(observation) and unasked and may_delegate(observation) and not (offers and rng.random() < 0.5):
            return Proposal(Delegate((CloneRequest(query.field, (unasked[0],)),)), write_state(offers, query))
        if not asked:  # an agent without clones reads the documents that it was given
            for key, document in documents_in_sight(observation).items():
                digit = look_up(document, query.field)
                offers += [FoundOffer(key, digit)] if digit else []
        return Proposal(Answer(find_best(offers).key), write_state(offers, query)) if offers else GIVE_UP


@dataclass(frozen=True)
class Offer:
    """`weight` times the offer of the document that the answer names, if a clone was given only this document; else 0.

    Source: in the search of Weitzman (1979, Econometrica 47(3)) an offer must be seen before it is taken. The metadata
    `offers` of the task hold a digit for each document, and a digit counts as so many tenths.

    Attributes:
        weight: factor of the offer.

    Raises:
        RewardError: a task has no digit for each of its documents.
    """

    weight: float = 1.0

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        offers = record.task.metadata.get("offers")
        keys = list(record.task.context)
        if not isinstance(offers, str) or not offers.isdecimal() or len(offers) != len(keys):
            raise RewardError(
                f"the metadata 'offers' of task {record.task.task_id} of {record.task.source} is {offers!r}; expected "
                f"a text with a digit for each of its {len(keys)} documents, as in tasks of offers"
            )
        key = (record.answer or "").strip()
        is_seen = any(agent.shared_context == (key,) and not agent.absent for agent in record.agents)
        return self.weight * int(offers[keys.index(key)]) / 10 if is_seen else 0.0


def look_up(document: str, field: str) -> str:
    """Return the digit of a field; empty if the document has no such entry."""
    if not _ENTRIES.fullmatch(document):
        return ""
    return dict(zip(document[::2], document[1::2], strict=True)).get(field, "")


def _is_reader(observation: Observation) -> bool:
    """Return whether the agent is a clone with one document and one field."""
    text = observation.brief.text
    is_field = len(text) == 1 and text in FIELDS
    return not is_root(observation) and is_field and len(observation.brief.documents) == 1


def _read_calls(observation: Observation) -> tuple[set[str], list[FoundOffer]]:
    """Return the keys of the documents that clones were given, and the offers that clones with one document replied."""
    asked: set[str] = set()
    offers: list[FoundOffer] = []
    for exchange in observation.exchanges:
        if isinstance(exchange.action, Delegate) and exchange.replies:
            for request, reply in zip(exchange.action.requests, exchange.replies, strict=True):
                keys = request.shared_context
                asked.update(keys)
                if len(keys) == 1 and reply.text and _DIGIT.fullmatch(reply.text):
                    offers.append(FoundOffer(keys[0], reply.text))
    return asked, offers


def write_state(offers: Sequence[FoundOffer], query: OfferQuery) -> str:
    """Return the thought of the root before it decides; empty before the first reply."""
    return "".join((*offers[-1], *find_best(offers), f";{query.price:02d}")) if offers else ""
