"""The game in numbers: what one agent's observation, its info and the joint state hold. All numbers are in [0, 1]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from selfcest_env.kernel import Kernel
from selfcest_env.roster import Roster
from selfcest_env.tree import AgentState
from selfcest_env.types import ROOT, AgentId, Status

Vector = NDArray[np.float32]

# Names of the entries of an observation, in order. All of them concern the agent alone.
OBSERVATION_FEATURES = (
    "can_act",
    "waiting",
    "is_root",
    "depth",
    "turns",
    "can_delegate",
    "can_read",
    "is_last",
    "tokens_left",  # of its own grant
    "grant",  # its grant, of the episode's total
    "generated_left",  # of the episode's limit
    "clones_left",  # of the episode's limit
    "max_new_tokens",  # of turn_tokens
    "context",  # used, of context_tokens
    "faults",
)
GLOBAL_FEATURES = ("cycle", "spent", "reserved", "clones", "num_reads", "done")
AGENT_FEATURES = ("born", "ready", "waiting", "ended", "answered", "depth", "parent", "turns", "tokens_left", "faults")
STATUS_CODES = {status: code for code, status in enumerate(Status)}
UNBORN = -1
UNLIMITED = -1
HALFWAY = 1024  # an unlimited count of tokens reads 0.5 here


def fraction(value: int, limit: int | None, halfway: int = HALFWAY) -> float:
    """`value` of `limit`; without a limit, a number that rises from 0 towards 1."""
    if limit is None:
        return value / (value + halfway)
    return min(1.0, value / limit) if limit else 0.0


def left(remaining: int | None, limit: int | None) -> float:
    """What remains of `limit`; 1 where nothing limits it."""
    return 1.0 if remaining is None else fraction(remaining, limit)


def num_faults(state: AgentState) -> int:
    """Turns that led to nothing, and objectives that were refused one by one."""
    return sum((turn.fault is not None) + len(turn.refused) for turn in state.turns)


def observation_vector(kernel: Kernel, agent_id: AgentId | None) -> Vector:
    """`OBSERVATION_FEATURES` of one agent; all zeros for an agent that has not been born."""
    if agent_id is None:
        return np.zeros(len(OBSERVATION_FEATURES), np.float32)
    state, limits = kernel.agents[agent_id], kernel.limits
    turn = state.turn
    values = {
        "can_act": turn is not None,
        "waiting": state.status is Status.WAITING,
        "is_root": agent_id == ROOT,
        "depth": fraction(agent_id.depth, limits.max_depth, 1),
        "turns": fraction(len(state.turns), limits.max_turns, 1),
        "context": 0.0 if limits.context_tokens is None else fraction(state.context_tokens, limits.context_tokens),
        "faults": fraction(num_faults(state), None, 1),
    }
    if not state.status.is_terminal:
        account = kernel.ledger[agent_id]
        remaining, granted = account.remaining, account.granted
        values |= {
            "tokens_left": left(remaining.total_tokens, granted.total_tokens),
            "grant": left(granted.total_tokens, limits.total_tokens),
            "generated_left": left(remaining.generated_tokens, limits.generated_tokens),
            "clones_left": left(remaining.clones, limits.max_clones),
        }
    if turn is not None:
        values |= {
            "can_delegate": turn.can_delegate,
            "can_read": turn.can_read,
            "is_last": turn.last is not None,
            "max_new_tokens": left(turn.max_new_tokens, limits.turn_tokens),
        }
    return np.array([float(values.get(name, 0.0)) for name in OBSERVATION_FEATURES], np.float32)


def agent_info(kernel: Kernel, roster: Roster, agent_id: AgentId | None) -> dict[str, int]:
    """Numbers about one agent; the same keys at every step. `UNLIMITED` stands for no limit."""
    if agent_id is None:
        return {
            "can_act": 0,
            "depth": 0,
            "parent": UNBORN,
            "tokens_left": 0,
            "status": UNBORN,
            "max_new_tokens": 0,
            "faults": 0,
        }
    state = kernel.agents[agent_id]
    return {
        "can_act": int(state.turn is not None),
        "depth": agent_id.depth,
        "parent": UNBORN if agent_id.parent is None else roster.index_of(agent_id.parent),
        "tokens_left": _or_unlimited(_tokens_left(kernel, agent_id)),
        "status": STATUS_CODES[state.status],
        "max_new_tokens": 0 if state.turn is None else _or_unlimited(state.turn.max_new_tokens),
        "faults": num_faults(state),
    }


def state_size(num_seats: int) -> int:
    return len(GLOBAL_FEATURES) + num_seats * len(AGENT_FEATURES)


def state_vector(kernel: Kernel, roster: Roster, cycle: int, max_cycles: int | None) -> Vector:
    """The whole tree for centralised critics: `GLOBAL_FEATURES`, then `AGENT_FEATURES` of every possible agent."""
    limits = kernel.limits
    spent, reserved, _ = kernel.ledger.totals()
    values = [
        fraction(cycle, max_cycles, 1),
        fraction(spent.total_tokens or 0, limits.total_tokens),
        fraction(reserved.total_tokens or 0, limits.total_tokens),
        fraction(len(kernel.agents) - 1, limits.max_clones),
        fraction(kernel.num_reads, limits.max_reads, 1),
        float(kernel.done),
    ]
    for index in range(len(roster.names)):
        agent_id = roster.id_at(index)
        values += [0.0] * len(AGENT_FEATURES) if agent_id is None else _seat(kernel, roster, agent_id)
    return np.array(values, np.float32)


def _seat(kernel: Kernel, roster: Roster, agent_id: AgentId) -> list[float]:
    state, limits = kernel.agents[agent_id], kernel.limits
    parent = 0 if agent_id.parent is None else roster.index_of(agent_id.parent)
    tokens = 0.0
    if not state.status.is_terminal:
        tokens = left(_tokens_left(kernel, agent_id), limits.total_tokens)
    return [
        1.0,
        float(state.status is Status.READY),
        float(state.status is Status.WAITING),
        float(state.status.is_terminal),
        float(state.status is Status.ANSWERED),
        fraction(agent_id.depth, limits.max_depth, 1),
        parent / len(roster.names),
        fraction(len(state.turns), limits.max_turns, 1),
        tokens,
        fraction(num_faults(state), None, 1),
    ]


def _tokens_left(kernel: Kernel, agent_id: AgentId) -> int | None:
    if kernel.agents[agent_id].status.is_terminal:
        return 0
    return kernel.ledger[agent_id].remaining.total_tokens


def _or_unlimited(tokens: int | None) -> int:
    return UNLIMITED if tokens is None else tokens
