"""`difference`: what the team got, less what it would have got without this clone.

    clone c, all its decisions:  A = D_c = R - mean over n replays without c
    root:                        A = R - mean R of the group's others

Source: the wonderful life utility of Wolpert and Tumer 2001, on returns, since rewards before the end are all zero
here. Without c: it is taken out when it is born, its reply is missing, what does not descend from it is kept and the
rest is sampled anew (`counterfactual`). The baseline does not depend on what c does, so this is unbiased.
Assumes snapshots, games that are never cut, and groups of at least two. Where a missing reply is bad in itself, every
clone that is there at all looks good: `diff_loo` takes that out.
Degenerate cases: an episode without clones costs no replay; a clone that cannot matter gets 0, in expectation where
what comes after it is drawn anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from selfcest_baselines.counterfactual import Cost, Recording, play_without
from selfcest_baselines.credit.base import Assign, Batch, Credit, Credited, Start, per_agent
from selfcest_baselines.rollout import Act
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count


@stored_as("Difference", samples="samples")
@dataclass(frozen=True)
class Difference(Credit):
    """Options: `samples`, replays per clone."""

    least_group: ClassVar[int] = 2
    replays: ClassVar[bool] = True
    samples: Count = 1

    def start(self, start: Start) -> Assign:
        return self.assign

    def assign(self, batch: Batch) -> Credited:
        assert batch.recording is not None
        return per_agent(batch, *difference_credit(batch.recording, batch.actor.sample, self.samples))


def difference_credit(recording: Recording, act: Act, samples: int) -> tuple[Tensor, Cost]:
    """D of every clone [G, N], 0 for roots and the unborn; and what the replays cost."""
    births, returns = recording.births(), recording.rollout.returns
    game, agent, cycle = (item.repeat(samples) for item in births)
    seats = recording.moments[0].status.shape[1]
    credit = torch.zeros(len(returns), seats)
    if not len(game):
        return credit, Cost()
    replayed = play_without(recording, game, cycle, np.arange(seats) == agent[:, None], act)
    credit[births.game, births.agent] = returns[births.game] - replayed.returns.view(-1, samples).mean(1)
    return credit, replayed.cost
