"""Reference players of the symbolic game, and what they earn: the optimal one and the random one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.optimum import Plan, optimal_return
from selfcest_env.symbolic.rules import FIRST_ANSWER, WAIT, SymbolicRules
from selfcest_env.symbolic.state import READY, WAITING, Index
from selfcest_env.symbolic.tasks import Lookup
from selfcest_env.symbolic.vectors import get_segments

_WAITS, _ANSWERS = -2, -1  # what a node of a plan does; from 0 on it is a kind of call


class BatchPolicy(Protocol):
    """Whoever can play a batch."""

    def actions(self, kernel: BatchDelegation) -> NDArray[np.integer[Any]]:
        """What every agent does next, shape (num_envs, num_agents); entries of those that cannot act mean nothing."""
        ...


class RandomPolicy:
    """Plays uniformly what is legal."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def actions(self, kernel: BatchDelegation) -> NDArray[np.int64]:
        return kernel.sample_actions(self._rng)


class OptimalPolicy:
    """Plays the best plans (`optimal_return`) from the beginning of episodes to their end; every answer is a
    true sum, in `cells` that of what is seen.

    It remembers nothing: where an agent stands in its plan follows from its turns, its parent's, and its part.
    """

    def __init__(self, rules: SymbolicRules) -> None:
        self.rules, self.optimum = rules, optimal_return(rules)
        # All plans as one table; node 0 is that of who has none.
        self._does, self._then, self._clones = [_WAITS], [0], [[0] * rules.max_parts]
        roots = {length: self._enter(plan) for length, plan in self.optimum.plans.items()}
        self._roots = np.array([roots.get(length, 0) for length in range(rules.task.max_length + 1)])
        self._tables = tuple(map(np.array, (self._does, self._then, self._clones)))

    def _enter(self, plan: Plan | None) -> int:
        """The node of a plan, with all below it."""
        if plan is None:
            return 0
        node = len(self._does)
        self._does.append(_ANSWERS if plan.call is None else plan.call)
        self._then.append(0)
        self._clones.append([0] * self.rules.max_parts)
        self._then[node] = self._enter(plan.then)
        self._clones[node][: len(plan.clones)] = map(self._enter, plan.clones)
        return node

    def actions(self, kernel: BatchDelegation) -> NDArray[np.int64]:
        rules, does = self.rules, self._tables[0][self._nodes(kernel)]
        held = get_segments(kernel.state, rules)
        if isinstance(rules.task, Lookup):
            held, roots = held[..., 0], np.arange(kernel.num_agents) == 0
            found = held >= rules.task.keys
            guess = FIRST_ANSWER + np.where(found | ~roots, held, rules.task.keys)
            return np.where((does >= 0) & ~found, rules.first_call + held, guess).astype(np.int64)
        # Which action makes a call of a kind, and first of all what it is to have no plan and to answer.
        first = np.array([WAIT, FIRST_ANSWER, *range(rules.first_call, rules.num_actions)])
        sums = (held * (held < rules.missing)).sum(axis=-1) % rules.task.num_answers
        chosen: NDArray[np.int64] = first[does - _WAITS] + sums * (does == _ANSWERS)
        return chosen

    def _nodes(self, kernel: BatchDelegation) -> Index:
        """Where every agent stands in its plan; 0 for those that have ended."""
        state, (_, _, clones) = kernel.state, self._tables
        alive = (state.status == READY) | (state.status == WAITING)
        first = np.zeros(state.status.shape, np.intp)
        first[:, 0] = self._roots[kernel.problems().lengths]
        for depth in range(1, self.rules.max_depth + 1):
            env, agent = np.nonzero(alive & (state.depth == depth))
            parent = state.parent[env, agent]
            # The parent waits for this very call, so its segment is where the replies will stand.
            part = state.reply_cell[env, agent] - state.segment_start[env, parent]
            call = self._after(first[env, parent], state.turns[env, parent] - 1)
            first[env, agent] = clones[call, part]
        return np.where(alive, self._after(first, state.turns), 0)

    def _after(self, node: Index, turns: NDArray[np.int16]) -> Index:
        """The node of an agent's plan that comes after some turns."""
        for turn in range(self.rules.max_turns):
            node = np.where(turns > turn, self._tables[1][node], node)
        return node


@dataclass(frozen=True)
class PolicyEvaluation:
    """Means over episodes; `standard_error` is that of the team return, `success` what answers are worth."""

    team_return: float
    standard_error: float
    success: float
    tokens: float


def evaluate_policy(policy: BatchPolicy, rules: SymbolicRules, episodes: int, seed: int = 0) -> PolicyEvaluation:
    """What a policy earns in the first `episodes` problems of a seed."""
    kernel = BatchDelegation(rules, episodes)
    kernel.reset(seed)
    while not kernel.done.all():
        kernel.step(policy.actions(kernel))
    returns, tokens = kernel.state.team_return, kernel.total_tokens()
    error = returns.std(ddof=1) / np.sqrt(episodes) if episodes > 1 else float("inf")
    return PolicyEvaluation(float(returns.mean()), float(error), float(kernel.scores.mean()), float(tokens.mean()))
