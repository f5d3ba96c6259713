"""`shapley`: one cooperative game per call, whose players are its clones.

    clone c, all its decisions:  A = mean over orders of v(S + c) - v(S),   S = siblings before c
    root:                        A = R - mean R of the group's others

Source: Shapley 1953; sampled orders, Castro et al. 2009. v(S) is the team's return when only the siblings in S are
there: the others are taken out when they are born, what does not descend from them is kept and the rest is sampled anew
(`counterfactual`). v of all siblings is the factual return. A coalition is played once per call, so that the credit of
a call adds up to R less the return without any of its clones.
Assumes snapshots, games that are never cut, and groups of at least two. Biased for the team's return: the marginal over
S asks what c brings to coalitions that were not played. It is no baseline.
Degenerate cases: a call of one clone is `difference` with one sample; with no more permutations than `orders` all are
used; an episode without clones costs no replay.
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

from selfcest_baselines.counterfactual import Cost, Index, Recording, play_without
from selfcest_baselines.credit.base import Assign, Batch, Credit, Credited, Start, per_agent
from selfcest_baselines.games import KernelGames
from selfcest_baselines.rollout import Act
from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count

MAX_PLAYERS = 16


@stored_as("Shapley", orders="orders")
@dataclass(frozen=True)
class Shapley(Credit):
    """Options: `orders` sampled per call; where there are no more permutations than that, each is used once."""

    least_group: ClassVar[int] = 2
    replays: ClassVar[bool] = True
    orders: Count = 2

    def start(self, start: Start) -> Assign:
        assert isinstance(start.games, KernelGames)  # as for every credit with replays
        if (parts := start.games.rules.max_parts) > MAX_PLAYERS:
            raise ConfigError(
                f"a call can bring {parts} clones; shapley keeps a value for all 2^{parts} coalitions; expected "
                f"at most {MAX_PLAYERS}: take difference or diff_loo"
            )
        rng = np.random.default_rng(start.generator.initial_seed())

        def assign(batch: Batch) -> Credited:
            assert batch.recording is not None
            return per_agent(batch, *shapley_credit(batch.recording, batch.actor.sample, self.orders, rng))

        return assign


def shapley_credit(recording: Recording, act: Act, orders: int, rng: np.random.Generator) -> tuple[Tensor, Cost]:
    """Credit of every clone [G, N], 0 for roots and the unborn; and what the replays cost."""
    credit = torch.zeros(recording.moments[0].status.shape)
    cost = Cost()
    for game, clones, cycle in calls(recording):
        size = clones.shape[1]
        order = sampled_orders(len(game), size, orders, rng)
        call, coalition = np.nonzero(needed(order)[:, :-1])  # the last one, all of them, is what was played
        absent = np.zeros((len(call), credit.shape[1]), bool)
        replay, player = np.nonzero(~(coalition[:, None] >> np.arange(size) & 1).astype(bool))
        absent[replay, clones[call[replay], player]] = True
        replayed = play_without(recording, game[call], cycle[call], absent, act)
        values = torch.full((len(game), 1 << size), float("nan"))
        values[call, coalition] = replayed.returns
        values[:, -1] = recording.rollout.returns[game]
        credit[game[:, None], clones] = shapley_values(values, torch.from_numpy(order))
        cost += replayed.cost
    return credit, cost


def calls(recording: Recording) -> Iterator[tuple[Index, Index, Index]]:
    """Calls by how many clones they brought: their games [K], clones [K, size], and moments of birth [K]."""
    births = recording.births()
    parent = recording.moments[-1].parent[births.game, births.agent]
    whose = np.stack([births.cycle, births.game, parent], axis=1)
    _, call, sizes = np.unique(whose, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(call.reshape(-1), kind="stable")
    size_of = sizes[call.reshape(-1)][order]
    for size in np.unique(sizes):
        rows = order[size_of == size].reshape(-1, size)
        yield births.game[rows[:, 0]], births.agent[rows], births.cycle[rows[:, 0]]


def sampled_orders(calls: int, size: int, orders: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Orders of the players of every call, [calls, orders, size]."""
    if math.factorial(size) <= orders:
        return np.tile(np.array(list(itertools.permutations(range(size)))), (calls, 1, 1))
    return rng.permuted(np.broadcast_to(np.arange(size), (calls, orders, size)), axis=-1)


def needed(order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which coalitions, as bit sets of players, come first in some order: [calls, 2 ** size]."""
    calls, _, size = order.shape
    table = np.zeros((calls, 1 << size), bool)
    table[:, 0] = True
    np.put_along_axis(table, np.cumsum(1 << order, axis=-1).reshape(calls, -1), True, axis=1)
    return table


def shapley_values(values: Tensor, order: Tensor) -> Tensor:
    """Mean marginal contribution of every player.

    Args:
        values: of every coalition as a bit set of players, [K, 2 ** size]; those that no order needs are never read.
        order: [K, orders, size].
    """
    after = (1 << order).cumsum(-1)
    before = after - (1 << order)
    calls, orders, size = order.shape
    marginals = (values.gather(1, after.flatten(1)) - values.gather(1, before.flatten(1))).view_as(order)
    total = torch.zeros(calls, orders, size, dtype=values.dtype).scatter_(2, order, marginals)
    return total.mean(1)
