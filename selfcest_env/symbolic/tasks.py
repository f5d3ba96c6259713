"""Five tasks over short segments of symbols.

An agent holds a *segment*: up to `max_length` symbols. It may ANSWER a value, or CALL: divide the work among clones,
whose replies become its new segment. A task defines the first segment, the lengths that may be answered, the parts that
each call gives to its clones, and how often an answer has an error. It has no state; problems are drawn from keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError, check_integer, is_integer_within
from selfcest_env.plugin import Registry, build, check_choice
from selfcest_env.symbolic.streams import Keys, draw_integers, draw_uniforms, fold_in

Symbols = NDArray[np.int8]


class CallKind(NamedTuple):
    """One kind of call.

    Attributes:
        parts: number of clones that it starts.
        facts: number of facts from which the caller can choose. Each fact is an action of its own, which gives the fact
            to one clone. With 0 the call is one action, which cuts the caller's segment into one part per clone.
    """

    parts: int
    facts: int = 0


class ProblemBatch(NamedTuple):
    """A batch of problems.

    Attributes:
        segments: the root's symbols, shape (batch, max_length); entries from `lengths` on have no meaning.
        lengths: symbols of each root's segment, shape (batch,).
        targets: the right answer, shape (batch,); of a `ForcedJoinTask` the right reply to each part, (batch, parts).
        facts: symbols that only clones may read, shape (batch, num_facts).
    """

    segments: Symbols
    lengths: NDArray[np.int16]
    targets: NDArray[np.int8]
    facts: Symbols


class SymbolicTask(Protocol):
    """The interface of a task. Its symbols are 0 to num_symbols - 1."""

    @property
    def num_symbols(self) -> int: ...

    @property
    def num_answers(self) -> int:
        """The number of answers: ANSWER v exists for every v below it."""
        ...

    @property
    def num_facts(self) -> int: ...

    @property
    def max_length(self) -> int:
        """The longest segment of a root."""
        ...

    @property
    def visible_symbols(self) -> int | None:
        """The number of symbols of its segment that an agent observes, from the first on; `None` for all."""
        ...

    @property
    def calls(self) -> tuple[CallKind, ...]: ...

    def answerable(self, length: int) -> bool:
        """Return whether a segment of this length may be answered."""
        ...

    def reliability(self, length: int) -> float:
        """Return the probability that an answer to a segment of this length is kept; else it becomes a uniform one."""
        ...

    def part_lengths(self, call: int, length: int) -> tuple[int, ...]:
        """Return the symbols of each part of a call, longest first; empty if it cannot cut a segment of this length."""
        ...

    def draw(self, keys: Keys) -> ProblemBatch:
        """Draw one problem per key; equal keys give equal problems."""
        ...


@runtime_checkable
class ForcedJoinTask(SymbolicTask, Protocol):
    """A task whose joins are forced: when the call has ended, its replies become the root's answer without an action.

    It has one kind of call. Only the root makes it, once, and all its parts are equally long.
    """

    def grade(self, right: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the score of the replies, from 0 to 1; [batch, parts] to [batch]. A missing reply is not right."""
        ...


@dataclass(frozen=True)
class Chain:
    """The sum, modulo `modulus`, of a sequence of items. An agent with a segment longer than `window` must split it.

    One shared skill, answering a short segment, serves clones and root. An agent's own segment and reply decide whether
    it made an error.

    Attributes:
        items: number of items, or (fewest, most).
        modulus: items and answers are numbers below it.
        window: longest segment that may be answered. With `None` clones only cost tokens, and never delegating is the
            best plan.
        splits: numbers of parts into which a segment can be split. Parts have nearly equal lengths, longer ones first.
    """

    name: ClassVar[str] = "chain"
    items: int | tuple[int, int] = (2, 16)
    modulus: int = 5
    window: int | None = 4
    splits: tuple[int, ...] = (2, 4)

    def __post_init__(self) -> None:
        _check_span("items", self.items, MAX_ITEMS)
        check_integer("modulus", self.modulus, 2, MAX_MODULUS)
        if self.window is not None:
            check_integer("window", self.window, 1, MAX_ITEMS)
        splits: object = self.splits
        # `None` is no whole number, so a value that is no collection fails the check below.
        numbers = list(splits) if isinstance(splits, Collection) else [None]
        if len(set(numbers)) < len(numbers) or not all(is_integer_within(parts, 2, MAX_PARTS) for parts in numbers):
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
    """As `Chain` without a window, but answers have errors, more often on long segments, so delegation buys accuracy.

    An answer to a segment of length l is kept with probability (1 - rot) ** max(0, l - clear), else replaced by a
    uniform one (context rot). `optimum` computes the best plan, with a `token_cost` too.

    Attributes:
        window: longest segment that may be answered; `None`: any, with errors.
        rot: loss of reliability per item beyond `clear`.
        clear: longest segment on which answers have no errors.
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
        check_integer("clear", self.clear, 0, MAX_ITEMS)

    def reliability(self, length: int) -> float:
        return float((1 - self.rot) ** max(0, length - self.clear))


@dataclass(frozen=True)
class Deep(Chain):
    """As `Chain`, but agents observe only the first `window` symbols of a segment, so no policy avoids the tree.

    In `Chain` a root with a memory can sum its long segment itself, make any call and then answer the remembered sum.
    Here the sum of the symbols that no agent has observed is uniform. Until calls have cut the segment into parts of
    `window` symbols, no policy is right more often than one time in `modulus`.

    Attributes:
        window: longest segment that may be answered, and number of symbols that an agent observes.
    """

    name: ClassVar[str] = "deep"
    items: int | tuple[int, int] = 8
    window: int | None = 2
    splits: tuple[int, ...] = (2,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is None:
            raise ConfigError(
                "window is None; expected a whole number: without a window no agent needs clones (use chain)"
            )

    @property
    def visible_symbols(self) -> int | None:
        return self.window


@dataclass(frozen=True)
class Cells:
    """Many clones with one reward: each adds two numbers, and a coupling turns their replies into one score.

    The root holds `cells` pairs of numbers. Its one call hands every clone a pair, and the replies become its answer
    (`ForcedJoinTask`). The right reply to (u, v) is u + v + h modulo `modulus`. No agent sees the hidden part h.
    It is uniform with probability `hidden`, else 0. So a clone's own observation and reply do not decide
    whether it was right.

    Attributes:
        cells: number of pairs, and so of clones.
        modulus: numbers and answers are below it.
        coupling: "additive" is the fraction of right replies. "zipf" is the same, where reply j = 1, 2, ... has the
            weight 1 / j. "coverage" is the fraction of groups of four neighbours with at least one right reply.
            "threshold" is 1 if at least three quarters are right, "max" if any is, "and" if all are, else 0.
        hidden: probability that the hidden part of a cell is drawn.
    """

    name: ClassVar[str] = "cells"
    cells: int = 8
    modulus: int = 8
    coupling: str = "additive"
    hidden: float = 0.0

    def __post_init__(self) -> None:
        check_integer("cells", self.cells, 2, MAX_ITEMS)
        check_integer("modulus", self.modulus, 2, MAX_MODULUS)
        check_choice("coupling", self.coupling, COUPLINGS)
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
        # One pair. The root holds all pairs, but its only action needs no observation.
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
        batch = len(keys)
        cells = self.cells
        pairs = draw_integers(fold_in(keys, 0), 2 * cells, self.modulus).T
        uniforms = draw_uniforms(fold_in(keys, 1, np.arange(cells)[:, None])).T
        hidden = np.where(uniforms < self.hidden, draw_integers(fold_in(keys, 2), cells, self.modulus).T, 0)
        targets = (pairs.reshape(batch, cells, 2).sum(axis=2) + hidden) % self.modulus
        lengths = np.full(batch, 2 * cells, np.int16)
        return ProblemBatch(pairs.astype(np.int8), lengths, targets.astype(np.int8), np.empty((batch, 0), np.int8))

    @property
    def least_right(self) -> int:
        """The number of right replies from which on the score is 1, for couplings that count them."""
        return {"threshold": -(-3 * self.cells // 4), "max": 1, "and": self.cells}[self.coupling]

    def grade(self, right: NDArray[np.bool_]) -> NDArray[np.float64]:
        match self.coupling:
            case "additive":
                scores: NDArray[np.float64] = right.mean(axis=1)
            case "zipf":
                weights = 1 / np.arange(1, self.cells + 1)
                # Exactly 1 if all are right: the quotient may have a rounding error.
                scores = np.where(right.all(axis=1), 1.0, (right * weights).sum(axis=1) / weights.sum())
            case "coverage":
                scores = np.logical_or.reduceat(right, range(0, self.cells, COVER), axis=1).mean(axis=1)
            case _:
                scores = (right.sum(axis=1) >= self.least_right).astype(np.float64)
        return scores


@dataclass(frozen=True)
class Lookup:
    """Serial delegation: follow keys from fact to fact. A fact is visible only to a clone that gets its key.

    The root holds one symbol, the first key. ASK k starts a clone that observes the fact behind key k: the next key, or
    at the end of the trail a value. The clone's reply becomes the root's segment. The right answer is the value.
    Symbols from 0 to keys - 1 are keys, and the `values` symbols after them are values.

    Attributes:
        hops: number of facts on the trail, or (fewest, most); the root does not observe it.
        keys: number of facts; facts off the trail hold random symbols.
        values: number of different values.
    """

    name: ClassVar[str] = "lookup"
    hops: int | tuple[int, int] = (1, 3)
    keys: int = 4
    values: int = 4

    def __post_init__(self) -> None:
        check_integer("keys", self.keys, 2, MAX_MODULUS)
        check_integer("values", self.values, 2, MAX_MODULUS)
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
        batch = len(keys)
        rows = np.arange(batch)
        low, high = self.span
        hops = low + draw_integers(fold_in(keys, 0), 1, high - low + 1)[0]
        # Sorting random numbers gives a uniform order of the keys; the trail visits them in this order.
        order = np.argsort(draw_integers(fold_in(keys, 1), self.keys, 1 << 31).T, axis=1, kind="stable")
        facts = draw_integers(fold_in(keys, 2), self.keys, self.num_symbols).T
        targets = self.keys + draw_integers(fold_in(keys, 3), 1, self.values)[0]
        for hop in range(high):
            following = order[:, hop + 1] if hop + 1 < self.keys else targets
            on_trail = np.where(hop + 1 < hops, following, targets)
            facts[rows, order[:, hop]] = np.where(hop < hops, on_trail, facts[rows, order[:, hop]])
        segments = order[:, :1].astype(np.int8)
        return ProblemBatch(segments, np.ones(batch, np.int16), targets.astype(np.int8), facts.astype(np.int8))


# Symbols are stored in 8 bits, and the symbolic game is for small models.
MAX_ITEMS = 64
MAX_MODULUS = 32
MAX_PARTS = 8

COUPLINGS = ("additive", "zipf", "coverage", "threshold", "max", "and")
COVER = 4  # cells per group in the coupling "coverage"; the last group may be smaller

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
    """Return a task, made from a built-in name or `package.module:Class` and its options where it is a text."""
    untyped_options: object = options
    if untyped_options is not None and not isinstance(untyped_options, Mapping):
        raise ConfigError(
            f"task_options is {options!r}; expected a mapping from options of the task to values, or None"
        )
    if isinstance(task, str):
        built: SymbolicTask = build(TASKS.load(task, "task"), options or {}, where="task_options")
    elif options:
        raise ConfigError(f"task_options are {options!r}; expected None, because the task is an object and no name")
    else:
        built = task
    if isinstance(built, type) or not callable(getattr(built, "draw", None)):
        names = ", ".join(map(repr, TASKS))
        raise ConfigError(f"task is {task!r}; expected one of {names}, 'package.module:Class', or a SymbolicTask")
    return built


def _check_probability(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value!r}; expected a probability from 0 to 1")


def _check_span(name: str, value: object, most: int, limit: str = "") -> None:
    """Raise `ConfigError` unless `value` is a whole number from 1 to `most`, or two of them in order."""
    ends = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(ends) != 2 or not all(is_integer_within(end, 1, most) for end in ends) or ends[0] > ends[1]:
        raise ConfigError(
            f"{name} is {value!r}; expected 1 <= fewest <= most <= {limit}{most}: a whole number, or (fewest, most)"
        )
