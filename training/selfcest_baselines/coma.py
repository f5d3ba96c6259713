"""`coma`: the value of the action taken, less that of the agent's other actions while all others keep theirs.

    A_i(s, u) = Q(s, u) - sum_u' pi(u' | o_i) Q(s, (u_-i, u'))

Source: counterfactual multi-agent policy gradients, Foerster et al. 2018 (arXiv 1705.08926). A centralised critic gives
the values of all actions of agent i at once, from the state, i's observation, the actions of all others and i's number.
It learns λ-returns of a target network. After termination nothing is bootstrapped; after truncation the value of the
last moment is. This follows the paper except for recurrence, since the observation holds all that an agent knows. The
paper's settings for the rest are `loss: one_pass` and an exploration `floor`, without which Q of actions not taken is
never learned. The credit needs games with a state. It is unbiased with the true Q, and biased as far as Q is wrong. An
agent with one legal action gets 0, as does, given the true Q, an agent whose action cannot matter.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from selfcest_baselines.games import Games
from selfcest_baselines.learner import PolicyGradientLearner
from selfcest_baselines.networks import ActorNetwork, clipped_gain, descend, entropy, mlp, taken
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Rollout, collect, row_targets
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count, Positive, Share


@stored_as(
    "Coma",
    gamma="gamma",
    lambda_="lambda_",
    critic_learning_rate="critic_learning_rate",
    critic_passes="critic_passes",
    critic_batch="critic_batch",
    target_every="target_every",
)
@dataclass(frozen=True)
class ComaLearner(PolicyGradientLearner):
    """Options.

    Attributes:
        gamma: discount per joint step.
        lambda_: λ of the λ-return; 1 is the return itself.
        critic_learning_rate: step size of Adam for the critic.
        critic_passes: passes of the critic over each batch.
        critic_batch: most decisions in a minibatch of the critic. It is small because a policy that delegates little
            makes few decisions.
        target_every: batches between copies of the critic's weights to its target network.
    """

    gamma: Share = 1.0
    lambda_: Share = 0.8
    critic_learning_rate: Positive = 1e-3
    critic_passes: Count = 2
    critic_batch: Count = 128
    target_every: Count = 5

    def train_actor(self, games: Games, actor: ActorNetwork) -> Iterator[Progress]:
        optimizer = torch.optim.Adam(actor.parameters(), self.learning_rate)
        view = games.view()
        num_features = view.observations.shape[-1]
        num_actions = view.masks.shape[-1]
        num_inputs = games.states().shape[-1] + num_features + view.num_agents * num_actions + view.num_agents
        critic = mlp([num_inputs, *self.hidden, num_actions], actor.generator, last_gain=1.0)
        critic_optimizer = torch.optim.Adam(critic.parameters(), self.critic_learning_rate)
        target = copy.deepcopy(critic)
        decisions = 0
        episodes = 0
        for update in itertools.count(1):
            # Rollout: one episode of each game; rows are decisions of the root and the clones.
            actor.floor = self.exploration(decisions)
            rollout = collect(games, actor.sample, central=True)
            learnable = rollout.learnable_rows

            # Critic. It learns before the credit is given, as published.
            inputs = critic_inputs(rollout)  # [B, num_inputs]
            with torch.no_grad():
                estimates = taken(target(inputs), rollout.actions)  # [B]
                targets = row_targets(rollout, estimates, gamma=self.gamma, lambda_=self.lambda_)  # [B]
            for _ in range(self.critic_passes):
                order = learnable[torch.randperm(len(learnable), generator=actor.generator)]
                for rows in order.tensor_split(1 + len(order) // self.critic_batch):
                    critic_loss = F.mse_loss(taken(critic(inputs[rows]), rollout.actions[rows]), targets[rows])
                    descend(critic_optimizer, critic_loss, self.max_gradient)
            if update % self.target_every == 0:
                target.load_state_dict(critic.state_dict())

            # Credit.
            with torch.no_grad():
                old_log_probs = actor(rollout.observations, rollout.masks)  # [B, A]
                advantages = coma_advantages(critic(inputs), old_log_probs, rollout.actions)  # [B]
            self.check_advantages(advantages, rollout)

            # Loss and update.
            old = taken(old_log_probs, rollout.actions)  # [B]
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


def critic_inputs(rollout: Rollout) -> Tensor:
    """What the critic reads of each decision, [B, S + F + N A + N].

    State, own observation, the others' actions one-hot with the agent's own left out, and the agent's number one-hot.
    """
    num_agents = rollout.joint.shape[-1]
    num_actions = rollout.masks.shape[-1]
    states = rollout.states[rollout.cycle, rollout.game]  # [B, S]
    others = F.one_hot(rollout.joint[rollout.cycle, rollout.game], num_actions).float()  # [B, N, A]
    others[torch.arange(len(others)), rollout.agent] = 0
    number = F.one_hot(rollout.agent, num_agents).float()  # [B, N]
    return torch.cat([states, rollout.observations, others.flatten(1), number], -1)


def coma_advantages(values: Tensor, log_probs: Tensor, actions: Tensor) -> Tensor:
    """Value of the action taken less the counterfactual baseline: [B, A], [B, A], [B] to [B].

    `values` are those of one agent's actions while all others keep theirs. Illegal actions have probability 0 and so no
    part in the baseline.
    """
    return taken(values, actions) - (log_probs.exp() * values).sum(-1)
