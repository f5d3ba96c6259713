"""`value`: the team's λ-return minus the value of the agent's own observation (PPO, IPPO).

    A = λ-return of the team - V(o_i),   centred, and divided by max(its standard deviation in the batch, std_floor)

Source: generalised advantage estimation, Schulman et al. 2016 (arXiv 1506.02438), equation 16. With one shared policy
and V of the agent's own observation it is IPPO (de Witt et al. 2020, arXiv 2011.09533). Targets follow the steps of the
game, not the life of an agent, so clones that have left get the team's return. `docs/learners.md` compares the bias of
the learners.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import (
    ActorNetwork,
    build_mlp,
    clipped_surrogate,
    compute_entropy,
    gather_actions,
    step_optimizer,
)
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import collect_rollout, compute_row_targets
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count, Positive, Share


@stored_as(
    "Value",
    gamma="gamma",
    lambda_="lambda_",
    critic_learning_rate="critic_learning_rate",
    critic_passes="critic_passes",
    critic_batch="critic_batch",
    std_floor="std_floor",
)
@dataclass(frozen=True)
class ValueLearner(PolicyGradientLearner):
    """Policy gradient with a decentralised critic.

    Attributes:
        gamma: discount per joint step.
        lambda_: λ of the λ-return; 1 is the Monte Carlo return.
        critic_learning_rate: learning rate of Adam for the critic.
        critic_passes: epochs of the critic per batch.
        critic_batch: maximum decisions in a minibatch of the critic. The default is small, because a policy that
            delegates little makes few decisions.
        std_floor: smallest standard deviation to divide by, `None` for neither centring nor division.
    """

    gamma: Share = 1.0
    lambda_: Share = 0.95
    critic_learning_rate: Positive = 1e-3
    critic_passes: Count = 4
    critic_batch: Count = 128
    std_floor: Positive | None = 0.1

    def train_actor(self, games: Games, actor: ActorNetwork) -> Iterator[Progress]:
        optimizer = torch.optim.Adam(actor.parameters(), self.learning_rate)
        num_features = games.view().observations.shape[-1]
        critic = build_mlp([num_features, *self.hidden, 1], actor.generator, last_gain=1.0)
        critic_optimizer = torch.optim.Adam(critic.parameters(), self.critic_learning_rate)
        decisions = 0
        episodes = 0
        while True:
            # Rollout: one episode of each game; rows are decisions of the root and the clones.
            actor.floor = self.exploration_rate(decisions)
            rollout = collect_rollout(games, actor.sample)
            learnable = rollout.learnable_rows

            # Credit.
            with torch.no_grad():
                values = critic(rollout.observations)[:, 0]  # [B]
                targets = compute_row_targets(rollout, values, gamma=self.gamma, lambda_=self.lambda_)  # [B]
            advantages = targets - values
            # Without the floor, a policy that has solved the game loses it again, because differences of a few tokens
            # are scaled up to full size.
            if self.std_floor is not None and len(learnable) > 1:
                spread, center = torch.std_mean(advantages[learnable])
                advantages = (advantages - center) / spread.clamp(min=self.std_floor)
            self.check_advantages(advantages, rollout)

            # Critic. It is updated after the credit, because V must not contain the returns that it is a baseline for.
            for _ in range(self.critic_passes):
                order = learnable[torch.randperm(len(learnable), generator=actor.generator)]
                for rows in order.tensor_split(1 + len(order) // self.critic_batch):
                    critic_loss = F.mse_loss(critic(rollout.observations[rows])[:, 0], targets[rows])
                    step_optimizer(critic_optimizer, critic_loss, self.max_gradient)

            # Loss and update.
            with torch.no_grad():
                old_log_prob = gather_actions(actor(rollout.observations, rollout.masks), rollout.actions)  # [B]
            for rows in self.minibatches(learnable, actor.generator):
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
