"""`diff_loo`: a clone's difference return minus those of the same clone in the group's other episodes.

    clone c, all its decisions:  A = D_c - mean of D_c over the group's other episodes that have c
    root:                        A = R - mean R of the group's other episodes
    where                        D_c = R - mean over n replays without c

Source: Wolpert and Tumer 2001, with the leave-one-out baseline of Kool et al. 2019 for each clone. The other episodes
estimate what a clone at this place usually contributes, without another replay. D is unbiased (see `difference.py`)
and the baseline consists of other episodes only, so the credit is unbiased. `docs/learners.md` lists the requirements.

Clones are the same if they have the same path in the tree. Their contents can differ where the root can split in
several ways.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfcest_baselines.counterfactual import Recording, ReplayCost, compute_path_keys
from selfcest_baselines.difference import DifferenceLearner, compute_difference_returns
from selfcest_baselines.rollout import Act, leave_one_out
from selfcest_env.stored import stored_as


@stored_as("DiffLoo", samples="samples")
@dataclass(frozen=True)
class DiffLooLearner(DifferenceLearner):
    """Policy gradient with difference rewards and a leave-one-out baseline per clone."""

    def advantages(self, recording: Recording, act: Act) -> tuple[Tensor, ReplayCost]:
        rollout = recording.rollout
        credit, cost = compute_difference_returns(recording, act, self.samples)  # [G, N]
        credit = subtract_same_clones(credit, recording, self.group_size)
        credit[:, 0] = leave_one_out(rollout.returns, self.group_size)
        return credit[rollout.game, rollout.agent], cost


def subtract_same_clones(credit: Tensor, recording: Recording, group_size: int) -> Tensor:
    """Return each clone's credit minus the mean credit of the same clone in the group's other episodes.

    Args:
        credit: [G, N] credit of the clones.
        recording: the recorded episodes.
        group_size: episodes per group.

    Returns:
        [G, N]; a clone that no other episode of the group has keeps its credit.
    """
    births = recording.births()
    # Seats are assigned in order of birth and can differ between episodes, so clones are matched by path.
    keys = compute_path_keys(recording.moments[-1])[births.game, births.agent]  # [K]
    group = (births.game // group_size).astype(np.uint64)
    _, clone_index = np.unique(np.stack([group, keys], axis=1), axis=0, return_inverse=True)
    clone = torch.from_numpy(clone_index.reshape(-1))  # [K]
    clone_credit = credit[births.game, births.agent]  # [K]
    total = torch.zeros(len(clone_credit)).index_add_(0, clone, clone_credit)[clone]
    count = torch.zeros(len(clone_credit)).index_add_(0, clone, torch.ones_like(clone_credit))[clone]
    # The mean of the other episodes, 0 where there are none.
    baseline = torch.where(count > 1, (total - clone_credit) / (count - 1).clamp(min=1), 0.0)
    compared = credit.clone()
    compared[births.game, births.agent] = clone_credit - baseline
    return compared
