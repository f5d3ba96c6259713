"""`shapley`: Shapley values of a cooperative game per call, whose players are the clones of the call.

    clone c, all its decisions:  A = mean over orders of v(S + c) - v(S),   S = siblings before c
    root:                        A = R - mean R of the group's other episodes

Source: Shapley 1953; sampled orders, Castro et al. 2009. v(S) is the team's return when only the siblings in S exist.
The other siblings are removed at their birth; `counterfactual.py` defines what is kept and what is sampled again. v of
all siblings is the return of the episode itself. Each coalition is played once per call, so the credits of a call add
up to R minus the return without any of its clones.

The credit is biased for the team's return, because the marginal contribution to a smaller coalition is no baseline. A
call of one clone is `difference` with one sample. `docs/learners.md` lists what each learner needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfcest_baselines.counterfactual import (
    Index,
    Recording,
    ReplayCost,
    check_replayable,
    record_episodes,
    replay_without,
)
from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork, clipped_surrogate, compute_entropy, gather_actions, step_optimizer
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Act, leave_one_out
from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count

MAX_PLAYERS = 16  # a call of p clones has 2^p coalitions


@stored_as("Shapley", orders="orders")
@dataclass(frozen=True)
class ShapleyLearner(PolicyGradientLearner):
    """Policy gradient with sampled Shapley values.

    Attributes:
        orders: sampled permutations per call. A call with no more permutations than that uses each of them once.
    """

    orders: Count = 2

    least_group: ClassVar[int] = 2
    replays: ClassVar[bool] = True

    def check_games(self, games: Games) -> None:
        super().check_games(games)
        max_parts = check_replayable(games).rules.max_parts
        if max_parts > MAX_PLAYERS:
            raise ConfigError(
                f"a call can start {max_parts} clones; expected at most {MAX_PLAYERS}, because shapley stores a value "
                f"for each of 2^{max_parts} coalitions: use difference or diff_loo"
            )

    def train_actor(self, games: Games, actor: ActorNetwork) -> Iterator[Progress]:
        optimizer = torch.optim.Adam(actor.parameters(), self.learning_rate)
        rng = np.random.default_rng(actor.generator.initial_seed())  # of the orders, seeded by the run's seed
        decisions = 0
        episodes = 0
        while True:
            # Rollout: one episode of each game, with a snapshot of each moment; rows are decisions.
            actor.floor = self.exploration_rate(decisions)
            recording = record_episodes(games, actor.sample)
            rollout = recording.rollout

            # Credit.
            advantages, cost = self.advantages(recording, actor.sample, rng)  # [B]
            self.check_advantages(advantages, rollout)

            # Loss and update.
            with torch.no_grad():
                old_log_prob = gather_actions(actor(rollout.observations, rollout.masks), rollout.actions)  # [B]
            for rows in self.minibatches(rollout.learnable_rows, actor.generator):
                log_probs = actor(rollout.observations[rows], rollout.masks[rows])  # [b, A]
                new_log_prob = gather_actions(log_probs, rollout.actions[rows])  # [b]
                if self.loss == "one_pass":
                    surrogate = advantages[rows] * new_log_prob
                else:
                    surrogate = clipped_surrogate(new_log_prob, old_log_prob[rows], advantages[rows], self.clip)
                objective = (surrogate + self.entropy * compute_entropy(log_probs)).mean()
                step_optimizer(optimizer, -objective * self.objective_scale(rollout), self.max_gradient)

            decisions += rollout.decisions + cost.decisions
            episodes += self.episodes + cost.replays
            yield Progress(decisions, episodes, actor)

    def advantages(self, recording: Recording, act: Act, rng: np.random.Generator) -> tuple[Tensor, ReplayCost]:
        """Return the advantage of each decision of the batch, [B], and the cost of the replays.

        Args:
            recording: episodes of the batch, whose decisions are in `recording.rollout`.
            act: samples the actions in replays.
            rng: samples the orders.
        """
        rollout = recording.rollout
        credit, cost = compute_shapley_credit(recording, act, self.orders, rng)  # [G, N]
        credit[:, 0] = leave_one_out(rollout.returns, self.group_size)
        return credit[rollout.game, rollout.agent], cost


def compute_shapley_credit(
    recording: Recording, act: Act, num_orders: int, rng: np.random.Generator
) -> tuple[Tensor, ReplayCost]:
    """Return the Shapley value of each clone, [G, N], 0 for roots and agents not born, and the cost of the replays.

    Args:
        recording: the recorded episodes.
        act: samples actions in replays.
        num_orders: sampled permutations per call.
        rng: samples the orders.
    """
    credit = torch.zeros(recording.moments[0].status.shape)
    cost = ReplayCost()
    for game, clones, cycle in iter_calls_by_size(recording):  # K calls, each of `size` clones
        size = clones.shape[1]
        orders = sample_orders(len(game), size, num_orders, rng)  # [K, orders, size]
        # The last coalition, all siblings, is the episode itself and needs no replay.
        call, coalition = np.nonzero(needed_coalitions(orders)[:, :-1])  # one entry per replay, [R]
        # Bit p of a coalition is set if player p, the p-th clone of the call, exists.
        is_absent = (coalition[:, None] >> np.arange(size) & 1) == 0  # [R, size]
        replay, player = np.nonzero(is_absent)
        absent = np.zeros((len(call), credit.shape[1]), bool)  # [R, N]
        absent[replay, clones[call[replay], player]] = True
        replayed = replay_without(recording, game[call], cycle[call], absent, act)
        # A coalition that no order needs is nan, so a wrong read would be seen.
        values = torch.full((len(game), 1 << size), float("nan"))
        values[call, coalition] = replayed.returns
        values[:, -1] = recording.rollout.returns[game]
        credit[game[:, None], clones] = shapley_values(values, torch.from_numpy(orders))
        cost += replayed.cost
    return credit, cost


def iter_calls_by_size(recording: Recording) -> Iterator[tuple[Index, Index, Index]]:
    """Yield per size of a call the K calls of that size: games [K], clones [K, size] and moments of birth [K]."""
    births = recording.births()
    parent = recording.moments[-1].parent[births.game, births.agent]
    call_keys = np.stack([births.cycle, births.game, parent], axis=1)  # siblings share a key
    _, call_index, sizes = np.unique(call_keys, axis=0, return_inverse=True, return_counts=True)
    call = call_index.reshape(-1)
    order = np.argsort(call, kind="stable")
    size_of = sizes[call][order]
    for size in np.unique(sizes):
        rows = order[size_of == size].reshape(-1, size)
        yield births.game[rows[:, 0]], births.agent[rows], births.cycle[rows[:, 0]]


def sample_orders(num_calls: int, size: int, num_orders: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return orders of the players of each call, [calls, orders, size]."""
    if math.factorial(size) <= num_orders:
        return np.tile(np.array(list(itertools.permutations(range(size)))), (num_calls, 1, 1))
    return rng.permuted(np.broadcast_to(np.arange(size), (num_calls, num_orders, size)), axis=-1)


def needed_coalitions(orders: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which coalitions are a prefix of some order, [calls, orders, size] to [calls, 2 ** size].

    A coalition is a set of players whose bits are those of its index.
    """
    num_calls, _, size = orders.shape
    is_needed = np.zeros((num_calls, 1 << size), bool)
    is_needed[:, 0] = True
    prefixes = np.cumsum(1 << orders, axis=-1).reshape(num_calls, -1)
    np.put_along_axis(is_needed, prefixes, True, axis=1)
    return is_needed


def shapley_values(values: Tensor, orders: Tensor) -> Tensor:
    """Return the mean marginal contribution of each player, [K, size].

    Args:
        values: [K, 2 ** size] value of each coalition; entries that no order needs are never read.
        orders: [K, orders, size] orders of the players.
    """
    after = (1 << orders).cumsum(-1)  # the coalition with the player
    before = after - (1 << orders)  # the coalition without it
    marginals = (values.gather(1, after.flatten(1)) - values.gather(1, before.flatten(1))).view_as(orders)
    by_player = torch.zeros(orders.shape, dtype=values.dtype).scatter_(2, orders, marginals)
    return by_player.mean(1)
