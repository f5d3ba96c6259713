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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from selfcest_baselines.counterfactual import Recording, ReplayCost, compute_path_keys, record_episodes, replay_without
from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork, clipped_surrogate, compute_entropy, gather_actions, step_optimizer
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Act, leave_one_out
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count


@stored_as("DiffLoo", samples="samples")
@dataclass(frozen=True)
class DiffLooLearner(PolicyGradientLearner):
    """Policy gradient with difference rewards and a leave-one-out baseline per clone.

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
            actor.floor = self.exploration_rate(decisions)
            recording = record_episodes(games, actor.sample)
            rollout = recording.rollout

            # Credit.
            advantages, cost = self.advantages(recording, actor.sample)  # [B]
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

    def advantages(self, recording: Recording, act: Act) -> tuple[Tensor, ReplayCost]:
        """Return the advantage of each decision of the batch, [B], and the cost of the replays.

        Args:
            recording: episodes of the batch, whose decisions are in `recording.rollout`.
            act: samples actions in replays.
        """
        rollout = recording.rollout
        births = recording.births()
        num_seats = recording.moments[0].status.shape[1]
        credit = torch.zeros(len(rollout.returns), num_seats)  # [G, N]
        cost = ReplayCost()
        if len(births.game):
            game, agent, cycle = (column.repeat(self.samples) for column in births)  # [K samples]
            absent = np.arange(num_seats) == agent[:, None]  # [K samples, N]
            replayed = replay_without(recording, game, cycle, absent, act)
            without_clone = replayed.returns.view(-1, self.samples).mean(1)  # [K]
            credit[births.game, births.agent] = rollout.returns[births.game] - without_clone
            credit = subtract_same_clones(credit, recording, self.group_size)
            cost = replayed.cost
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
