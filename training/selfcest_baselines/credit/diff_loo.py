"""`diff_loo`: a clone's difference return, less those of the same clone in the group's other episodes.

    clone c, all its decisions:  A = D_c - mean over the other episodes that have c of their D_c,   D of `difference`
    root:                        A = R - mean R of the group's others

Source: Wolpert and Tumer 2001, with the leave-one-out baseline of Kool et al. 2019 for every clone. What a clone in
this place usually brings is known from the other episodes without another replay. Unbiased: `difference` is, and the
mean is made of other episodes alone.
Assumes what `difference` assumes. The same clone is the one with the same path in the tree: seats are given in order of
birth and may differ, and what a clone holds may differ too, where the root splits in several ways.
Degenerate cases: a clone that no other episode has gets its D; one that cannot matter need not get 0 in a single batch,
if replays are drawn anew, yet does in expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfcest_baselines.counterfactual import Recording, paths
from selfcest_baselines.credit.base import Batch, Credited, per_agent
from selfcest_baselines.credit.difference import Difference, difference_credit
from selfcest_env.stored import stored_as


@stored_as("DiffLoo")
@dataclass(frozen=True)
class DiffLoo(Difference):
    """Options: those of `difference`."""

    def assign(self, batch: Batch) -> Credited:
        assert batch.recording is not None
        credit, cost = difference_credit(batch.recording, batch.actor.sample, self.samples)
        return per_agent(batch, less_others(credit, batch.recording, batch.group_size), cost)


def less_others(credit: Tensor, recording: Recording, group_size: int) -> Tensor:
    """Credit of every clone less the mean of the same clone's in the group's other episodes, [G, N] to [G, N]."""
    births = recording.births()
    names = paths(recording.moments[-1])[births.game, births.agent]
    group = (births.game // group_size).astype(np.uint64)
    _, same = np.unique(np.stack([group, names], axis=1), axis=0, return_inverse=True)
    clone = torch.from_numpy(same.reshape(-1))
    own = credit[births.game, births.agent]
    total, count = (torch.zeros(len(own)).index_add_(0, clone, item)[clone] for item in (own, torch.ones_like(own)))
    others = (total - own) / (count - 1).clamp(min=1)  # 0 for a clone that is the only one
    compared = credit.clone()
    compared[births.game, births.agent] = own - torch.where(count > 1, others, 0.0)
    return compared
