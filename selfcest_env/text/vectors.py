"""The numeric observations, infos and states of the text game. Observations and states are in [0, 1]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from selfcest_env.kernel import Kernel
from selfcest_env.roster import Roster
from selfcest_env.tree import AgentState
from selfcest_env.types import ROOT, AgentId, Status

Vector = NDArray[np.float32]

# The entries of an observation, in order. They concern its own agent only.
OBSERVATION_FEATURES = (
    "can_act",
    "waiting",
    "is_root",
    "depth",
    "turns",
    "can_delegate",
    "can_read",
    "is_last",
    "tokens_left",  # divided by its grant
    "grant",  # divided by total_tokens
    "generated_left",  # divided by generated_tokens
    "clones_left",  # divided by max_clones
    "max_new_tokens",  # divided by turn_tokens
    "context",  # tokens in its context, divided by context_tokens
    "faults",
)
GLOBAL_FEATURES = ("cycle", "spent", "reserved", "clones", "num_reads", "done")
AGENT_FEATURES = ("born", "ready", "waiting", "ended", "answered", "depth", "parent", "turns", "tokens_left", "faults")
STATUS_CODES = {status: code for code, status in enumerate(Status)}
UNBORN = -1
UNLIMITED = -1
HALFWAY_TOKENS = 1024  # without a limit, so many tokens read 0.5


def fraction(value: int, limit: int | None, halfway: int = HALFWAY_TOKENS) -> float:
    """Return `value / limit`; without a limit, a number that rises from 0 towards 1 and is 0.5 at `halfway`."""
    if limit is None:
        return value / (value + halfway)
    return min(1.0, value / limit) if limit else 0.0


def fraction_left(remaining: int | None, limit: int | None) -> float:
    """Return `remaining / limit`; 1 without a limit."""
    return 1.0 if remaining is None else fraction(remaining, limit)


def num_faults(state: AgentState) -> int:
    """Count the turns with a fault, and the objectives that were refused in granted calls."""
    faults = 0
    for turn in state.turns:
        faults += (turn.fault is not None) + len(turn.refused)
    return faults


def observation_vector(kernel: Kernel, agent_id: AgentId | None) -> Vector:
    """Return the `OBSERVATION_FEATURES` of one agent; all zeros for an agent that has not been born."""
    if agent_id is None:
        return np.zeros(len(OBSERVATION_FEATURES), np.float32)
    state = kernel.agents[agent_id]
    limits = kernel.limits
    turn = state.turn
    tokens_left = grant = generated_left = clones_left = 0.0
    # An agent that has ended has no balance: its rest has gone back to its parent.
    if not state.status.is_terminal:
        account = kernel.ledger[agent_id]
        remaining = account.remaining
        granted = account.granted
        tokens_left = fraction_left(remaining.total_tokens, granted.total_tokens)
        grant = fraction_left(granted.total_tokens, limits.total_tokens)
        generated_left = fraction_left(remaining.generated_tokens, limits.generated_tokens)
        clones_left = fraction_left(remaining.clones, limits.max_clones)
    values = (
        turn is not None,
        state.status is Status.WAITING,
        agent_id == ROOT,
        fraction(agent_id.depth, limits.max_depth, 1),
        fraction(len(state.turns), limits.max_turns, 1),
        turn is not None and turn.can_delegate,
        turn is not None and turn.can_read,
        turn is not None and turn.end_status is not None,
        tokens_left,
        grant,
        generated_left,
        clones_left,
        0.0 if turn is None else fraction_left(turn.max_new_tokens, limits.turn_tokens),
        0.0 if limits.context_tokens is None else fraction(state.context_tokens, limits.context_tokens),
        fraction(num_faults(state), None, 1),
    )
    return np.array(values, np.float32)


def agent_info(kernel: Kernel, roster: Roster, agent_id: AgentId | None) -> dict[str, int]:
    """Return the info of one agent, with the same keys at every step; `UNLIMITED` stands for no limit."""
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
    parent = agent_id.parent
    return {
        "can_act": int(state.turn is not None),
        "depth": agent_id.depth,
        "parent": UNBORN if parent is None else roster.index_of(parent),
        "tokens_left": _or_unlimited(_tokens_left(kernel, agent_id)),
        "status": STATUS_CODES[state.status],
        "max_new_tokens": 0 if state.turn is None else _or_unlimited(state.turn.max_new_tokens),
        "faults": num_faults(state),
    }


def state_size(num_seats: int) -> int:
    return len(GLOBAL_FEATURES) + num_seats * len(AGENT_FEATURES)


def state_vector(kernel: Kernel, roster: Roster, cycle: int, max_cycles: int | None) -> Vector:
    """Return the whole tree for centralised critics: `GLOBAL_FEATURES`, then `AGENT_FEATURES` of each possible one."""
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
        values += [0.0] * len(AGENT_FEATURES) if agent_id is None else _agent_features(kernel, roster, agent_id)
    return np.array(values, np.float32)


def _agent_features(kernel: Kernel, roster: Roster, agent_id: AgentId) -> list[float]:
    state = kernel.agents[agent_id]
    limits = kernel.limits
    parent = 0 if agent_id.parent is None else roster.index_of(agent_id.parent)
    tokens = 0.0
    if not state.status.is_terminal:
        tokens = fraction_left(_tokens_left(kernel, agent_id), limits.total_tokens)
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
