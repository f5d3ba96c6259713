"""`diff_loo`: a clone's difference return, less those of the same clone in the group's other episodes.

    clone c, all its decisions:  A = D_c - mean of D_c over the group's other episodes that have c
    root:                        A = R - mean R of the group's others
    where                        D_c = R - mean over n replays without c

Source: Wolpert and Tumer 2001, with the leave-one-out baseline of Kool et al. 2019 for each clone. The other episodes
tell what a clone in this place usually brings, without another replay. D is unbiased (`difference.py` says why) and the
mean consists of other episodes only, so this is unbiased. The credit needs what `difference` needs.
The same clone is the one with the same path in the tree: seats are given in order of birth and may differ. What the
clone holds may differ too, where the root splits in several ways. A clone that no other episode has gets its D. A clone
that cannot matter gets 0 in expectation, if replays are sampled anew, and not in each batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from selfcest_baselines.counterfactual import Recording, ReplayCost, paths, play_without, record
from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork, clipped_gain, descend, entropy, taken
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Act, leave_one_out
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count


@stored_as("DiffLoo", samples="samples")
@dataclass(frozen=True)
class DiffLooLearner(PolicyGradientLearner):
    """Options.

    Attributes:
        samples: replays per clone.
    """

    samples: Count = 1

    least_group: ClassVar[int] = 2
    replays: ClassVar[bool] = True

    def train_actor(self, games: Games, actor: ActorNetwork) -> Iterator[Progress]:
        optimizer = torch.optim.Adam(actor.parameters(), self.learning_rate)
        decisions = 0
        episodes = 0
        while True:
            # Rollout: one episode of each game, with a snapshot of each moment; rows are decisions.
            actor.floor = self.exploration(decisions)
            recording = record(games, actor.sample)
            rollout = recording.rollout

            # Credit.
            advantages, cost = self.advantages(recording, actor.sample)  # [B]
            self.check_advantages(advantages, rollout)

            # Loss and update.
            with torch.no_grad():
                old = taken(actor(rollout.observations, rollout.masks), rollout.actions)  # [B]
            for rows in self.minibatches(rollout.learnable_rows, actor.generator):
                log_probs = actor(rollout.observations[rows], rollout.masks[rows])  # [b, A]
                new = taken(log_probs, rollout.actions[rows])  # [b]
                if self.loss == "one_pass":
                    gain = advantages[rows] * new
                else:
                    gain = clipped_gain(new, old[rows], advantages[rows], self.clip)
                objective = (gain + self.entropy * entropy(log_probs)).mean()
                descend(optimizer, -objective * self.objective_scale(rollout), self.max_gradient)

            decisions += rollout.decisions + cost.decisions
            episodes += self.episodes + cost.replays
            yield Progress(decisions, episodes, actor)

    def advantages(self, recording: Recording, act: Act) -> tuple[Tensor, ReplayCost]:
        """The advantage of each decision of the batch, [B], and the cost of the replays.

        Args:
            recording: the episodes of the batch; `recording.rollout` holds their decisions.
            act: samples the actions in replays.
        """
        rollout = recording.rollout
        births = recording.births()
        num_seats = recording.moments[0].status.shape[1]
        credit = torch.zeros(len(rollout.returns), num_seats)  # [G, N]
        cost = ReplayCost()
        if len(births.game):
            game, agent, cycle = (column.repeat(self.samples) for column in births)  # [K samples]
            absent = np.arange(num_seats) == agent[:, None]  # [K samples, N]
            replayed = play_without(recording, game, cycle, absent, act)
            without_clone = replayed.returns.view(-1, self.samples).mean(1)  # [K]
            credit[births.game, births.agent] = rollout.returns[births.game] - without_clone
            credit = subtract_same_clones(credit, recording, self.group_size)
            cost = replayed.cost
        credit[:, 0] = leave_one_out(rollout.returns, self.group_size)
        return credit[rollout.game, rollout.agent], cost


def subtract_same_clones(credit: Tensor, recording: Recording, group_size: int) -> Tensor:
    """Credit of each clone less the mean of the same clone's in the group's other episodes, [G, N] to [G, N]."""
    births = recording.births()
    names = paths(recording.moments[-1])[births.game, births.agent]  # [K]
    group = (births.game // group_size).astype(np.uint64)
    _, clone_index = np.unique(np.stack([group, names], axis=1), axis=0, return_inverse=True)
    clone = torch.from_numpy(clone_index.reshape(-1))  # [K]
    clone_credit = credit[births.game, births.agent]  # [K]
    total = torch.zeros(len(clone_credit)).index_add_(0, clone, clone_credit)[clone]
    count = torch.zeros(len(clone_credit)).index_add_(0, clone, torch.ones_like(clone_credit))[clone]
    # A clone that is the only one of its path has nothing to be compared with.
    baseline = torch.where(count > 1, (total - clone_credit) / (count - 1).clamp(min=1), 0.0)
    compared = credit.clone()
    compared[births.game, births.agent] = clone_credit - baseline
    return compared
