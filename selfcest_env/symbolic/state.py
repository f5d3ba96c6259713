"""The state of a batch of symbolic episodes, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.streams import Keys
from selfcest_env.types import ROOT, AgentId

Index = NDArray[np.intp]

# Statuses of an agent. ANSWERED and all later ones are final, and the code compares them by `>=`.
UNBORN, READY, WAITING, ANSWERED, OUT_OF_TURNS, OUT_OF_TOKENS, ABSENT = range(7)
ROOT_PARENT = -1


@dataclass
class State:
    """All that changes while a batch is played. The first axis is the environment, the second, if any, the agent.

    Symbols stand on one tape per environment: a cell for the root's answer, the root's segment, the facts, then a cell
    per reply for every call. A segment is a stretch of the tape, so symbols are never copied. Values of agents that are
    `UNBORN` have no meaning. A balance counts all that an agent can still use: free, or reserved for replies.
    """

    keys: Keys  # of the environment
    episode: NDArray[np.int64]  # episodes started
    cycle: NDArray[np.int32]  # joint steps of this episode
    target: NDArray[np.int8]  # the right answer; where joins are forced the right replies, (envs, parts)
    tape: NDArray[np.int8]  # (envs, tape_length)
    tape_end: NDArray[np.int32]
    num_born: NDArray[np.int32]  # agents, the root included
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    team_return: NDArray[np.float64]  # 0 until the episode terminates
    status: NDArray[np.int8]
    parent: NDArray[np.int16]
    birth_index: NDArray[np.int16]  # number among its parent's clones
    depth: NDArray[np.int16]
    turns: NDArray[np.int16]  # turns played
    granted: NDArray[np.int32]  # tokens at birth
    tokens_left: NDArray[np.int32]
    generated_left: NDArray[np.int32]
    clones_left: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32]  # of its own context
    generated_tokens: NDArray[np.int32]
    segment_start: NDArray[np.int16]  # first cell of its segment on the tape
    segment_length: NDArray[np.int16]
    reply_cell: NDArray[np.int16]  # cell of the tape that takes its reply
    first_clone: NDArray[np.int16]  # seat of the first clone of the call in flight
    call_clones: NDArray[np.int16]  # clones of the call in flight
    num_clones: NDArray[np.int16]  # clones started so far
    illegal: NDArray[np.int32]  # illegal actions, which were played as WAIT

    def copy(self) -> State:
        return State(**{name: getattr(self, name).copy() for name in _FIELD_NAMES})

    def take(self, envs: Index) -> State:
        """Copy the states of some environments, in the given order; an index may be repeated."""
        return State(**{name: getattr(self, name)[envs] for name in _FIELD_NAMES})

    @staticmethod
    def stack(states: Sequence[State]) -> State:
        """Concatenate several batches along the axis of environments."""
        columns = {}
        for name in _FIELD_NAMES:
            columns[name] = np.concatenate([getattr(state, name) for state in states])
        return State(**columns)


class OpenTurns(NamedTuple):
    """What the turns of R agents depend on; legality codes and observations are functions of it and of the tapes."""

    agents: Index  # [R], flat
    envs: Index  # [R]
    codes: Index  # [R], legality codes (`SymbolicRules.legal_table`)
    depth: NDArray[np.int16]  # [R]
    turns: NDArray[np.int16]  # [R]
    length: Index  # [R], symbols of the segment
    balances: NDArray[np.int32]  # [3, R] tokens, generated tokens and clones that are left

    def seats(self, num_agents: int) -> Index:
        """Return the seats of the agents, [R], in environments of this number of agents."""
        seats: Index = self.agents - self.envs * num_agents
        return seats


_FIELD_NAMES = [item.name for item in fields(State)]
_AGENT_FIELDS = _FIELD_NAMES[_FIELD_NAMES.index("status") :]


def flatten_agents(state: State) -> State:
    """Return a view of the same memory with one axis for the agents of all environments and one for all tapes.

    The transition function then needs one index per agent instead of two.
    """
    return replace(state, **{name: getattr(state, name).reshape(-1) for name in ("tape", *_AGENT_FIELDS)})


def pack_balances(state: State) -> tuple[State, NDArray[np.int32]]:
    """Return a state with its three balances in one array, which can be indexed at once, and this array."""
    balances = np.stack([state.tokens_left, state.generated_left, state.clones_left])
    tokens, generated, clones = balances
    return replace(state, tokens_left=tokens, generated_left=generated, clones_left=clones), balances


def get_agent_ids(state: State) -> dict[int, AgentId]:
    """Return the id of every agent that has been born, by seat; `state` is a batch of one."""
    ids = {0: ROOT}
    for seat in range(1, state.num_born[0]):
        ids[seat] = ids[int(state.parent[0, seat])].child(int(state.birth_index[0, seat]))
    return ids


def make_blank_state(rules: SymbolicRules, envs: int) -> State:
    """Make the state of environments in which no episode has started."""
    agents = (envs, rules.num_agents)
    target = (envs,) if rules.forced_join_task is None else (envs, rules.num_targets)
    # The other values that a root keeps in all episodes are 0.
    parent = np.zeros(agents, np.int16)
    parent[:, 0] = ROOT_PARENT
    # Written out, so that mypy compares every dtype with its annotation. A loop over the annotations would depend on
    # NumPy's version: the run-time value of its type aliases changes.
    return State(
        keys=np.zeros(envs, np.uint64),
        episode=np.zeros(envs, np.int64),
        cycle=np.zeros(envs, np.int32),
        target=np.zeros(target, np.int8),
        tape=np.zeros((envs, rules.tape_length), np.int8),
        tape_end=np.zeros(envs, np.int32),
        num_born=np.zeros(envs, np.int32),
        terminated=np.ones(envs, np.bool_),
        truncated=np.zeros(envs, np.bool_),
        team_return=np.zeros(envs, np.float64),
        status=np.zeros(agents, np.int8),
        parent=parent,
        birth_index=np.zeros(agents, np.int16),
        depth=np.zeros(agents, np.int16),
        turns=np.zeros(agents, np.int16),
        granted=np.zeros(agents, np.int32),
        tokens_left=np.zeros(agents, np.int32),
        generated_left=np.zeros(agents, np.int32),
        clones_left=np.zeros(agents, np.int32),
        prompt_tokens=np.zeros(agents, np.int32),
        generated_tokens=np.zeros(agents, np.int32),
        segment_start=np.zeros(agents, np.int16),
        segment_length=np.zeros(agents, np.int16),
        reply_cell=np.zeros(agents, np.int16),
        first_clone=np.zeros(agents, np.int16),
        call_clones=np.zeros(agents, np.int16),
        num_clones=np.zeros(agents, np.int16),
        illegal=np.zeros(agents, np.int32),
    )
