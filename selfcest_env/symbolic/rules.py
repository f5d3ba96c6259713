"""Limits and prices of a symbolic game, and the tables that the transition function reads instead of computing.

A symbol costs one token. An opening costs one token more than its symbols, an answer one, a call one per clone, the
message with its replies one more than it has replies, a line about a fault one. The rulebook is that of the text game:
`limits` and these prices, given to its kernel, produce the same grants, charges and endings (`twin`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError, check_whole, did_you_mean
from selfcest_env.symbolic.tasks import ForcedJoinTask, SymbolicTask, make_task
from selfcest_env.types import Limits

OPENING = 1  # tokens of an opening beside its symbols
REPLIES = 1  # tokens of a message with replies beside the replies
NOTICE = 1  # tokens of a line about a fault
RESERVE = 1  # tokens of an answer: what every agent keeps for one more
WAIT = 0
FIRST_ANSWER = 1
UNLIMITED = 1 << 30  # a purse that no episode can empty, even divided among clones at every depth
MAX_COUNT = 1 << 20
MAX_WORDS = 1000
NEVER = np.iinfo(np.int32).max
MAX_AGENTS = 255


@dataclass(frozen=True)
class SymbolicRules:
    """What a set of symbolic episodes is played by.

    Attributes:
        task: what is to be done.
        max_clones: clones of one episode, at all depths together.
        max_depth: 0 switches delegation off, 1 lets the root delegate, 2 its clones too.
        max_turns: turns of one agent.
        total_tokens: tree-wide: every prompt and every generated token of every agent; `None` is unlimited.
        generated_tokens: tree-wide: generated tokens alone; `None` is unlimited.
        token_cost: taken from the team reward per token of the whole tree.
    """

    task: SymbolicTask
    max_clones: int = 8
    max_depth: int = 2
    max_turns: int = 4
    total_tokens: int | None = 96
    generated_tokens: int | None = None
    token_cost: float = 0.0

    def __post_init__(self) -> None:
        if self.max_clones is None:
            raise ConfigError(
                "max_clones is None (unlimited), but possible_agents must be a finite list; "
                f"expected a whole number from 0 to {MAX_AGENTS - 1}"
            )
        check_whole("max_clones", self.max_clones, 0, MAX_AGENTS - 1)
        check_whole("max_depth", self.max_depth, 0, MAX_AGENTS - 1)
        check_whole("max_turns", self.max_turns, 1, 100)
        longest = self.task.max_length + OPENING
        if self.total_tokens is not None:
            least = longest + RESERVE
            check_whole("total_tokens", self.total_tokens, least, MAX_COUNT, "the longest opening and an answer")
        if self.generated_tokens is not None:
            check_whole("generated_tokens", self.generated_tokens, RESERVE, MAX_COUNT, "one answer")
        cost: object = self.token_cost
        if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not 0 <= cost < float("inf"):
            raise ConfigError(f"token_cost is {cost!r}; expected a finite number >= 0")
        if self.task.num_facts and self.max_depth > 1:
            raise ConfigError(
                f"max_depth is {self.max_depth}; expected 0 or 1: only the root of this task may name facts, so its "
                "clones have nothing to delegate"
            )
        if self.forced_join_task is not None:
            self._check_joined()

    @property
    def limits(self) -> Limits:
        """The same limits for the text game."""
        return Limits(
            total_tokens=self.total_tokens,
            generated_tokens=self.generated_tokens,
            context_tokens=None,
            turn_tokens=max((RESERVE, *(call.parts for call in self.task.calls))),
            reply_tokens=1,
            answer_reserve=RESERVE,
            max_turns=self.max_turns,
            max_clones=self.max_clones,
            max_clones_per_call=None,
            max_depth=self.max_depth,
        )

    def _check_joined(self) -> None:
        """Where joins are forced and the one call can never be made, nobody can do anything."""
        kinds, why = len(self.task.calls), "the root makes one call and its clones none"
        if kinds != 1:
            raise ConfigError(f"{type(self.task).__name__} has {kinds} kinds of calls; expected 1, as joins are forced")
        parts = self.task.calls[0].parts
        check_whole("max_depth", self.max_depth, 1, 1, why)
        check_whole("max_clones", self.max_clones, parts, MAX_AGENTS - 1, "a clone for every part")
        check_whole("max_turns", self.max_turns, 2, 100, "a call, and its replies handed in")
        if self.total_tokens is not None:
            call = int(self.least_tokens[self.column(0, self.task.max_length)])
            least = OPENING + self.task.max_length + call
            check_whole("total_tokens", self.total_tokens, least, MAX_COUNT, "the opening and the call")
        if self.generated_tokens is not None:
            least = 2 * parts + RESERVE
            check_whole("generated_tokens", self.generated_tokens, least, MAX_COUNT, "the call and every answer")

    @cached_property
    def forced_join_task(self) -> ForcedJoinTask | None:
        """The task, if its joins are forced."""
        return self.task if isinstance(self.task, ForcedJoinTask) else None

    @cached_property
    def num_targets(self) -> int:
        """Parts of the right answer: one, or one per reply that is handed in."""
        return 1 if self.forced_join_task is None else self.max_parts

    @cached_property
    def num_agents(self) -> int:
        return 1 + self.max_clones

    @cached_property
    def num_actions(self) -> int:
        return FIRST_ANSWER + self.task.num_answers + sum(max(1, call.facts) for call in self.task.calls)

    @cached_property
    def first_call(self) -> int:
        """The first action that is a call; all from here on are."""
        return FIRST_ANSWER + self.task.num_answers

    @cached_property
    def max_parts(self) -> int:
        return max((call.parts for call in self.task.calls), default=1)

    @cached_property
    def width(self) -> int:
        """Symbols an agent can hold: a root's segment, or the replies to a call."""
        return max(self.task.max_length, self.max_parts)

    @cached_property
    def places(self) -> int:
        """Of them those that an observation shows."""
        return self.width if self.task.visible_symbols is None else min(self.width, self.task.visible_symbols)

    @cached_property
    def missing(self) -> int:
        """Symbol of a reply that never came."""
        return self.task.num_symbols

    @cached_property
    def pad(self) -> int:
        return self.task.num_symbols + 1

    @cached_property
    def tape_length(self) -> int:
        """Symbols of an episode: the root's answer, its segment, the facts, and every reply there can be."""
        calls = self.max_clones if self.forced_join_task is None else 1  # none of them is without a clone
        return self.replies_at + calls * self.max_parts

    @cached_property
    def replies_at(self) -> int:
        """Where on the tape the replies begin."""
        return 1 + self.task.max_length + self.task.num_facts

    @cached_property
    def kinds(self) -> NDArray[np.intp]:
        """Per action the kind of call it is, 0 for what is none; shape (num_actions,)."""
        kinds = [kind for kind, call in enumerate(self.task.calls) for _ in range(max(1, call.facts))]
        return np.array([0] * self.first_call + kinds, np.intp)

    @cached_property
    def fact_at(self) -> NDArray[np.int16]:
        """Per action the place on the tape of the fact it hands over, 0 for none; shape (num_actions,)."""
        first = 1 + self.task.max_length
        places = [first + i if call.facts else 0 for call in self.task.calls for i in range(max(1, call.facts))]
        return np.array([0] * self.first_call + places, np.int16)

    @cached_property
    def prices(self) -> NDArray[np.int32]:
        """Generated tokens of every action; shape (num_actions,)."""
        prices = self.part_counts[self.kinds]
        prices[WAIT], prices[FIRST_ANSWER : self.first_call] = 0, RESERVE
        return prices

    @cached_property
    def purses(self) -> NDArray[np.int32]:
        """Tokens, generated tokens and clones of a root; shape (3,)."""
        whole = (self.total_tokens or UNLIMITED, self.generated_tokens or UNLIMITED, self.max_clones)
        return np.array(whole, np.int32)

    @cached_property
    def parts(self) -> NDArray[np.int32]:
        """Clones of every action that is a call; shape (num_actions,)."""
        return self.part_counts[self.kinds]

    @cached_property
    def columns(self) -> NDArray[np.intp]:
        """Of every action that is a call, the `column` of length 0; shape (num_actions,)."""
        columns: NDArray[np.intp] = self.column(self.kinds, 0)
        return columns

    @cached_property
    def kept_back(self) -> NDArray[np.int32]:
        """Of tokens, generated tokens and clones, what a call does not share, below zero; shape (3, num_actions)."""
        kept = [REPLIES + self.parts + RESERVE, np.full(self.num_actions, RESERVE), self.parts]
        return -np.array(kept, np.int32)

    @cached_property
    def share(self) -> NDArray[np.float64]:
        """What each clone of a call gets of the rest; shape (num_actions,)."""
        return 1.0 / self.parts

    @cached_property
    def clones_call(self) -> NDArray[np.int32]:
        """By depth of a caller, 1 where its clones may call, else 0; shape (max_depth + 1,)."""
        return (np.arange(self.max_depth + 1) + 1 < self.max_depth).astype(np.int32)

    @cached_property
    def codes_at_turn(self) -> NDArray[np.intp]:
        """By turns played, the legality codes that are left: calls are not, on the last; shape (max_turns + 1,)."""
        return np.where(np.arange(self.max_turns + 1) < self.max_turns - 1, -1, 1).astype(np.intp)

    @cached_property
    def codes_at_depth(self) -> NDArray[np.intp]:
        """The same by depth; shape (max_depth + 1,)."""
        return np.where(np.arange(self.max_depth + 1) < self.max_depth, -1, 1).astype(np.intp)

    @cached_property
    def codes_of_clones(self) -> NDArray[np.intp]:
        """The same by clones that may still be started; shape (max_clones + 1,)."""
        return self._codes_of(self.max_clones, self.call_parts)

    @cached_property
    def codes_of_generated(self) -> NDArray[np.intp]:
        """The same by generated tokens left; with more than the last entry stands for, all are."""
        least = [2 * parts + RESERVE for parts in self.call_parts]
        return self._codes_of(max(least, default=0), least)

    def _codes_of(self, most: int, least: Sequence[int]) -> NDArray[np.intp]:
        codes, left = np.ones(most + 1, np.intp), np.arange(most + 1)
        for kind, amount in enumerate(least):
            codes += (left >= amount) * (2 << kind)
        return codes

    @cached_property
    def call_parts(self) -> tuple[int, ...]:
        """Clones per kind of call."""
        return tuple(call.parts for call in self.task.calls)

    @cached_property
    def part_counts(self) -> NDArray[np.int32]:
        """The same as an array of shape (kinds,); one entry where nobody can call."""
        return np.array(self.call_parts or [1], np.int32)

    @cached_property
    def part_lengths(self) -> NDArray[np.int16]:
        """Symbols of each part, 0 where there is none; shape (max_parts, kinds * (width + 1)), by `column`."""
        table = np.zeros((self.max_parts, len(self.part_counts), self.width + 1), np.int16)
        for kind in range(len(self.task.calls)):
            for length in range(self.width + 1):
                lengths = self.task.part_lengths(kind, length)
                table[: len(lengths), kind, length] = lengths
        return table.reshape(self.max_parts, -1)

    @cached_property
    def part_starts(self) -> NDArray[np.int16]:
        """Symbols of a segment before each part; same shape."""
        return (np.cumsum(self.part_lengths, axis=0) - self.part_lengths).astype(np.int16)

    @cached_property
    def least_grants(self) -> NDArray[np.int32]:
        """Least grant with which each part is born: its opening and one token; same shape. No grant bears a part that
        is none."""
        grants = OPENING + self.part_lengths.astype(np.int32) + RESERVE
        return np.where(self.part_lengths > 0, grants, NEVER)

    @cached_property
    def least_tokens(self) -> NDArray[np.int32]:
        """Least balance from which a call brings at least one clone; shape (kinds * (width + 1),), by `column`.

        The call itself, the replies, an answer after them, and for every part an equal share that bears the shortest.
        """
        parts = np.repeat(self.part_counts, self.width + 1)
        share = self.least_grants.min(axis=0)
        tokens = parts + REPLIES + parts + RESERVE + parts * np.where(share == NEVER, 0, share)
        return np.where(share == NEVER, NEVER, tokens).astype(np.int32)

    def column(self, kind: Any, length: Any) -> Any:
        """Column of the tables above for calls of a kind on segments of a length."""
        return kind * (self.width + 1) + length

    @cached_property
    def legal_table(self) -> NDArray[np.bool_]:
        """Legal actions by legality code, shape (2 ** (1 + kinds), num_actions).

        Bit 0 of a code says that an answer is legal, bit 1 + k that calls of kind k are. Where nothing is, WAIT is.
        """
        kinds = len(self.task.calls)
        table = np.zeros((1 << (1 + kinds), self.num_actions), bool)
        for code in range(len(table)):
            table[code, FIRST_ANSWER : self.first_call] = code & 1
            table[code, self.first_call :] = code >> (1 + self.kinds[self.first_call :]) & 1
        table[0, WAIT] = True
        return table

    @cached_property
    def observed_limits(self) -> tuple[int | None, ...]:
        """Limits that scale the amounts of an observation, as `vectors.OBSERVATION_FEATURES`; `None` is unlimited."""
        return self.max_depth, self.max_turns, self.total_tokens, self.generated_tokens, self.max_clones, self.width

    @cached_property
    def units(self) -> NDArray[np.float32]:
        """What one of each amount counts, 1 without a limit; shape (amounts, 1)."""
        units = [1.0 if limit is None else 1 / max(limit, 1) for limit in self.observed_limits]
        return np.array(units, np.float32)[:, None]

    @cached_property
    def chunk(self) -> int:
        """How many places of a segment are turned into numbers at once: as many as a small table allows."""
        return max(1, min(self.places, int(np.log(MAX_WORDS) / np.log(self.missing + 1))))

    @cached_property
    def chunk_starts(self) -> NDArray[np.intp]:
        """The first place of every chunk; shape (chunks, 1)."""
        return np.arange(0, self.places, self.chunk)[:, None]

    @cached_property
    def chunk_held(self) -> NDArray[np.intp]:
        """Of each chunk of a segment of a length, the first row of `one_hot_words`; shape (chunks, width + 1)."""
        held = np.clip(np.arange(self.width + 1) - self.chunk_starts, 0, self.chunk).astype(np.intp)
        first: NDArray[np.intp] = held * (self.missing + 1) ** self.chunk
        return first

    @cached_property
    def one_hot_words(self) -> NDArray[np.float32]:
        """An entry per place of a chunk and symbol, in row `places held * number of words + word`.

        A word is the chunk's symbols as the digits of a number. Nothing stands for `missing` and for places not held.
        """
        one_hot = np.eye(self.missing + 1, self.task.num_symbols, dtype=np.float32)
        words = np.indices([self.missing + 1] * self.chunk).reshape(self.chunk, -1)
        held = np.arange(self.chunk)[:, None] < np.arange(self.chunk + 1)
        rows = [one_hot[word] * inside[:, None, None] for word, inside in zip(words, held, strict=True)]
        return np.concatenate(rows, axis=2).reshape(-1, self.chunk * self.task.num_symbols)

    @cached_property
    def answerable(self) -> NDArray[np.intp]:
        """1 where a segment of a length may be answered, else 0; shape (width + 1,)."""
        return np.array([bool(self.task.answerable(length)) for length in range(self.width + 1)], np.intp)

    @cached_property
    def reliability(self) -> NDArray[np.float64] | None:
        """Probability that an answer is kept, shape (width + 1,); `None` if nobody ever errs."""
        table = np.array([self.task.reliability(length) for length in range(self.width + 1)])
        return table if (table < 1).any() else None


def make_rules(
    task: SymbolicTask | str = "chain", task_options: Mapping[str, Any] | None = None, **limits: Any
) -> SymbolicRules:
    """Rules from a task, or its name and options, and the limits of `SymbolicRules`.

    A `max_depth` of `None`, or none at all, is 1 where only the root of the task has something to delegate, else 2.

    Raises:
        ConfigError: an unknown or impossible argument, named with what was expected.
    """
    known = [limit.name for limit in fields(SymbolicRules) if limit.name != "task"]
    for name in limits:
        if name not in known:
            raise ConfigError(
                f"unknown argument {name!r}; the limits are {', '.join(known)}.{did_you_mean(name, known)}"
            )
    made = make_task(task, task_options)
    if limits.get("max_depth") is None:
        limits["max_depth"] = 1 if made.num_facts or isinstance(made, ForcedJoinTask) else 2
    return SymbolicRules(made, **limits)
