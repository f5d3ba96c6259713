"""`broadcast`: every decision of an episode, of the root and of the clones, gets the same advantage (GRPO).

    A = (R - mean R) / max(std R, std_floor)     over the episodes of one group, which play the same problem

Source: Shao et al. 2024 (arXiv 2402.03300), section 4.1. There is no critic and no counterfactual, so all clones pay
for the error of one. `docs/learners.md` compares the bias of the learners.

For a credit of your own without replays, derive from `BroadcastLearner` and override `advantages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork, clipped_surrogate, compute_entropy, gather_actions, step_optimizer
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Rollout, collect_rollout
from selfcest_env.stored import stored_as
from selfcest_env.structure import Positive


@stored_as("Broadcast", std_floor="std_floor")
@dataclass(frozen=True)
class BroadcastLearner(PolicyGradientLearner):
    """Policy gradient with group-relative advantages.

    Attributes:
        std_floor: smallest standard deviation to divide by, `None` for no division.
    """

    std_floor: Positive | None = 0.25

    least_group: ClassVar[int] = 2

    def train_actor(self, games: Games, actor: ActorNetwork) -> Iterator[Progress]:
        optimizer = torch.optim.Adam(actor.parameters(), self.learning_rate)
        decisions = 0
        episodes = 0
        while True:
            # Rollout: one episode of each game; rows are decisions of the root and the clones.
            actor.floor = self.exploration_rate(decisions)
            rollout = collect_rollout(games, actor.sample)

            # Credit.
            advantages = self.advantages(rollout)  # [B]
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

            decisions += rollout.decisions
            episodes += self.episodes
            yield Progress(decisions, episodes, actor)

    def advantages(self, rollout: Rollout) -> Tensor:
        """Return the advantage of each decision of the batch, [B]; rows that are not learnable are not read."""
        return compute_group_advantages(rollout.returns, self.group_size, self.std_floor)[rollout.game]


def compute_group_advantages(returns: Tensor, group_size: int, std_floor: float | None) -> Tensor:
    """Return the advantage of each episode, [G] to [G].

    Args:
        returns: [G] team returns; neighbours form groups.
        group_size: episodes per group.
        std_floor: smallest standard deviation to divide by, `None` for no division.
    """
    groups = returns.view(-1, group_size)
    centered = groups - groups.mean(1, keepdim=True)
    if std_floor is not None:
        # Without a floor, a group that differs by a few tokens' cost only would be scaled up to full size. The standard
        # deviation divides by n - 1.
        centered = centered / groups.std(1, keepdim=True).clamp(min=std_floor)
    return centered.flatten()
