"""Shapley credit: one cooperative game per call, whose players are its clones.

    clone c, all its decisions:  A = mean over orders of v(S + c) - v(S),   S = siblings before c
    root:                        A = R - mean R of the group's others

v(S) is the team's return when only the siblings in S are there: the others are taken out when they are born, what does
not descend from them is kept and the rest is sampled anew (`counterfactual`). v of all siblings is the factual return.
A coalition is played once per call. Source: Shapley 1953; sampled orders, Castro et al. 2009. Biased for the team's
return: the marginal over S asks what c brings to coalitions that were not played.

    python -m selfcest_training.marl shapley --task chain
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfcest_env.structure import Count
from selfcest_training.marl.broadcast import leave_one_out
from selfcest_training.marl.counterfactual import Index, Recording, play_without, record
from selfcest_training.marl.games import KernelGames
from selfcest_training.marl.progress import Progress
from selfcest_training.marl.rollout import Act
from selfcest_training.marl.surrogate import SurrogateConfig, improve, start


@dataclass(frozen=True)
class Config(SurrogateConfig):
    """Settings of Shapley credit, beside those of the surrogate.

    Attributes:
        orders: sampled per call; where there are no more permutations than that, all of them are used, once each.
    """

    orders: Count = 2


def learn(games: KernelGames, seed: int, config: Config) -> Iterator[Progress]:
    actor, optimizer = start(games, seed, config)
    rng = np.random.default_rng(seed)
    decisions = 0
    while True:
        recording = record(games, actor.sample)
        rollout = recording.rollout
        credit, replayed = shapley_credit(recording, actor.sample, config.orders, rng)
        credit[:, 0] = leave_one_out(rollout.returns, games.group_size)
        improve(actor, optimizer, rollout, credit[rollout.game, rollout.agent], config)
        decisions += rollout.decisions + replayed
        yield Progress(decisions, actor)


def shapley_credit(recording: Recording, act: Act, orders: int, rng: np.random.Generator) -> tuple[Tensor, int]:
    """Credit of every clone [G, N], 0 for roots and the unborn; and how many decisions the replays took."""
    credit = torch.zeros(recording.moments[0].status.shape)
    decisions = 0
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
        decisions += replayed.decisions
    return credit, decisions


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
