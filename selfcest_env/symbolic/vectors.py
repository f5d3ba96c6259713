"""Observations of agents and states of whole games, as numbers in [0, 1]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.state import ANSWERED, READY, UNBORN, WAITING, Index, OpenTurns, State, flatten_agents

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


class ObservationWriter:
    """Writes observations of the agents of one batch.

    Args:
        flat: the live state with one axis for all agents (`flatten_agents`).
        rules: rules of the game.
    """

    def __init__(self, flat: State, rules: SymbolicRules) -> None:
        self._flat = flat
        self._rules = rules
        self._size = observation_size(rules)
        # Room for the words at every cell of every tape; chunks that begin at the last cells reach beyond them.
        num_cells = len(flat.tape)
        symbols = np.zeros(num_cells + rules.chunk - 1, np.int16)
        self._symbols = symbols[:num_cells]
        self._later_symbols = [symbols[digit : digit + num_cells] for digit in range(1, rules.chunk)]
        self._words_at = np.empty(num_cells, np.int16)
        self._base = np.array(rules.missing + 1, np.int16)
        self._unlimited = [i for i, limit in enumerate(rules.observed_limits) if limit is None]

    def build(self, turns: OpenTurns, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Build the observations of all agents; they are all zeros for agents that cannot act.

        Args:
            turns: the turns of the agents that can act.
            out: an array to write into; by default a new one.

        Returns:
            Shape (num_envs, num_agents, observation_size).
        """
        flat = self._flat
        size = self._size
        shape = (len(flat.keys), self._rules.num_agents, size)
        if out is not None and (out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous):
            raise ConfigError(f"out is {out.dtype} {out.shape}; expected contiguous float32 {shape}")
        # Row 0 is all zeros and stands for every agent that cannot act, so one `take` fills the whole array.
        rows = np.empty((1 + len(turns.agents), size), np.float32)
        rows[0] = 0
        self.write(turns, rows[1:])
        row_of_agent = np.zeros(len(flat.status), np.intp)
        row_of_agent[turns.agents] = np.arange(1, len(rows))
        flat_out = None if out is None else out.reshape(-1, size)
        return rows.take(row_of_agent, axis=0, out=flat_out, mode="clip").reshape(shape)

    def build_rows(self, turns: OpenTurns) -> NDArray[np.float32]:
        """Build the observations of agents that can act, one row each, shape (agents, observation_size)."""
        rows = np.empty((len(turns.agents), self._size), np.float32)
        self.write(turns, rows)
        return rows

    def write(self, turns: OpenTurns, rows: NDArray[np.float32]) -> None:
        """Write the observations of agents that can act, one row each.

        An observation concerns its own agent only. A balance without a limit reads 1. A missing reply is a place
        without symbol.

        Args:
            turns: the turns of the agents.
            rows: an array to write into, shape (agents, observation_size).
        """
        rules = self._rules
        columns = np.empty((len(OBSERVATION_FEATURES), len(turns.agents)), np.float32)
        columns[0] = 1
        amounts = columns[1:]  # in the order of `SymbolicRules.observed_limits`
        amounts[0] = turns.depth
        amounts[1] = turns.turns
        amounts[2:5] = turns.balances
        amounts[5] = turns.length
        amounts *= rules.amount_scales
        for index in self._unlimited:
            amounts[index] = 1
        rows[:, : len(columns)] = columns.T
        words = self._look_up_words(turns)
        one_hot = rules.one_hot_words.take(words, axis=0)
        one_hot = one_hot.reshape(len(words), words.shape[1] * one_hot.shape[2])
        # The last chunk may reach beyond the visible places.
        rows[:, len(columns) :] = one_hot[:, : self._size - len(columns)]

    def _look_up_words(self, turns: OpenTurns) -> NDArray[np.intp]:
        """Return the segments of agents as rows of `SymbolicRules.one_hot_words`, shape (agents, chunks)."""
        rules = self._rules
        flat = self._flat
        # Computing the word at every cell of every tape is cheaper than collecting the symbols of every agent.
        self._symbols[:] = flat.tape
        words_at = self._symbols
        for symbols in self._later_symbols:
            words_at = np.multiply(words_at, self._base, out=self._words_at)
            words_at += symbols
        starts = turns.envs * rules.tape_length
        starts += flat.segment_start[turns.agents]
        # A chunk may reach beyond the end of its tape. The symbols read there belong to no segment, and the row chosen
        # below ignores places that are not held.
        words = words_at.take(starts + rules.chunk_starts, mode="clip")
        rows = np.empty((len(starts), len(words)), np.intp)
        np.add(words, rules.chunk_first_rows.take(turns.length, axis=1), out=rows.T)
        return rows


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


def _find_starts(flat: State, agents: Index, rules: SymbolicRules) -> Index:
    """Return the first cell of each segment on the tapes of all environments."""
    starts: Index = agents // rules.num_agents * rules.tape_length + flat.segment_start.take(agents).astype(np.intp)
    return starts
