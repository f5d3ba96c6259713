"""All that changes while a batch of symbolic episodes is played, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.streams import Keys
from selfcest_env.types import ROOT, AgentId

Index = NDArray[np.intp]

# Statuses of an agent. From ANSWERED on it has ended.
UNBORN, READY, WAITING, ANSWERED, OUT_OF_TURNS, OUT_OF_TOKENS, ABSENT = range(7)
ROOT_PARENT = -1


@dataclass
class State:
    """All that changes while a batch is played. The first axis is the environment, the second, if any, the agent.

    Symbols stand on one tape per environment: a cell for the root's answer, the root's segment, the facts, then for
    every call a cell per reply. A segment is a stretch of the tape, so nothing is ever copied. Values of those who are
    `UNBORN` mean nothing. Balances are what can still be used: free, or reserved for replies.
    """

    keys: Keys  # of the environment
    episode: NDArray[np.int64]  # episodes started
    cycle: NDArray[np.int32]  # joint steps of this episode
    target: NDArray[np.int8]  # the right answer; where joins are forced (envs, parts), the right replies
    tape: NDArray[np.int8]  # (envs, tape_length)
    tape_end: NDArray[np.int32]
    num_born: NDArray[np.int32]  # agents, the root included
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    team_return: NDArray[np.float64]  # 0 until the episode terminates
    status: NDArray[np.int8]
    parent: NDArray[np.int16]
    birth_index: NDArray[np.int16]  # which of its parent's clones it is
    depth: NDArray[np.int16]
    turns: NDArray[np.int16]  # played
    granted: NDArray[np.int32]  # tokens, at birth
    tokens_left: NDArray[np.int32]
    generated_left: NDArray[np.int32]
    clones_left: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32]  # of its own context
    generated_tokens: NDArray[np.int32]
    segment_start: NDArray[np.int16]  # of its segment, on the tape
    segment_length: NDArray[np.int16]
    reply_cell: NDArray[np.int16]  # where its reply goes
    first_clone: NDArray[np.int16]  # of the call in flight
    call_clones: NDArray[np.int16]
    num_clones: NDArray[np.int16]  # started so far
    illegal: NDArray[np.int32]  # actions taken for WAIT

    def copy(self) -> State:
        return State(**{name: getattr(self, name).copy() for name in _NAMES})

    def take(self, envs: Index) -> State:
        """The states of some environments, in the order given; an index may be repeated."""
        return State(**{name: getattr(self, name)[envs] for name in _NAMES})

    @staticmethod
    def stack(states: Sequence[State]) -> State:
        """One batch of several."""
        return State(**{name: np.concatenate([getattr(state, name) for state in states]) for name in _NAMES})


_NAMES = [item.name for item in fields(State)]
_PER_AGENT = _NAMES[_NAMES.index("status") :]


def flatten_agents(state: State) -> State:
    """The same memory with one axis for all agents of all environments, and one for all tapes: one index, not two."""
    return replace(state, **{name: getattr(state, name).reshape(-1) for name in ("tape", *_PER_AGENT)})


def get_agent_ids(state: State) -> dict[int, AgentId]:
    """The name of every agent that has been born, by seat; `state` is a batch of one."""
    ids = {0: ROOT}
    for seat in range(1, state.num_born[0]):
        ids[seat] = ids[int(state.parent[0, seat])].child(int(state.birth_index[0, seat]))
    return ids


def make_blank_state(rules: SymbolicRules, envs: int) -> State:
    """Environments in which no episode has been started."""
    agents = (envs, rules.num_agents)
    target = (envs,) if rules.forced_join_task is None else (envs, rules.num_targets)
    # Written out, so that mypy compares every dtype with its annotation: what a type alias of NumPy holds at run time
    # changes with NumPy's version.
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
        parent=np.zeros(agents, np.int16),
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
