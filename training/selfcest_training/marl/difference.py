"""Difference returns: what the team got less what it would have got without this clone.

    clone c, all its decisions:  A = R - mean over n replays without c
    root:                        A = R - mean R of the group's others

Without c: it is taken out when it is born, its reply is missing, what does not descend from it is kept and the rest is
sampled anew (`counterfactual`). The baseline does not depend on what c does, so it is unbiased. Source: the wonderful
life utility of Wolpert and Tumer 2001, on returns, since rewards before the end are all zero here.

    python -m selfcest_training.marl difference --task chain
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfcest_env.structure import Count
from selfcest_training.marl.broadcast import leave_one_out
from selfcest_training.marl.counterfactual import Recording, play_without, record
from selfcest_training.marl.games import KernelGames
from selfcest_training.marl.progress import Progress
from selfcest_training.marl.rollout import Act
from selfcest_training.marl.surrogate import SurrogateConfig, improve, start


@dataclass(frozen=True)
class Config(SurrogateConfig):
    """Settings of difference returns, beside those of the surrogate; `samples` replays per clone."""

    samples: Count = 1


def learn(games: KernelGames, seed: int, config: Config) -> Iterator[Progress]:
    actor, optimizer = start(games, seed, config)
    decisions = 0
    while True:
        recording = record(games, actor.sample)
        rollout = recording.rollout
        credit, replayed = difference_credit(recording, actor.sample, config.samples)
        credit[:, 0] = leave_one_out(rollout.returns, games.group_size)
        improve(actor, optimizer, rollout, credit[rollout.game, rollout.agent], config)
        decisions += rollout.decisions + replayed
        yield Progress(decisions, actor)


def difference_credit(recording: Recording, act: Act, samples: int) -> tuple[Tensor, int]:
    """Credit of every clone [G, N], 0 for roots and the unborn; and how many decisions the replays took."""
    births, returns = recording.births(), recording.rollout.returns
    game, agent, cycle = (item.repeat(samples) for item in births)
    seats = recording.moments[0].status.shape[1]
    credit = torch.zeros(len(returns), seats)
    if not len(game):
        return credit, 0
    replayed = play_without(recording, game, cycle, np.arange(seats) == agent[:, None], act)
    credit[births.game, births.agent] = returns[births.game] - replayed.returns.view(-1, samples).mean(1)
    return credit, replayed.decisions
