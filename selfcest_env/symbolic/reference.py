"""Reference policies of the symbolic game, optimal and random, and their evaluation."""

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

# The decision at a node of a plan. From 0 on it is a kind of call.
_WAITS = -2
_ANSWERS = -1


class BatchPolicy(Protocol):
    """A policy that acts for all agents of a batch."""

    def actions(self, kernel: BatchDelegation) -> NDArray[np.integer[Any]]:
        """Return the actions, shape (num_envs, num_agents); entries of agents that cannot act are ignored."""
        ...


class RandomPolicy:
    """Draws uniformly among legal actions."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def actions(self, kernel: BatchDelegation) -> NDArray[np.int64]:
        return kernel.sample_actions(self._rng)


class OptimalPolicy:
    """Plays the best plans (`optimal_return`), and answers with the right sums.

    In `cells` an answer is the sum of the visible pair. The policy has no memory: an agent's place in its plan follows
    from its own turns, its parent's turns, and its part. It must play an episode from the beginning.
    """

    def __init__(self, rules: SymbolicRules) -> None:
        self.rules = rules
        self.optimum = optimal_return(rules)
        # All plans are nodes of one table. Node 0 is that of agents without a plan.
        self._decision = [_WAITS]
        self._then = [0]
        self._clones = [[0] * rules.max_parts]
        root_nodes = {length: self._add_nodes(plan) for length, plan in self.optimum.plans.items()}
        self._root_nodes = np.array([root_nodes.get(length, 0) for length in range(rules.task.max_length + 1)])
        self._decision_table = np.array(self._decision)
        self._then_table = np.array(self._then)
        self._clone_table = np.array(self._clones)

    def _add_nodes(self, plan: Plan | None) -> int:
        """Add the nodes of a plan and of all plans below it, and return the first one."""
        if plan is None:
            return 0
        node = len(self._decision)
        self._decision.append(_ANSWERS if plan.call is None else plan.call)
        self._then.append(0)
        self._clones.append([0] * self.rules.max_parts)
        self._then[node] = self._add_nodes(plan.then)
        for part, clone_plan in enumerate(plan.clones):
            self._clones[node][part] = self._add_nodes(clone_plan)
        return node

    def actions(self, kernel: BatchDelegation) -> NDArray[np.int64]:
        rules = self.rules
        decisions = self._decision_table[self._find_nodes(kernel)]
        segments = get_segments(kernel.state, rules)
        if isinstance(rules.task, Lookup):
            # The root asks for the key that it holds. Without calls left it guesses the first value.
            symbols = segments[..., 0]
            is_root = np.arange(kernel.num_agents) == 0
            is_value = symbols >= rules.task.keys
            answer = FIRST_ANSWER + np.where(is_value | ~is_root, symbols, rules.task.keys)
            return np.where((decisions >= 0) & ~is_value, rules.first_call + symbols, answer).astype(np.int64)
        # The action of each decision, from _WAITS on. Without facts each kind of call is one action.
        action_of = np.array([WAIT, FIRST_ANSWER, *range(rules.first_call, rules.num_actions)])
        sums = (segments * (segments < rules.missing)).sum(axis=-1) % rules.task.num_answers
        actions: NDArray[np.int64] = action_of[decisions - _WAITS] + sums * (decisions == _ANSWERS)
        return actions

    def _find_nodes(self, kernel: BatchDelegation) -> Index:
        """Return each agent's node, shape (num_envs, num_agents); 0 for agents that have ended."""
        state = kernel.state
        alive = (state.status == READY) | (state.status == WAITING)
        first_nodes = np.zeros(state.status.shape, np.intp)
        first_nodes[:, 0] = self._root_nodes[kernel.problems().lengths]
        for depth in range(1, self.rules.max_depth + 1):
            env, agent = np.nonzero(alive & (state.depth == depth))
            parent = state.parent[env, agent]
            # The parent waits for the call that started this clone, so its segment is where the replies will stand.
            part = state.reply_cell[env, agent] - state.segment_start[env, parent]
            call_node = self._skip_turns(first_nodes[env, parent], state.turns[env, parent] - 1)
            first_nodes[env, agent] = self._clone_table[call_node, part]
        return np.where(alive, self._skip_turns(first_nodes, state.turns), 0)

    def _skip_turns(self, nodes: Index, turns: NDArray[np.int16]) -> Index:
        """Return the nodes that follow after some turns of each agent."""
        for turn in range(self.rules.max_turns):
            nodes = np.where(turns > turn, self._then_table[nodes], nodes)
        return nodes


@dataclass(frozen=True)
class PolicyEvaluation:
    """Means over episodes.

    Attributes:
        team_return: mean team return.
        standard_error: standard error of the team return; infinite for one episode.
        success: mean score of the answers.
        tokens: mean tokens of the whole tree.
    """

    team_return: float
    standard_error: float
    success: float
    tokens: float


def evaluate_policy(policy: BatchPolicy, rules: SymbolicRules, episodes: int, seed: int = 0) -> PolicyEvaluation:
    """Evaluate a policy on the first `episodes` problems of a seed."""
    kernel = BatchDelegation(rules, episodes)
    kernel.reset(seed)
    while not kernel.done.all():
        kernel.step(policy.actions(kernel))
    returns = kernel.state.team_return
    standard_error = returns.std(ddof=1) / np.sqrt(episodes) if episodes > 1 else float("inf")
    return PolicyEvaluation(
        team_return=float(returns.mean()),
        standard_error=float(standard_error),
        success=float(kernel.scores.mean()),
        tokens=float(kernel.total_tokens().mean()),
    )
