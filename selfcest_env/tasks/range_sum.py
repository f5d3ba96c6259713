"""Range sums for the embedded model: objectives of constant length for any amount of work, so that clones can help.

The prompt `3:[4]-[20]` asks for the sum over i = 4..20 of (3 + the i-th decimal digit of pi) mod 10. The answer is the
last digit of that sum. The digits of pi have no period. With m + i or m * i instead, a policy that stops 20 items early
would still be right, and reinforcement learning finds this shortcut.

With `size_step` the prompt also says how many terms there are at most: `3:[4]-[20];[20]` for 17 terms in steps of 5.
The root restates this size in its thought, so that it is in the recent context when the root decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from selfcest_env.structure import Between, Checked, NotEmpty, OneOf, check_order
from selfcest_env.tasks.source import (
    GIVE_UP,
    PHRASINGS,
    PLAIN,
    TERSE,
    Proposal,
    Style,
    add_up_replies,
    draw_int,
    find_last_call,
    is_root,
    make_task,
    may_delegate,
    read_digit,
    running_sum,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Task
from selfcest_env.views import Observation

# Digit i of pi after the point is PI_DIGITS[i - 1].
PI_DIGITS = "1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679"
MAX_POSITION = 99  # [0] to [99] are single tokens of the embedded model


class RangeQuery(NamedTuple):
    """The sum over `start..end`, both included, of (`offset` + digit of pi) mod 10.

    `size` is the maximum number of terms that the prompt states; 0 if it states none.
    """

    offset: int
    start: int
    end: int
    phrasing: str
    size: int = 0

    @property
    def answer(self) -> int:
        return sum(self.term(i) for i in range(self.start, self.end + 1)) % 10

    def term(self, position: int) -> int:
        return (self.offset + int(PI_DIGITS[position - 1])) % 10

    def cut(self, piece: int) -> list[RangeQuery]:
        """Cut the range into pieces that end at multiples of `piece`. The last piece ends with the range."""
        ends = [*range(-(-self.start // piece) * piece, self.end, piece), self.end]
        starts = [self.start, *(end + 1 for end in ends[:-1])]
        return [self._replace(start=start, end=end, size=0) for start, end in zip(starts, ends, strict=True)]

    def write(self) -> str:
        if self.phrasing == TERSE:
            return f"{self.offset}:[{self.start}]-[{self.end}]" + (f";[{self.size}]" if self.size else "")
        return (
            f"Let d(i) be the i-th decimal digit of pi after the point, so d(1) = 1 and d(2) = 4. For every i from "
            f"{self.start} to {self.end} take the last digit of {self.offset} + d(i), and add all of these up. "
            "Answer with the last digit of the sum."
        ) + (f" It has at most {self.size} terms." if self.size else "")


_TERSE = re.compile(r"([0-9]):\[([0-9]{1,2})\]-\[([0-9]{1,2})\](?:;\[([0-9]{1,2})\])?")
_PLAIN = re.compile(
    r"Let d\(i\) .*from ([0-9]{1,2}) to ([0-9]{1,2}) take the last digit of ([0-9]) \+ d\(i\)"
    r".*?(?: It has at most ([0-9]{1,2}) terms\.)?",
    re.S,
)


def parse(text: str) -> RangeQuery | None:
    """Return the query of a text in either phrasing, or `None` if the text is no such query."""
    if match := _TERSE.fullmatch(text.strip()):
        offset, start, end, size = map(int, match.groups("0"))
        query = RangeQuery(offset, start, end, TERSE, size)
    elif match := _PLAIN.fullmatch(text.strip()):
        start, end, offset, size = map(int, match.groups("0"))
        query = RangeQuery(offset, start, end, PLAIN, size)
    else:
        return None
    return query if 1 <= query.start <= query.end <= MAX_POSITION else None


_Size = Annotated[int, Between(1, MAX_POSITION)]


@dataclass(frozen=True)
class RangeSum(Checked):
    """Source of range sums.

    Attributes:
        min_length, max_length: number of terms of the sum. Two sources whose ranges are disjoint share no task.
        pieces: piece sizes of the expert, which draws one of them for each call.
        phrasing: "terse" for the embedded model, "plain" English for language models.
        size_step: the prompt states the number of terms, rounded up to a multiple of this. 1 is exact, 0 states none.
    """

    name: ClassVar[str] = "range_sum"
    min_length: _Size = 2
    max_length: _Size = 16
    pieces: Annotated[tuple[_Size, ...], NotEmpty()] = (5, 10)
    phrasing: Annotated[str, OneOf(*PHRASINGS)] = TERSE
    size_step: Annotated[int, Between(0, MAX_POSITION)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "min_length", "max_length")

    def draw(self, rng: np.random.Generator) -> Task:
        length = draw_int(rng, self.min_length, self.max_length)
        start = draw_int(rng, 1, MAX_POSITION - length + 1)
        step = self.size_step
        size = min(-(-length // step) * step, MAX_POSITION) if step else 0
        query = RangeQuery(draw_int(rng, 0, 9), start, start + length - 1, self.phrasing, size)
        return make_task(self.name, query.write(), str(query.answer), {"size": length})

    def understands(self, observation: Observation) -> bool:
        return parse(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        query = parse(observation.brief.text)
        if query is None:
            return GIVE_UP
        if call := find_last_call(observation):
            return add_up_replies([read_digit(reply) for reply in call.replies], query.phrasing)
        if style is Style.DELEGATE:
            pieces = query.cut(self.pieces[int(rng.integers(len(self.pieces)))])
            # A root may delegate a single piece. A clone may not, because delegation would never end.
            if may_delegate(observation, len(pieces)) and (len(pieces) > 1 or is_root(observation)):
                return Proposal(Delegate(tuple(CloneRequest(piece.write()) for piece in pieces)), _restated(query))
        return _solve(query)


def _restated(query: RangeQuery) -> str:
    if not query.size:
        return ""
    return f"[{query.size}]" if query.phrasing == TERSE else f"At most {query.size} terms. "


def _solve(query: RangeQuery) -> Proposal:
    label = "[{}]" if query.phrasing == TERSE else "i={}"
    items = [(label.format(i), query.term(i)) for i in range(query.start, query.end + 1)]
    thought, total = running_sum(items, query.phrasing)
    return Proposal(Answer(str(total)), _restated(query) + thought)
