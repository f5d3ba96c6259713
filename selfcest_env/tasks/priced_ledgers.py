"""Sums over keyed ledgers whose prompt states size, window and price: whether to call clones depends on all three.

`?[1]C[2]E[3]A;09,15,3` names three ledgers (see `long_ledgers`). It says that they have 9 entries together, that one
context has room for a reader of 15 entries, and that a clone has three times its price. Each is drawn for each task,
and the game enforces the window. The stated size may be missing (`;??,15,3`) or wrong.

The expert begins with what it was told and whether that fits, `09153+`: `+` where it fits, `-` where it does not, `?`
where it cannot know. Then it calls clones or reads, as its style says. So it compares two numbers, and nothing in a
demonstration says what follows from them. Numbers are written in digits, so that a number which no demonstration has
consists of digits which they have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Between, Checked, Count, Distinct, NotEmpty
from selfcest_env.tasks.long_ledgers import LongLedgers
from selfcest_env.tasks.source import GIVE_UP, Proposal, Style, content_hash, draw_int, is_root
from selfcest_env.types import Task
from selfcest_env.views import Observation

_Stated = Annotated[tuple[Annotated[int, Between(0, 99)], ...], NotEmpty(), Distinct()]
_Prices = Annotated[tuple[Annotated[int, Between(0, 9)], ...], NotEmpty(), Distinct()]
_Share = Annotated[float, Between(0, 1)]


class Terms(NamedTuple):
    """What a prompt states: `None` where it states nothing.

    Attributes:
        size: number of entries of all named ledgers together.
        room: number of entries that a reader can add up within the window.
        price: factor of the price of a clone.
    """

    size: int | None
    room: int | None
    price: int

    def write(self) -> str:
        return f";{_write(self.size)},{_write(self.room)},{self.price}"

    def thought(self) -> str:
        """Return the beginning of the expert's first thought: the numbers, and whether the size fits the window."""
        fits = "?" if self.size is None or self.room is None else "+" if self.size <= self.room else "-"
        return f"{_write(self.size)}{_write(self.room)}{self.price}{fits}"


def _write(number: int | None) -> str:
    return "??" if number is None else f"{number:02d}"


_TERMS = re.compile(r"(.+);(?:\?\?|([0-9]{2})),(?:\?\?|([0-9]{2})),([0-9])", re.S)


def parse(text: str) -> tuple[str, Terms] | None:
    """Return the question without its terms, and the terms; `None` if the text states none."""
    match = _TERMS.fullmatch(text)
    if match is None:
        return None
    question, size, room, price = match.groups()
    return question, Terms(int(size) if size else None, int(room) if room else None, int(price))


@dataclass(frozen=True)
class PricedLedgers(Checked):
    """Source of sums over keyed ledgers under a window and a price that are drawn for each task.

    Attributes:
        named: number of ledgers that a question names.
        sizes: numbers of entries of all named ledgers together, of which one is drawn.
        rooms: numbers of entries for which a window has room, of which one is drawn.
        prices: factors of the price of a clone, of which one is drawn; the reward term `CloneCost(price_key="price")`.
        max_length: largest number of entries of one ledger.
        window_base, window_per_entry: the window has `window_base + window_per_entry * room` tokens. With the defaults
            and limits.answer_reserve = 1, an expert that reads three ledgers has room for exactly so many entries.
        enforced: whether the game enforces the window. Demonstrations of both styles at every size need no window.
        room_is_stated: whether the prompt states the room.
        missing, wrong: share of the tasks whose prompt states no size, and share of those that state a wrong one, which
            is drawn from `sizes`.
    """

    name: ClassVar[str] = "priced_ledgers"
    named: Annotated[int, Between(1, 12)] = 3
    sizes: _Stated = tuple(range(3, 19))
    rooms: _Stated = tuple(range(6, 21))
    prices: _Prices = (0, 1, 2, 3, 4)
    max_length: Annotated[int, Between(1, 26)] = 9
    window_base: Count = 82
    window_per_entry: Count = 5
    enforced: bool = True
    room_is_stated: bool = True
    missing: _Share = 0.0
    wrong: _Share = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.missing + self.wrong > 1:
            raise ConfigError(f"missing is {self.missing} and wrong is {self.wrong}; expected a sum of at most 1")
        for size in self.sizes:
            if not self.named <= size <= self.named * self.max_length:
                raise ConfigError(
                    f"sizes has {size}; expected {self.named} to {self.named * self.max_length} entries: {self.named} "
                    f"ledgers of 1 to max_length = {self.max_length}"
                )
        if self.wrong and len(self.sizes) < 2:
            raise ConfigError(f"wrong is {self.wrong} and sizes has one number; expected two, or no wrong sizes")

    @property
    def _ledgers(self) -> LongLedgers:
        return LongLedgers(min_named=self.named, max_named=self.named, min_length=1, max_length=self.max_length)

    def draw(self, rng: np.random.Generator) -> Task:
        size = _choose(self.sizes, rng)
        room = _choose(self.rooms, rng)
        price = _choose(self.prices, rng)
        question = self._ledgers.draw_of_size(size, rng)
        terms = Terms(self._draw_stated_size(size, rng), room if self.room_is_stated else None, price)
        metadata = {
            **question.metadata,
            "family": self.name,
            "room": room,
            "price": price,
            "stated_size": -1 if terms.size is None else terms.size,
        }
        window = self.window_base + self.window_per_entry * room
        task = replace(
            question,
            prompt=question.prompt + terms.write(),
            source=self.name,
            metadata=metadata,
            context_tokens=window if self.enforced else None,
        )
        return replace(task, task_id=content_hash(task))

    def _draw_stated_size(self, size: int, rng: np.random.Generator) -> int | None:
        drawn = rng.random()
        if drawn < self.missing:
            return None
        if drawn < self.missing + self.wrong:
            return _choose([other for other in self.sizes if other != size], rng)
        return size

    def understands(self, observation: Observation) -> bool:
        return self._ledgers.understands(_without_terms(observation))

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        proposal = self._ledgers.propose(_without_terms(observation), rng, style)
        stated = parse(observation.brief.text)
        if proposal is GIVE_UP or stated is None or not is_root(observation) or observation.turn:
            return proposal
        return Proposal(proposal.action, stated[1].thought() + proposal.thought)


def _choose(numbers: tuple[int, ...] | list[int], rng: np.random.Generator) -> int:
    return numbers[draw_int(rng, 0, len(numbers) - 1)]


def _without_terms(observation: Observation) -> Observation:
    stated = parse(observation.brief.text)
    if stated is None:
        return observation
    return replace(observation, brief=replace(observation.brief, text=stated[0]))
