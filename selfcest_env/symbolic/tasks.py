"""What is to be done: five tasks over short segments of symbols.

An agent holds a *segment*: up to `max_length` symbols. It may ANSWER a value, or CALL: hand parts of the work to
clones, whose replies become its new segment. A task says what a segment looks like at first, which lengths can be
answered, what each call hands to whom, and how often an answer goes wrong. It holds no state; everything is drawn from
keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError, check_whole, is_whole
from selfcest_env.plugin import Registry, build, one_of
from selfcest_env.symbolic.streams import Keys, draw_integers, draw_uniforms, fold_in

Symbols = NDArray[np.int8]


class CallKind(NamedTuple):
    """One kind of call.

    Attributes:
        parts: clones it starts.
        facts: how many facts the caller can choose from: that many actions, each hands one fact to one clone. With 0
            it is one action, and the caller's segment is cut into stretches, one per clone.
    """

    parts: int
    facts: int = 0


class ProblemBatch(NamedTuple):
    """A batch of problems.

    Attributes:
        segments: the root's symbols, shape (batch, max_length); entries from `lengths` on mean nothing.
        lengths: shape (batch,).
        targets: the right answer, shape (batch,); of a `ForcedJoinTask` the right reply to each part, (batch, parts).
        facts: what only clones may read, shape (batch, num_facts).
    """

    segments: Symbols
    lengths: NDArray[np.int16]
    targets: NDArray[np.int8]
    facts: Symbols


class SymbolicTask(Protocol):
    """The interface of a task. Symbols are 0 .. num_symbols - 1; `missing` stands for a reply that never came."""

    @property
    def num_symbols(self) -> int: ...

    @property
    def num_answers(self) -> int:
        """ANSWER v exists for every v below it."""
        ...

    @property
    def num_facts(self) -> int: ...

    @property
    def max_length(self) -> int:
        """Longest segment of a root."""
        ...

    @property
    def visible_symbols(self) -> int | None:
        """How many symbols of its segment an agent sees, from the first on; `None` for all of them."""
        ...

    @property
    def calls(self) -> tuple[CallKind, ...]: ...

    def answerable(self, length: int) -> bool:
        """Whether a segment of this length may be answered."""
        ...

    def reliability(self, length: int) -> float:
        """Probability that an answer to a segment of this length is kept; else a uniform one takes its place."""
        ...

    def part_lengths(self, call: int, length: int) -> tuple[int, ...]:
        """Symbols that each clone of a call gets, longest first; empty if that call cannot cut a segment so long."""
        ...

    def draw(self, keys: Keys) -> ProblemBatch: ...


@runtime_checkable
class ForcedJoinTask(SymbolicTask, Protocol):
    """A task whose joins are forced: when a call has ended, the replies are handed in as they are, without a decision.

    It has one kind of call. Only the root makes it, once, and all its parts are equally long.
    """

    def grade(self, right: NDArray[np.bool_]) -> NDArray[np.float64]:
        """What replies are worth together, from 0 to 1; [batch, parts] to [batch]. A missing reply is not right."""
        ...


@dataclass(frozen=True)
class Chain:
    """The sum, modulo `modulus`, of a sequence of items. Whoever holds a segment longer than `window` must split it.

    One shared skill, answering a short segment, serves clones and root. Whether an agent erred is decided by its own
    segment and reply.

    Attributes:
        items: how many, or (fewest, most).
        modulus: items and answers are numbers below it.
        window: longest segment that may be answered; `None` for no window: clones only cost then, and never
            delegating is the best plan.
        splits: into how many parts of nearly equal length a segment can be split, longer parts first.
    """

    name: ClassVar[str] = "chain"
    items: int | tuple[int, int] = (2, 16)
    modulus: int = 5
    window: int | None = 4
    splits: tuple[int, ...] = (2, 4)

    def __post_init__(self) -> None:
        _check_span("items", self.items, MAX_ITEMS)
        check_whole("modulus", self.modulus, 2, MAX_MODULUS)
        if self.window is not None:
            check_whole("window", self.window, 1, MAX_ITEMS)
        splits: object = self.splits
        numbers = list(splits) if isinstance(splits, Collection) else [None]
        if len(set(numbers)) < len(numbers) or not all(is_whole(parts, 2, MAX_PARTS) for parts in numbers):
            raise ConfigError(f"splits is {splits!r}; expected different whole numbers from 2 to {MAX_PARTS}")

    @property
    def span(self) -> tuple[int, int]:
        return (self.items, self.items) if isinstance(self.items, int) else self.items

    @property
    def num_symbols(self) -> int:
        return self.modulus

    @property
    def num_answers(self) -> int:
        return self.modulus

    @property
    def num_facts(self) -> int:
        return 0

    @property
    def max_length(self) -> int:
        return self.span[1]

    @property
    def visible_symbols(self) -> int | None:
        return None

    @property
    def calls(self) -> tuple[CallKind, ...]:
        return tuple(CallKind(parts) for parts in self.splits)

    def answerable(self, length: int) -> bool:
        return self.window is None or length <= self.window

    def reliability(self, length: int) -> float:
        return 1.0

    def part_lengths(self, call: int, length: int) -> tuple[int, ...]:
        parts = self.splits[call]
        return tuple(length // parts + (i < length % parts) for i in range(parts)) if length >= parts else ()

    def draw(self, keys: Keys) -> ProblemBatch:
        low, high = self.span
        extra = draw_integers(fold_in(keys, 0), 1, high - low + 1)[0] if high > low else np.zeros(len(keys), np.int64)
        lengths = (low + extra).astype(np.int16)
        items = draw_integers(fold_in(keys, 1), high, self.modulus).astype(np.int8)
        inside = np.arange(high, dtype=np.int16)[:, None] < lengths
        targets = (items * inside).sum(axis=0, dtype=np.int32) % self.modulus
        return ProblemBatch(items.T, lengths, targets.astype(np.int8), np.empty((len(keys), 0), np.int8))


@dataclass(frozen=True)
class Noisy(Chain):
    """As `Chain` without a window, but answers err, and more often on long segments: delegation buys accuracy.

    An answer to a segment of length l is kept with probability (1 - rot) ** max(0, l - clear), else replaced by a
    uniform one: context rot. With a `token_cost` the best plan can be computed (`optimum`).

    Attributes:
        rot: loss of reliability per item beyond `clear`.
        clear: longest segment on which nobody errs.
    """

    name: ClassVar[str] = "noisy"
    items: int | tuple[int, int] = (2, 8)
    modulus: int = 3
    window: int | None = None
    rot: float = 0.2
    clear: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_probability("rot", self.rot)
        check_whole("clear", self.clear, 0, MAX_ITEMS)

    def reliability(self, length: int) -> float:
        return float((1 - self.rot) ** max(0, length - self.clear))


@dataclass(frozen=True)
class Deep(Chain):
    """As `Chain`, but nobody sees more of a segment than may be answered: no way round the tree.

    In `Chain` a root with a memory can sum its long segment itself, call for the sake of form and answer what it
    remembers. Here the first `window` symbols are all that is seen, so until calls have cut everything to that length
    the sum of what nobody has seen is uniform, and no policy is right more often than one time in `modulus`.
    """

    name: ClassVar[str] = "deep"
    items: int | tuple[int, int] = 8
    window: int | None = 2
    splits: tuple[int, ...] = (2,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is None:
            raise ConfigError("window is None; expected a whole number: without a window nobody needs clones (chain)")

    @property
    def visible_symbols(self) -> int | None:
        return self.window


@dataclass(frozen=True)
class Cells:
    """Many clones, one grade: each adds two numbers of its own, and what they are worth together is a coupling.

    The root holds `cells` pairs of numbers. Its one call hands every clone a pair, and the replies become its answer
    (`ForcedJoinTask`). The right reply to (u, v) is u + v + h modulo `modulus`. No agent sees the hidden part h.
    It is uniform with probability `hidden`, else 0. So a clone's own observation and reply do not decide
    whether it was right.

    Attributes:
        cells: how many pairs, and so clones.
        modulus: numbers and answers are below it.
        coupling: "additive": the share of right replies. "zipf": the same, where reply j = 1, 2, ... weighs 1 / j.
            "coverage": the share of groups of four neighbours in which at least one is right. "threshold": 1 if at
            least three quarters are right, else 0; "max": if any is; "and": if all are.
        hidden: probability that the hidden part of a cell is drawn.
    """

    name: ClassVar[str] = "cells"
    cells: int = 8
    modulus: int = 8
    coupling: str = "additive"
    hidden: float = 0.0

    def __post_init__(self) -> None:
        check_whole("cells", self.cells, 2, MAX_ITEMS)
        check_whole("modulus", self.modulus, 2, MAX_MODULUS)
        one_of("coupling", self.coupling, COUPLINGS)
        _check_probability("hidden", self.hidden)

    @property
    def num_symbols(self) -> int:
        return self.modulus

    @property
    def num_answers(self) -> int:
        return self.modulus

    @property
    def num_facts(self) -> int:
        return 0

    @property
    def max_length(self) -> int:
        return 2 * self.cells

    @property
    def visible_symbols(self) -> int | None:
        # A pair: the root, which holds them all, has no choice to make.
        return 2

    @property
    def calls(self) -> tuple[CallKind, ...]:
        return (CallKind(self.cells),)

    def answerable(self, length: int) -> bool:
        return length == 2

    def reliability(self, length: int) -> float:
        return 1.0

    def part_lengths(self, call: int, length: int) -> tuple[int, ...]:
        return (2,) * self.cells if length == 2 * self.cells else ()

    def draw(self, keys: Keys) -> ProblemBatch:
        batch, cells = len(keys), self.cells
        pairs = draw_integers(fold_in(keys, 0), 2 * cells, self.modulus).T
        luck = draw_uniforms(fold_in(keys, 1, np.arange(cells)[:, None])).T
        hidden = np.where(luck < self.hidden, draw_integers(fold_in(keys, 2), cells, self.modulus).T, 0)
        targets = (pairs.reshape(batch, cells, 2).sum(axis=2) + hidden) % self.modulus
        lengths = np.full(batch, 2 * cells, np.int16)
        return ProblemBatch(pairs.astype(np.int8), lengths, targets.astype(np.int8), np.empty((batch, 0), np.int8))

    @property
    def least_right(self) -> int:
        """How many right replies earn 1, where the coupling counts them."""
        return {"threshold": -(-3 * self.cells // 4), "max": 1, "and": self.cells}[self.coupling]

    def grade(self, right: NDArray[np.bool_]) -> NDArray[np.float64]:
        match self.coupling:
            case "additive":
                scores: NDArray[np.float64] = right.mean(axis=1)
            case "zipf":
                weights = 1 / np.arange(1, self.cells + 1)
                scores = np.where(right.all(axis=1), 1.0, (right * weights).sum(axis=1) / weights.sum())
            case "coverage":
                scores = np.logical_or.reduceat(right, range(0, self.cells, COVER), axis=1).mean(axis=1)
            case _:
                scores = (right.sum(axis=1) >= self.least_right).astype(np.float64)
        return scores


@dataclass(frozen=True)
class Lookup:
    """Serial delegation: follow keys from fact to fact. Only a clone that is given a key reads the fact behind it.

    The root holds one symbol, the first key. ASK k starts a clone that sees the fact behind key k: the next key, or at
    the end of the trail a value. The clone's reply becomes the root's segment. The answer is the value.
    Symbols 0 .. keys - 1 are keys, keys .. keys + values - 1 are values.

    Attributes:
        hops: facts on the trail, or (fewest, most); the root does not know how many.
        keys: facts there are; those off the trail hold random symbols.
        values: different values.
    """

    name: ClassVar[str] = "lookup"
    hops: int | tuple[int, int] = (1, 3)
    keys: int = 4
    values: int = 4

    def __post_init__(self) -> None:
        check_whole("keys", self.keys, 2, MAX_MODULUS)
        check_whole("values", self.values, 2, MAX_MODULUS)
        _check_span("hops", self.hops, self.keys, "keys = ")

    @property
    def span(self) -> tuple[int, int]:
        return (self.hops, self.hops) if isinstance(self.hops, int) else self.hops

    @property
    def num_symbols(self) -> int:
        return self.keys + self.values

    @property
    def num_answers(self) -> int:
        return self.keys + self.values

    @property
    def num_facts(self) -> int:
        return self.keys

    @property
    def max_length(self) -> int:
        return 1

    @property
    def visible_symbols(self) -> int | None:
        return None

    @property
    def calls(self) -> tuple[CallKind, ...]:
        return (CallKind(1, facts=self.keys),)

    def answerable(self, length: int) -> bool:
        return True

    def reliability(self, length: int) -> float:
        return 1.0

    def part_lengths(self, call: int, length: int) -> tuple[int, ...]:
        return (1,)

    def draw(self, keys: Keys) -> ProblemBatch:
        batch, rows = len(keys), np.arange(len(keys))
        low, high = self.span
        hops = low + draw_integers(fold_in(keys, 0), 1, high - low + 1)[0]
        order = np.argsort(draw_integers(fold_in(keys, 1), self.keys, 1 << 31).T, axis=1, kind="stable")
        facts = draw_integers(fold_in(keys, 2), self.keys, self.num_symbols).T
        targets = self.keys + draw_integers(fold_in(keys, 3), 1, self.values)[0]
        for hop in range(high):
            following = order[:, hop + 1] if hop + 1 < self.keys else targets
            on_trail = np.where(hop + 1 < hops, following, targets)
            facts[rows, order[:, hop]] = np.where(hop < hops, on_trail, facts[rows, order[:, hop]])
        segments = order[:, :1].astype(np.int8)
        return ProblemBatch(segments, np.ones(batch, np.int16), targets.astype(np.int8), facts.astype(np.int8))


# Symbols are stored in 8 bits, and a game of numbers is for small models.
MAX_ITEMS = 64
MAX_MODULUS = 32
MAX_PARTS = 8

COUPLINGS = ("additive", "zipf", "coverage", "threshold", "max", "and")
COVER = 4  # cells of a group in the coupling "coverage"; the last group may be smaller

TASKS = Registry(
    SymbolicTask,
    "symbolic task",
    "selfcest.symbolic_task",
    {
        "chain": "selfcest_env.symbolic.tasks:Chain",
        "lookup": "selfcest_env.symbolic.tasks:Lookup",
        "noisy": "selfcest_env.symbolic.tasks:Noisy",
        "cells": "selfcest_env.symbolic.tasks:Cells",
        "deep": "selfcest_env.symbolic.tasks:Deep",
    },
)


def make_task(task: SymbolicTask | str, options: Mapping[str, Any] | None = None) -> SymbolicTask:
    """A task by built-in name or `package.module:Class` with its options, or the task itself."""
    given: object = options
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"task_options is {given!r}; expected a mapping from options of the task to values, or None")
    if isinstance(task, str):
        made: SymbolicTask = build(TASKS.load(task, "task"), options or {}, where="task_options")
    elif options:
        raise ConfigError("task_options are for a task given by name; this one is an object already")
    else:
        made = task
    if isinstance(made, type) or not callable(getattr(made, "draw", None)):
        names = ", ".join(map(repr, TASKS))
        raise ConfigError(f"task is {task!r}; expected one of {names}, 'package.module:Class', or a SymbolicTask")
    return made


def _check_probability(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value!r}; expected a probability from 0 to 1")


def _check_span(name: str, value: object, most: int, limit: str = "") -> None:
    """`value` is a whole number from 1 to `most`, or two of them in order."""
    ends = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(ends) != 2 or not all(is_whole(end, 1, most) for end in ends) or ends[0] > ends[1]:
        raise ConfigError(
            f"{name} is {value!r}; expected 1 <= fewest <= most <= {limit}{most}: a whole number, or (fewest, most)"
        )
