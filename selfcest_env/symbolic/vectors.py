"""Observations of agents and states of whole games, as numbers in [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.state import ANSWERED, READY, UNBORN, WAITING, Index, State, flatten_agents

# The first entries of an observation, in order. After them come the visible places of the segment, one-hot.
OBSERVATION_FEATURES = (
    "can_act",
    "depth",  # divided by max_depth
    "turns",  # turns played, divided by max_turns
    "tokens_left",  # divided by total_tokens
    "generated_left",  # divided by generated_tokens
    "clones_left",  # clones that it may still start, divided by max_clones
    "length",  # of its segment, divided by the longest possible one
)
# The first entries of a state. After them come the right answer and the facts, one-hot.
GLOBAL_FEATURES = ("over", "spent", "clones")
# The first entries of each agent in a state. After them come its observation, then its reply, one-hot.
AGENT_FEATURES = ("born", "waiting", "ended", "answered", "parent")

HALFWAY_TOKENS = 64.0  # without a limit on tokens, so many spent tokens read 0.5


def observation_size(rules: SymbolicRules) -> int:
    return len(OBSERVATION_FEATURES) + rules.visible_places * rules.task.num_symbols


def state_size(rules: SymbolicRules) -> int:
    num_symbols = rules.task.num_symbols
    agent_size = len(AGENT_FEATURES) + observation_size(rules) + num_symbols
    problem_size = (rules.num_targets + rules.task.num_facts) * num_symbols
    return len(GLOBAL_FEATURES) + problem_size + rules.num_agents * agent_size


def observation_names(rules: SymbolicRules) -> tuple[str, ...]:
    """Return the name of each entry of an observation."""
    names = list(OBSERVATION_FEATURES)
    for place in range(rules.visible_places):
        names += [f"place_{place}_is_{symbol}" for symbol in range(rules.task.num_symbols)]
    return tuple(names)


def build_observations(
    flat: State, agents: Index, rules: SymbolicRules, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Build the observations of all agents; they are all zeros for agents that cannot act.

    Args:
        flat: the state with one axis for all agents (`flatten_agents`).
        agents: flat indices of the agents that can act.
        rules: rules of the game.
        out: an array to write into; by default a new one.

    Returns:
        Shape (num_envs, num_agents, observation_size).
    """
    size = observation_size(rules)
    shape = (len(flat.keys), rules.num_agents, size)
    if out is not None and (out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous):
        raise ConfigError(f"out is {out.dtype} {out.shape}; expected contiguous float32 {shape}")
    # Row 0 is all zeros and stands for every agent that cannot act, so one `take` fills the whole array.
    rows = np.empty((1 + len(agents), size), np.float32)
    rows[0] = 0
    write_observations(flat, agents, rules, rows[1:])
    row_of_agent = np.zeros(len(flat.status), np.intp)
    row_of_agent[agents] = np.arange(1, len(rows))
    flat_out = None if out is None else out.reshape(-1, size)
    return rows.take(row_of_agent, axis=0, out=flat_out, mode="clip").reshape(shape)


def write_observations(flat: State, agents: Index, rules: SymbolicRules, rows: NDArray[np.float32]) -> None:
    """Write the observations of agents that can act, one row each.

    An observation concerns its own agent only. A balance without a limit reads 1. A missing reply is a place without
    symbol.

    Args:
        flat: the state with one axis for all agents (`flatten_agents`).
        agents: flat indices of the agents.
        rules: rules of the game.
        rows: an array to write into, shape (len(agents), observation_size).
    """
    amounts: tuple[NDArray[Any], ...] = (
        flat.depth,
        flat.turns,
        flat.tokens_left,
        flat.generated_left,
        flat.clones_left,
        flat.segment_length,
    )
    columns = np.ones((len(amounts), len(agents)), np.float32)
    for column, amount, limit in zip(columns, amounts, rules.observed_limits, strict=True):
        if limit is not None:
            column[:] = amount.take(agents)
    columns *= rules.amount_scales
    rows[:, 0] = 1
    rows[:, 1 : len(OBSERVATION_FEATURES)] = columns.T
    words = _look_up_words(flat, agents, rules)
    one_hot = rules.one_hot_words.take(words, axis=0).reshape(
        len(agents), words.shape[1] * rules.one_hot_words.shape[1]
    )
    # The last chunk may reach beyond the visible places.
    rows[:, len(OBSERVATION_FEATURES) :] = one_hot[:, : rows.shape[1] - len(OBSERVATION_FEATURES)]


def get_segments(state: State, rules: SymbolicRules) -> NDArray[np.int8]:
    """Return the segment of each agent that can act, shape (num_envs, num_agents, width); `pad` everywhere else."""
    flat = flatten_agents(state)
    segments = np.full((state.status.size, rules.width), rules.pad, np.int8)
    agents = (flat.status == READY).nonzero()[0]
    places = np.arange(rules.width)
    symbols = flat.tape.take(_find_starts(flat, agents, rules)[:, None] + places, mode="clip")
    is_held = places < flat.segment_length.take(agents)[:, None]
    segments[agents] = np.where(is_held, symbols, rules.pad)
    return segments.reshape(*state.status.shape, rules.width)


def get_replies(state: State) -> NDArray[np.int8]:
    """Return the answer of each agent, shape (num_envs, num_agents); it has no meaning for agents that did not answer.

    After a forced join the root's entry is `missing`, because its answer is `get_joined_replies`.
    """
    return np.take_along_axis(state.tape, state.reply_cell.astype(np.intp), axis=1)


def get_joined_replies(state: State, rules: SymbolicRules) -> NDArray[np.int8]:
    """Return the replies that a forced join made the root's answer, shape (num_envs, num_targets)."""
    return np.take_along_axis(state.tape, state.segment_start[:, :1] + np.arange(rules.num_targets), axis=1)


def get_answer(state: State, rules: SymbolicRules, seat: int) -> NDArray[np.int8]:
    """Return the symbols of an agent's answer: one, or all replies of a forced join; `state` is a batch of one."""
    if rules.forced_join_task is not None and seat == 0:
        answer: NDArray[np.int8] = get_joined_replies(state, rules)[0]
        return answer
    return get_replies(state)[0, seat : seat + 1]


def build_states(state: State, observations: NDArray[np.float32], rules: SymbolicRules) -> NDArray[np.float32]:
    """Build the states of whole games for centralised critics.

    Args:
        state: the batch.
        observations: observations of all agents, shape (num_envs, num_agents, observation_size).
        rules: rules of the game.

    Returns:
        Shape (num_envs, state_size): `GLOBAL_FEATURES`, the right answer, the facts, then one block per agent.
    """
    envs = len(state.keys)
    born = state.status != UNBORN
    one_hot = np.eye(rules.pad + 1, rules.task.num_symbols, dtype=np.float32)  # `missing` and `pad` are all zeros
    spent = ((state.prompt_tokens + state.generated_tokens) * born).sum(axis=1)
    share = spent / (spent + HALFWAY_TOKENS) if rules.total_tokens is None else spent / rules.total_tokens
    clones = (state.num_born - 1) / max(rules.max_clones, 1)
    answered = state.status == ANSWERED
    # The parent's seat plus one, so that 0 is left for the root's missing parent.
    parents = (state.parent + 1) * born / rules.num_agents
    flags = np.stack([born, state.status == WAITING, state.status >= ANSWERED, answered, parents], axis=-1)
    replies = one_hot.take(np.where(answered, get_replies(state), rules.pad), axis=0)
    agent_blocks = np.concatenate([flags, observations, replies], axis=-1)
    facts = state.tape[:, rules.first_fact_cell : rules.first_reply_cell]
    problem = np.concatenate([state.target.reshape(envs, -1), facts], axis=1)
    over = state.terminated | state.truncated
    parts = [
        np.stack([over, share, clones], axis=1),
        one_hot.take(problem, axis=0).reshape(envs, -1),
        agent_blocks.reshape(envs, -1),
    ]
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")


def _look_up_words(flat: State, agents: Index, rules: SymbolicRules) -> NDArray[np.intp]:
    """Return the segments of agents as rows of `SymbolicRules.one_hot_words`, shape (agents, chunks)."""
    # Computing the word at every cell of every tape is cheaper than collecting the symbols of every agent.
    tape = np.concatenate([flat.tape, flat.tape[: rules.chunk - 1]], dtype=np.int16)
    base = np.int16(rules.missing + 1)
    words_at = tape[: len(flat.tape)].copy()
    for digit in range(1, rules.chunk):
        words_at *= base
        words_at += tape[digit : digit + len(words_at)]
    # A chunk may reach beyond the end of its tape. The symbols read there belong to no segment, and the row chosen
    # below ignores places that are not held.
    words = words_at.take(_find_starts(flat, agents, rules) + rules.chunk_starts, mode="clip").astype(np.intp)
    words += rules.chunk_first_rows.take(flat.segment_length.take(agents).astype(np.intp), axis=1)
    return words.T


def _find_starts(flat: State, agents: Index, rules: SymbolicRules) -> Index:
    """Return the first cell of each segment on the tapes of all environments."""
    starts: Index = agents // rules.num_agents * rules.tape_length + flat.segment_start.take(agents).astype(np.intp)
    return starts
