"""The game as numbers in [0, 1]: what one agent sees, and the whole state for centralised critics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.state import ANSWERED, READY, UNBORN, WAITING, State, flatten_agents

# The first entries of an observation, in order; then one entry per symbol for each place of the segment.
OBSERVATION_FEATURES = (
    "can_act",
    "depth",  # of max_depth
    "turns",  # played, of max_turns
    "tokens_left",  # of total_tokens
    "generated_left",  # of generated_tokens
    "clones_left",  # it may still start, of max_clones
    "length",  # of its segment, of the longest
)
GLOBAL_FEATURES = ("over", "spent", "clones")  # then the right answer and the facts, one entry per symbol
AGENT_FEATURES = (
    "born",
    "waiting",
    "ended",
    "answered",
    "parent",
)  # then the observation, then the reply, an entry per symbol


def observation_size(rules: SymbolicRules) -> int:
    return len(OBSERVATION_FEATURES) + rules.places * rules.task.num_symbols


def state_size(rules: SymbolicRules) -> int:
    symbols = rules.task.num_symbols
    seat = len(AGENT_FEATURES) + observation_size(rules) + symbols
    return len(GLOBAL_FEATURES) + (rules.num_targets + rules.task.num_facts) * symbols + rules.num_agents * seat


def observation_names(rules: SymbolicRules) -> tuple[str, ...]:
    """The name of every entry of an observation."""
    places = [f"place_{i}_is_{v}" for i in range(rules.places) for v in range(rules.task.num_symbols)]
    return (*OBSERVATION_FEATURES, *places)


def build_observations(
    flat: State, who: NDArray[np.intp], rules: SymbolicRules, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """One row per agent, shape (num_envs, num_agents, observation_size); zeros for whoever cannot act.

    Args:
        flat: the state with one axis for all agents (`flatten_agents`).
        who: those who can act.
        out: an array to write into; by default a new one.
    """
    size = observation_size(rules)
    shape = (len(flat.keys), rules.num_agents, size)
    if out is not None and (out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous):
        raise ConfigError(f"out is {out.dtype} {out.shape}; expected contiguous float32 {shape}")
    # One row per agent that can act, after a row of zeros for all others.
    rows = np.empty((1 + len(who), size), np.float32)
    rows[0] = 0
    write_observations(flat, who, rules, rows[1:])
    row_of = np.zeros(len(flat.status), np.intp)
    row_of[who] = np.arange(1, len(rows))
    return rows.take(row_of, axis=0, out=None if out is None else out.reshape(-1, size), mode="clip").reshape(shape)


def write_observations(flat: State, who: NDArray[np.intp], rules: SymbolicRules, rows: NDArray[np.float32]) -> None:
    """What agents that can act see, one row each, shape (len(who), observation_size).

    All of it concerns the agent alone. Without a limit what is left reads 1. A missing reply is a place without symbol.

    Args:
        flat: the state with one axis for all agents (`flatten_agents`).
        rows: an array to write into.
    """
    amounts: tuple[NDArray[Any], ...] = (
        flat.depth,
        flat.turns,
        flat.tokens_left,
        flat.generated_left,
        flat.clones_left,
        flat.segment_length,
    )
    columns = np.ones((len(amounts), len(who)), np.float32)
    for column, amount, limit in zip(columns, amounts, rules.observed_limits, strict=True):
        if limit is not None:
            column[:] = amount.take(who)
    columns *= rules.units
    rows[:, 0] = 1
    rows[:, 1 : len(OBSERVATION_FEATURES)] = columns.T
    words = _words(flat, who, rules)
    symbols = rules.one_hot_words.take(words, axis=0).reshape(len(who), words.shape[1] * rules.one_hot_words.shape[1])
    rows[:, len(OBSERVATION_FEATURES) :] = symbols[:, : rows.shape[1] - len(OBSERVATION_FEATURES)]


def get_segments(state: State, rules: SymbolicRules) -> NDArray[np.int8]:
    """The symbols every agent that can act holds, shape (num_envs, num_agents, width); `pad` everywhere else."""
    flat, out = flatten_agents(state), np.full((state.status.size, rules.width), rules.pad, np.int8)
    who = (flat.status == READY).nonzero()[0]
    places = np.arange(rules.width)
    held = flat.tape.take(_begin(flat, who, rules)[:, None] + places, mode="clip")
    out[who] = np.where(places < flat.segment_length.take(who)[:, None], held, rules.pad)
    return out.reshape(*state.status.shape, rules.width)


def get_replies(state: State) -> NDArray[np.int8]:
    """What every agent answered, shape (num_envs, num_agents); means nothing for who did not.

    `missing` of a root whose join was forced: what it handed in is `get_joined_replies`.
    """
    return np.take_along_axis(state.tape, state.reply_cell.astype(np.intp), axis=1)


def get_joined_replies(state: State, rules: SymbolicRules) -> NDArray[np.int8]:
    """The replies that a root has handed in, where joins are forced; shape (num_envs, num_targets)."""
    return np.take_along_axis(state.tape, state.segment_start[:, :1] + np.arange(rules.num_targets), axis=1)


def get_answer(state: State, rules: SymbolicRules, seat: int) -> NDArray[np.int8]:
    """The symbols with which an agent has ended: one, or what the root handed in; `state` is a batch of one."""
    return (
        get_joined_replies(state, rules)[0]
        if rules.forced_join_task is not None and seat == 0
        else get_replies(state)[0, seat : seat + 1]
    )


def build_states(state: State, seen: NDArray[np.float32], rules: SymbolicRules) -> NDArray[np.float32]:
    """The whole game, shape (num_envs, state_size).

    A row holds `GLOBAL_FEATURES`, the right answer, the facts, then one block per seat.

    Args:
        seen: the observations of all agents.
    """
    envs, born = len(state.keys), state.status != UNBORN
    one_hot = np.eye(rules.pad + 1, rules.task.num_symbols, dtype=np.float32)  # nothing for `missing` and `pad`
    spent = ((state.prompt_tokens + state.generated_tokens) * born).sum(axis=1)
    share = spent / (spent + 64.0) if rules.total_tokens is None else spent / rules.total_tokens
    clones = (state.num_born - 1) / max(rules.max_clones, 1)
    answered = state.status == ANSWERED
    parents = (state.parent + 1) * born / rules.num_agents  # number of the parent plus one
    flags = np.stack([born, state.status == WAITING, state.status >= ANSWERED, answered, parents], axis=-1)
    given = one_hot.take(np.where(answered, get_replies(state), rules.pad), axis=0)
    seats = np.concatenate([flags, seen, given], axis=-1)
    facts = state.tape[:, 1 + rules.task.max_length : rules.replies_at]
    truth = np.concatenate([state.target.reshape(envs, -1), facts], axis=1)
    over = state.terminated | state.truncated
    parts = [np.stack([over, share, clones], axis=1), one_hot.take(truth, axis=0).reshape(envs, -1)]
    return np.concatenate([*parts, seats.reshape(envs, -1)], axis=1, dtype=np.float32, casting="same_kind")


def _words(flat: State, who: NDArray[np.intp], rules: SymbolicRules) -> NDArray[np.intp]:
    """The segments of some agents as rows of `SymbolicRules.one_hot_words`, shape (agents, chunks)."""
    # The word that begins at every cell of every tape: cheaper than to collect the symbols of every agent.
    tape, base = np.concatenate([flat.tape, flat.tape[: rules.chunk - 1]], dtype=np.int16), np.int16(rules.missing + 1)
    word = tape[: len(flat.tape)].copy()
    for digit in range(1, rules.chunk):
        word *= base
        word += tape[digit : digit + len(word)]
    # A stretch may end where the tape does: what lies beyond is read elsewhere, and not held.
    words = word.take(_begin(flat, who, rules) + rules.chunk_starts, mode="clip").astype(np.intp)
    words += rules.chunk_held.take(flat.segment_length.take(who).astype(np.intp), axis=1)
    return words.T


def _begin(flat: State, who: NDArray[np.intp], rules: SymbolicRules) -> NDArray[np.intp]:
    """Where on the tapes of all environments each segment begins."""
    begin: NDArray[np.intp] = who // rules.num_agents * rules.tape_length + flat.segment_start.take(who).astype(np.intp)
    return begin
