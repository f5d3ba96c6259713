"""Limits and prices of a symbolic game, and the lookup tables of its transition function.

| text | tokens |
|---|---|
| an opening with n symbols | n + 1 |
| an answer | 1 |
| a call of n clones | n |
| the message with n replies | n + 1 |
| a line about a fault | 1 |

The rules are those of the text game: with `limits` and these prices, its kernel makes the same grants, charges and
endings (`twin`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError, check_integer, did_you_mean
from selfcest_env.symbolic.tasks import CallKind, ForcedJoinTask, SymbolicTask, make_task
from selfcest_env.types import Limits

OPENING = 1  # tokens of an opening in addition to its symbols
REPLIES = 1  # tokens of a message with replies in addition to the replies
NOTICE = 1  # tokens of a line about a fault
RESERVE = 1  # tokens of an answer, which every agent keeps for one more answer
WAIT = 0
FIRST_ANSWER = 1
UNLIMITED = 1 << 30  # a balance that no episode can use up, even divided among clones at every depth
MAX_COUNT = 1 << 20
MAX_WORDS = 1000  # rows of the table of one-hot words, for each number of held places
NEVER = np.iinfo(np.int32).max
MAX_AGENTS = 255
MAX_SYMBOLS = 126  # symbols are stored as int8, and two more stand for a missing reply and for no symbol


def _check_task(task: SymbolicTask) -> None:
    """Raise `ConfigError` if the members of a task contradict `SymbolicTask`, so that some episode could not end."""
    name = type(task).__name__
    check_integer(f"{name}.max_length", task.max_length, 1, np.iinfo(np.int16).max)
    check_integer(f"{name}.num_symbols", task.num_symbols, 1, MAX_SYMBOLS)
    check_integer(f"{name}.num_answers", task.num_answers, 1, task.num_symbols)
    for kind, call in enumerate(task.calls):
        if not isinstance(call, CallKind):
            raise ConfigError(f"{name}.calls[{kind}] is {call!r}; expected a CallKind")
        check_integer(f"{name}.calls[{kind}].parts", call.parts, 1, MAX_AGENTS - 1)
        check_integer(f"{name}.calls[{kind}].facts", call.facts, 0, task.num_facts)
        for length in range(task.max_length + 1):
            given: object = task.part_lengths(kind, length)
            if not isinstance(given, Sequence | np.ndarray):
                raise ConfigError(f"{name}.part_lengths({kind}, {length}) is {given!r}; expected a tuple of lengths")
            parts = tuple(given)
            # The tables of the transition rely on this order. A part without symbols would never act.
            is_cut = len(parts) == call.parts and min(parts) >= 1 and sorted(parts, reverse=True) == list(parts)
            if parts and not (is_cut and (call.facts or sum(parts) <= length)):
                raise ConfigError(
                    f"{name}.part_lengths({kind}, {length}) is {parts}; expected (), or {call.parts} lengths >= 1, "
                    "the longest first, with at most as many symbols as the segment"
                )
    for length in range(task.max_length + 1):
        reliability: object = task.reliability(length)
        if not isinstance(reliability, Real) or not 0 <= float(reliability) <= 1:
            raise ConfigError(f"{name}.reliability({length}) is {reliability!r}; expected a number from 0 to 1")


@dataclass(frozen=True)
class SymbolicRules:
    """The rules of a set of symbolic episodes.

    Attributes:
        task: the task.
        max_clones: clones of one episode, at all depths together.
        max_depth: 0 switches delegation off, 1 lets the root delegate, 2 its clones too.
        max_turns: turns of one agent.
        total_tokens: tree-wide limit on prompt and generated tokens of all agents; `None` is unlimited.
        generated_tokens: tree-wide limit on generated tokens; `None` is unlimited.
        token_cost: cost in team reward per token of the whole tree.
    """

    task: SymbolicTask
    max_clones: int = 8
    max_depth: int = 2
    max_turns: int = 4
    total_tokens: int | None = 96
    generated_tokens: int | None = None
    token_cost: float = 0.0

    def __post_init__(self) -> None:
        _check_task(self.task)
        if self.max_clones is None:
            raise ConfigError(
                "max_clones is None (unlimited), but possible_agents must be a finite list; "
                f"expected a whole number from 0 to {MAX_AGENTS - 1}"
            )
        check_integer("max_clones", self.max_clones, 0, MAX_AGENTS - 1)
        check_integer("max_depth", self.max_depth, 0, MAX_AGENTS - 1)
        check_integer("max_turns", self.max_turns, 1, 100)
        longest_opening = self.task.max_length + OPENING
        if self.total_tokens is not None:
            least = longest_opening + RESERVE
            check_integer("total_tokens", self.total_tokens, least, MAX_COUNT, "the longest opening and an answer")
        if self.generated_tokens is not None:
            check_integer("generated_tokens", self.generated_tokens, RESERVE, MAX_COUNT, "one answer")
        cost: object = self.token_cost
        if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not 0 <= cost < float("inf"):
            raise ConfigError(f"token_cost is {cost!r}; expected a finite number >= 0")
        if self.task.num_facts and self.max_depth > 1:
            raise ConfigError(
                f"max_depth is {self.max_depth}; expected 0 or 1: only the root of this task may name facts, so its "
                "clones have nothing to delegate"
            )
        if self.forced_join_task is not None:
            self._check_forced_join()

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

    def _check_forced_join(self) -> None:
        """Raise `ConfigError` for limits under which the one call of a task with forced joins can never be made."""
        num_kinds = len(self.task.calls)
        if num_kinds != 1:
            name = type(self.task).__name__
            raise ConfigError(f"{name} has {num_kinds} kinds of calls; expected 1, as joins are forced")
        parts = self.task.calls[0].parts
        check_integer("max_depth", self.max_depth, 1, 1, "the root makes one call and its clones none")
        check_integer("max_clones", self.max_clones, parts, MAX_AGENTS - 1, "a clone for every part")
        check_integer("max_turns", self.max_turns, 2, 100, "a call, and its replies handed in")
        if self.total_tokens is not None:
            call = int(self.least_tokens[self.column(0, self.task.max_length)])
            least = OPENING + self.task.max_length + call
            check_integer("total_tokens", self.total_tokens, least, MAX_COUNT, "the opening and the call")
        if self.generated_tokens is not None:
            least = 2 * parts + RESERVE
            check_integer("generated_tokens", self.generated_tokens, least, MAX_COUNT, "the call and every answer")

    # Sizes

    @cached_property
    def forced_join_task(self) -> ForcedJoinTask | None:
        """The task, if its joins are forced."""
        return self.task if isinstance(self.task, ForcedJoinTask) else None

    @cached_property
    def num_targets(self) -> int:
        """Symbols of the right answer: one, or one per reply of a forced join."""
        return 1 if self.forced_join_task is None else self.max_parts

    @cached_property
    def num_agents(self) -> int:
        return 1 + self.max_clones

    @cached_property
    def num_actions(self) -> int:
        return FIRST_ANSWER + self.task.num_answers + sum(max(1, call.facts) for call in self.task.calls)

    @cached_property
    def first_call(self) -> int:
        """The first action that is a call; all actions from here on are calls."""
        return FIRST_ANSWER + self.task.num_answers

    @cached_property
    def max_parts(self) -> int:
        return max((call.parts for call in self.task.calls), default=1)

    @cached_property
    def width(self) -> int:
        """The most symbols that an agent can hold: a root's segment, or the replies to a call."""
        return max(self.task.max_length, self.max_parts)

    @cached_property
    def visible_places(self) -> int:
        """The number of places of a segment that an observation contains."""
        return self.width if self.task.visible_symbols is None else min(self.width, self.task.visible_symbols)

    @cached_property
    def missing(self) -> int:
        """The symbol of a missing reply."""
        return self.task.num_symbols

    @cached_property
    def pad(self) -> int:
        return self.task.num_symbols + 1

    # The tape

    @cached_property
    def tape_length(self) -> int:
        """Symbols of an episode: the root's answer, its segment, the facts, and every possible reply."""
        # Every call that is granted starts a clone, so there are at most as many calls as clones.
        calls = self.max_clones if self.forced_join_task is None else 1
        return self.first_reply_cell + calls * self.max_parts

    @cached_property
    def first_fact_cell(self) -> int:
        """The cell of the tape that holds the first fact."""
        return 1 + self.task.max_length

    @cached_property
    def first_reply_cell(self) -> int:
        """The cell of the tape that takes the first reply."""
        return self.first_fact_cell + self.task.num_facts

    # By action

    @cached_property
    def action_kinds(self) -> NDArray[np.intp]:
        """The kind of call of each action, 0 for other actions; shape (num_actions,)."""
        kinds = [0] * self.first_call
        for kind, call in enumerate(self.task.calls):
            kinds += [kind] * max(1, call.facts)
        return np.array(kinds, np.intp)

    @cached_property
    def action_fact_cells(self) -> NDArray[np.int16]:
        """The cell of the tape with the fact that each action hands over, 0 for none; shape (num_actions,)."""
        cells = [0] * self.first_call
        for call in self.task.calls:
            cells += range(self.first_fact_cell, self.first_fact_cell + call.facts) if call.facts else [0]
        return np.array(cells, np.int16)

    @cached_property
    def action_prices(self) -> NDArray[np.int32]:
        """Generated tokens of each action; shape (num_actions,)."""
        prices = self.action_parts.copy()
        prices[WAIT] = 0
        prices[FIRST_ANSWER : self.first_call] = RESERVE
        return prices

    @cached_property
    def is_call(self) -> NDArray[np.bool_]:
        """Whether each action is a call; shape (num_actions,)."""
        is_call: NDArray[np.bool_] = np.arange(self.num_actions) >= self.first_call
        return is_call

    @cached_property
    def is_answer(self) -> NDArray[np.bool_]:
        """Whether each action is an answer; shape (num_actions,)."""
        is_answer = ~self.is_call
        is_answer[WAIT] = False
        return is_answer

    @cached_property
    def answer_symbols(self) -> NDArray[np.int8]:
        """The symbol that each answer writes, without meaning for other actions; shape (num_actions,)."""
        return (np.arange(self.num_actions) - FIRST_ANSWER).astype(np.int8)

    @cached_property
    def action_parts(self) -> NDArray[np.int32]:
        """Clones of each action that is a call, without meaning for other actions; shape (num_actions,)."""
        return self.kind_parts[self.action_kinds]

    @cached_property
    def action_columns(self) -> NDArray[np.intp]:
        """The `column` of length 0 for each action that is a call; shape (num_actions,)."""
        columns: NDArray[np.intp] = self.column(self.action_kinds, 0)
        return columns

    @cached_property
    def negative_reserves(self) -> NDArray[np.int32]:
        """Tokens, generated tokens and clones that a caller does not share, times -1; shape (3, num_actions).

        Negative, so that the transition function needs one addition on an array that it has just taken.
        """
        tokens = REPLIES + self.action_parts + RESERVE
        generated = np.full(self.num_actions, RESERVE)
        return -np.array([tokens, generated, self.action_parts], np.int32)

    @cached_property
    def part_share(self) -> NDArray[np.float64]:
        """The fraction of the shared balance that each clone of a call gets; shape (num_actions,)."""
        return 1.0 / self.action_parts

    # By state of an agent

    @cached_property
    def root_balance(self) -> NDArray[np.int32]:
        """Tokens, generated tokens and clones of a root; shape (3,)."""
        balance = (self.total_tokens or UNLIMITED, self.generated_tokens or UNLIMITED, self.max_clones)
        return np.array(balance, np.int32)

    @cached_property
    def clones_may_call(self) -> NDArray[np.int32]:
        """1 where the clones of a caller may call, else 0, by depth of the caller; shape (max_depth + 1,)."""
        return (np.arange(self.max_depth + 1) + 1 < self.max_depth).astype(np.int32)

    # A legality code is a bit field (`legal_table`). The tables below are masks: the code of an agent is their
    # conjunction. -1 has all bits set, and 1 only the bit of answers.

    @cached_property
    def codes_by_place(self) -> NDArray[np.intp]:
        """Legality mask by turns played and depth: no call is legal on the last turn, or at the largest depth.

        The entry of t turns and depth d is at t * (max_depth + 1) + d.
        """
        has_turns = np.arange(self.max_turns + 1) < self.max_turns - 1
        has_depth = np.arange(self.max_depth + 1) < self.max_depth
        return np.where(has_turns[:, None] & has_depth, -1, 1).astype(np.intp).reshape(-1)

    @cached_property
    def codes_by_clones(self) -> NDArray[np.intp]:
        """Legality mask by clones that may still be started; shape (max_clones + 1,)."""
        return self._codes_by_balance(self.max_clones, self.call_parts)

    @cached_property
    def codes_by_generated(self) -> NDArray[np.intp]:
        """Legality mask by generated tokens left; the last entry stands for all larger balances too."""
        # The call, an answer of each clone, and an answer of the caller after them.
        least = [2 * parts + RESERVE for parts in self.call_parts]
        return self._codes_by_balance(max(least, default=0), least)

    def _codes_by_balance(self, largest: int, least_by_kind: Sequence[int]) -> NDArray[np.intp]:
        codes = np.ones(largest + 1, np.intp)
        balances = np.arange(largest + 1)
        for kind, least in enumerate(least_by_kind):
            codes += (balances >= least) * (2 << kind)
        return codes

    @cached_property
    def call_parts(self) -> tuple[int, ...]:
        """Clones of each kind of call."""
        return tuple(call.parts for call in self.task.calls)

    @cached_property
    def kind_parts(self) -> NDArray[np.int32]:
        """`call_parts` as an array of shape (kinds,), with one entry where the task has no call."""
        return np.array(self.call_parts or [1], np.int32)

    # By kind of call and length of the caller's segment

    @cached_property
    def part_lengths(self) -> NDArray[np.int16]:
        """Symbols of each part, 0 for no part; shape (max_parts, kinds * (width + 1)), by `column`."""
        table = np.zeros((self.max_parts, len(self.kind_parts), self.width + 1), np.int16)
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
        """Least grant with which each part is born: its opening and one answer; same shape.

        It is `NEVER` for a part that does not exist.
        """
        grants = OPENING + self.part_lengths.astype(np.int32) + RESERVE
        return np.where(self.part_lengths > 0, grants, NEVER)

    @cached_property
    def least_tokens(self) -> NDArray[np.int32]:
        """Least balance from which a call starts at least one clone; shape (kinds * (width + 1),), by `column`.

        It covers the call itself, its replies, an answer after them, and equal shares that bear the shortest part.
        """
        parts = np.repeat(self.kind_parts, self.width + 1)
        share = self.least_grants.min(axis=0)
        is_possible = share != NEVER
        tokens = parts + REPLIES + parts + RESERVE + parts * np.where(is_possible, share, 0)
        return np.where(is_possible, tokens, NEVER).astype(np.int32)

    @cached_property
    def ample_tokens(self) -> int:
        """The balance from which no call that the length of the segment allows lacks tokens."""
        return int(self.least_tokens[self.least_tokens != NEVER].max(initial=0))

    @cached_property
    def codes_by_segment(self) -> NDArray[np.intp]:
        """Legality code by length of the segment and balance in tokens, before the other masks.

        The entry of length l and balance b is at l * (ample_tokens + 1) + min(b, ample_tokens).
        """
        codes = np.tile(self.answerable[:, None], self.ample_tokens + 1)
        least = self.least_tokens.reshape(-1, self.width + 1, 1)
        for kind in range(len(self.task.calls)):
            codes += (np.arange(self.ample_tokens + 1) >= least[kind]) * (2 << kind)
        return codes.reshape(-1)

    def column(self, kind: Any, length: Any) -> Any:
        """Return the column of the tables above for a kind of call and a length of the segment; arrays broadcast."""
        return kind * (self.width + 1) + length

    @cached_property
    def legal_table(self) -> NDArray[np.bool_]:
        """Action masks by legality code, shape (2 ** (1 + kinds), num_actions).

        Bit 0 of a code makes answers legal, bit 1 + k makes calls of kind k legal. Code 0 leaves only WAIT.
        """
        num_kinds = len(self.task.calls)
        table = np.zeros((1 << (1 + num_kinds), self.num_actions), bool)
        for code in range(len(table)):
            table[code, FIRST_ANSWER : self.first_call] = code & 1
            table[code, self.first_call :] = code >> (1 + self.action_kinds[self.first_call :]) & 1
        table[0, WAIT] = True
        return table

    @cached_property
    def is_legal(self) -> NDArray[np.bool_]:
        """`legal_table` with a last column for all numbers that are no action; shape (codes * (num_actions + 1),)."""
        return np.pad(self.legal_table, ((0, 0), (0, 1))).reshape(-1)

    @cached_property
    def answerable(self) -> NDArray[np.intp]:
        """1 where a segment may be answered, else 0, by its length; shape (width + 1,)."""
        return np.array([bool(self.task.answerable(length)) for length in range(self.width + 1)], np.intp)

    @cached_property
    def reliability(self) -> NDArray[np.float64] | None:
        """Probability that an answer is kept, by length of the segment, shape (width + 1,); `None` if all are 1."""
        table = np.array([self.task.reliability(length) for length in range(self.width + 1)])
        return table if (table < 1).any() else None

    # Observations

    @cached_property
    def observed_limits(self) -> tuple[int | None, ...]:
        """Limits that scale the amounts of an observation, as `vectors.OBSERVATION_FEATURES`; `None` is unlimited."""
        return self.max_depth, self.max_turns, self.total_tokens, self.generated_tokens, self.max_clones, self.width

    @cached_property
    def amount_scales(self) -> NDArray[np.float32]:
        """Factors from amounts to entries of an observation, 1 without a limit; shape (amounts, 1)."""
        scales = [1.0 if limit is None else 1 / max(limit, 1) for limit in self.observed_limits]
        return np.array(scales, np.float32)[:, None]

    # One-hot encoding is a table lookup. Several places of a segment, a chunk, are read as the digits of one number, a
    # word, so that one lookup encodes all of them.

    @cached_property
    def chunk(self) -> int:
        """Places of a segment that one lookup encodes, as many as `MAX_WORDS` allows."""
        return max(1, min(self.visible_places, int(np.log(MAX_WORDS) / np.log(self.missing + 1))))

    @cached_property
    def chunk_starts(self) -> NDArray[np.intp]:
        """The first place of each chunk; shape (chunks, 1)."""
        return np.arange(0, self.visible_places, self.chunk)[:, None]

    @cached_property
    def chunk_first_rows(self) -> NDArray[np.intp]:
        """First row of `one_hot_words` for each chunk, by length of the segment; shape (chunks, width + 1)."""
        held = np.clip(np.arange(self.width + 1) - self.chunk_starts, 0, self.chunk).astype(np.intp)
        rows: NDArray[np.intp] = held * (self.missing + 1) ** self.chunk
        return rows

    @cached_property
    def one_hot_words(self) -> NDArray[np.float32]:
        """One-hot encodings of the places of a chunk, in row `held places * number of words + word`.

        A `missing` symbol and a place beyond the end of the segment are all zeros.
        """
        one_hot = np.eye(self.missing + 1, self.task.num_symbols, dtype=np.float32)
        words = np.indices([self.missing + 1] * self.chunk).reshape(self.chunk, -1)
        is_held = np.arange(self.chunk)[:, None] < np.arange(self.chunk + 1)
        places = []
        for symbols, mask in zip(words, is_held, strict=True):
            places.append(one_hot[symbols] * mask[:, None, None])
        return np.concatenate(places, axis=2).reshape(-1, self.chunk * self.task.num_symbols)


def make_rules(
    task: SymbolicTask | str = "chain", task_options: Mapping[str, Any] | None = None, **limits: Any
) -> SymbolicRules:
    """Make rules from a task, or its name and options, and limits.

    Args:
        task: a task, its built-in name, or `package.module:Class`.
        task_options: options of a task given by name.
        limits: fields of `SymbolicRules`. The default of `max_depth`, `None`, is 1 where only the root of the task
            has something to delegate, else 2.

    Raises:
        ConfigError: an argument is unknown or impossible.
    """
    known = [limit.name for limit in fields(SymbolicRules) if limit.name != "task"]
    for name in limits:
        if name not in known:
            raise ConfigError(
                f"unknown argument {name!r}.{did_you_mean(name, known)} The limits are {', '.join(known)}"
            )
    built_task = make_task(task, task_options)
    if limits.get("max_depth") is None:
        only_root_delegates = built_task.num_facts or isinstance(built_task, ForcedJoinTask)
        limits["max_depth"] = 1 if only_root_delegates else 2
    return SymbolicRules(built_task, **limits)
