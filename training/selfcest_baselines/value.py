"""`value`: the team's return from here on, less what an agent with this observation can expect (PPO, IPPO).

    A = λ-return of the team - V(o_i),   centred, and divided by max(its standard deviation in the batch, std_floor)

Source: generalised advantages, Schulman et al. 2016 (arXiv 1506.02438); with one shared policy and V on the agent's own
observation, IPPO (de Witt et al. 2020, arXiv 2011.09533). Targets run along the steps of the game and not along the
life of an agent, so that clones that have left get the team's return. With one agent deciding at a time this is GAE.
V assumes that an agent's own observation tells how good the moment is. Where it does not, V cannot tell whose fault a
low return was. The credit is biased as far as V is wrong for λ < 1, and by the division (`std_floor: null` neither
centres nor divides). Without the floor a policy that has solved the game loses it again, because differences of a few
tokens are scaled up to full size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork, clipped_gain, descend, entropy, mlp, taken
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import collect, row_targets
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
    """Options.

    Attributes:
        gamma: discount per joint step.
        lambda_: λ of the λ-return; 1 is the return itself.
        critic_learning_rate: step size of Adam for the critic.
        critic_passes: passes of the critic over each batch.
        critic_batch: most decisions in a minibatch of the critic. It is small because a policy that delegates little
            makes few decisions.
        std_floor: smallest standard deviation to divide by; null for neither centring nor division.
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
        critic = mlp([num_features, *self.hidden, 1], actor.generator, last_gain=1.0)
        critic_optimizer = torch.optim.Adam(critic.parameters(), self.critic_learning_rate)
        decisions = 0
        episodes = 0
        while True:
            # Rollout: one episode of each game; rows are decisions of the root and the clones.
            actor.floor = self.exploration(decisions)
            rollout = collect(games, actor.sample)
            learnable = rollout.learnable_rows

            # Credit.
            with torch.no_grad():
                values = critic(rollout.observations)[:, 0]  # [B]
                targets = row_targets(rollout, values, gamma=self.gamma, lambda_=self.lambda_)  # [B]
            advantages = targets - values
            if self.std_floor is not None and len(learnable) > 1:
                spread, center = torch.std_mean(advantages[learnable])
                advantages = (advantages - center) / spread.clamp(min=self.std_floor)
            self.check_advantages(advantages, rollout)

            # Critic. It learns after the credit is given: else V would contain the return that it is held against.
            for _ in range(self.critic_passes):
                order = learnable[torch.randperm(len(learnable), generator=actor.generator)]
                for rows in order.tensor_split(1 + len(order) // self.critic_batch):
                    critic_loss = F.mse_loss(critic(rollout.observations[rows])[:, 0], targets[rows])
                    descend(critic_optimizer, critic_loss, self.max_gradient)

            # Loss and update.
            with torch.no_grad():
                old = taken(actor(rollout.observations, rollout.masks), rollout.actions)  # [B]
            for rows in self.minibatches(learnable, actor.generator):
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
