"""`broadcast`: every decision of an episode, of the root and of the clones, gets the same advantage (GRPO).

    A = (R - mean R) / max(std R, std_floor)     over the episodes of one group, which play the same problem

Source: Shao et al. 2024 (arXiv 2402.03300). There is no value and no counterfactual: whichever clone was wrong, all
pay, and the share of one clone in the signal falls as 1 / number of clones. The floor keeps groups whose returns differ
by little more than their token cost from being scaled up. Division by the standard deviation is biased. Without it
(`std_floor: null`) the expected gradient of groups of K is (K - 1) / K of the exact one, because the mean contains the
episode's own return. A group of equal returns gets 0.

For a credit of your own that needs no replays, derive from `BroadcastLearner` and override `advantages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork, clipped_gain, descend, entropy, taken
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Rollout, collect
from selfcest_env.stored import stored_as
from selfcest_env.structure import Positive


@stored_as("Broadcast", std_floor="std_floor")
@dataclass(frozen=True)
class BroadcastLearner(PolicyGradientLearner):
    """Options.

    Attributes:
        std_floor: smallest standard deviation to divide by; null for no division.
    """

    std_floor: Positive | None = 0.25

    least_group: ClassVar[int] = 2

    def train_actor(self, games: Games, actor: ActorNetwork) -> Iterator[Progress]:
        optimizer = torch.optim.Adam(actor.parameters(), self.learning_rate)
        decisions = 0
        episodes = 0
        while True:
            # Rollout: one episode of each game; rows are decisions of the root and the clones.
            actor.floor = self.exploration(decisions)
            rollout = collect(games, actor.sample)

            # Credit.
            advantages = self.advantages(rollout)  # [B]
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

            decisions += rollout.decisions
            episodes += self.episodes
            yield Progress(decisions, episodes, actor)

    def advantages(self, rollout: Rollout) -> Tensor:
        """The advantage of each decision of the batch, [B]; those of rows that are not learnable are not read."""
        return group_advantages(rollout.returns, self.group_size, self.std_floor)[rollout.game]


def group_advantages(returns: Tensor, group_size: int, std_floor: float | None) -> Tensor:
    """The advantage of each episode, [G] to [G]; neighbours form groups, and the variance divides by n - 1."""
    groups = returns.view(-1, group_size)
    centered = groups - groups.mean(1, keepdim=True)
    if std_floor is not None:
        centered = centered / groups.std(1, keepdim=True).clamp(min=std_floor)
    return centered.flatten()
