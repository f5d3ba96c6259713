"""`coma`: the value of the action taken minus the expected value of the agent's actions, given those of all others.

    A_i(s, u) = Q(s, u) - sum_u' pi(u' | o_i) Q(s, (u_-i, u'))

Source: counterfactual multi-agent policy gradients, Foerster et al. 2018 (arXiv 1705.08926), equation 4. A centralised
critic computes the values of all actions of agent i at once, from the state, i's observation, the actions of all others
and i's number. It learns λ-returns of a target network. There is no recurrence, because an observation contains all
that an agent knows. The paper's settings for the rest are `loss: one_pass` and an exploration `floor`; without
exploration Q of the actions not taken is never learned. `docs/learners.md` compares the bias of the learners.
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
from selfcest_baselines.networks import (
    ActorNetwork,
    build_mlp,
    clipped_surrogate,
    compute_entropy,
    gather_actions,
    step_optimizer,
)
from selfcest_baselines.progress import Progress
from selfcest_baselines.rollout import Rollout, collect_rollout, compute_row_targets
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
    """Policy gradient with a centralised critic and a counterfactual baseline.

    Attributes:
        gamma: discount per joint step.
        lambda_: λ of the λ-return; 1 is the Monte Carlo return.
        critic_learning_rate: learning rate of Adam for the critic.
        critic_passes: epochs of the critic per batch.
        critic_batch: maximum decisions in a minibatch of the critic. The default is small, because a policy that
            delegates little makes few decisions.
        target_every: batches between updates of the target network.
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
        critic = build_mlp([num_inputs, *self.hidden, num_actions], actor.generator, last_gain=1.0)
        critic_optimizer = torch.optim.Adam(critic.parameters(), self.critic_learning_rate)
        target = copy.deepcopy(critic)
        decisions = 0
        episodes = 0
        for update in itertools.count(1):
            # Rollout: one episode of each game; rows are decisions of the root and the clones.
            actor.floor = self.exploration_rate(decisions)
            rollout = collect_rollout(games, actor.sample, with_states=True)
            learnable = rollout.learnable_rows

            # Critic. It is updated before the credit, as in the paper.
            inputs = build_critic_inputs(rollout)  # [B, num_inputs]
            with torch.no_grad():
                estimates = gather_actions(target(inputs), rollout.actions)  # [B]
                targets = compute_row_targets(rollout, estimates, gamma=self.gamma, lambda_=self.lambda_)  # [B]
            for _ in range(self.critic_passes):
                order = learnable[torch.randperm(len(learnable), generator=actor.generator)]
                for rows in order.tensor_split(1 + len(order) // self.critic_batch):
                    critic_loss = F.mse_loss(gather_actions(critic(inputs[rows]), rollout.actions[rows]), targets[rows])
                    step_optimizer(critic_optimizer, critic_loss, self.max_gradient)
            if update % self.target_every == 0:
                target.load_state_dict(critic.state_dict())

            # Credit.
            with torch.no_grad():
                old_log_probs = actor(rollout.observations, rollout.masks)  # [B, A]
                advantages = compute_coma_advantages(critic(inputs), old_log_probs, rollout.actions)  # [B]
            self.check_advantages(advantages, rollout)

            # Loss and update.
            old_log_prob = gather_actions(old_log_probs, rollout.actions)  # [B]
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


def build_critic_inputs(rollout: Rollout) -> Tensor:
    """Return the critic's input for each decision, [B, S + F + N A + N].

    It holds the state, the agent's observation, the one-hot actions of all other agents and the one-hot number of the
    agent.
    """
    num_agents = rollout.joint_actions.shape[-1]
    num_actions = rollout.masks.shape[-1]
    states = rollout.states[rollout.cycle, rollout.game]  # [B, S]
    action_codes = F.one_hot(rollout.joint_actions[rollout.cycle, rollout.game], num_actions).float()  # [B, N, A]
    # The agent's own action is left out, because the critic computes the values of all of its actions.
    action_codes[torch.arange(len(action_codes)), rollout.agent] = 0
    agent_codes = F.one_hot(rollout.agent, num_agents).float()  # [B, N]
    return torch.cat([states, rollout.observations, action_codes.flatten(1), agent_codes], -1)


def compute_coma_advantages(values: Tensor, log_probs: Tensor, actions: Tensor) -> Tensor:
    """Return the value of the action taken minus the counterfactual baseline, [B].

    Args:
        values: [B, A] values of one agent's actions while all other agents keep theirs.
        log_probs: [B, A] the agent's policy. Illegal actions have probability 0 and do not count.
        actions: [B] actions taken.
    """
    return gather_actions(values, actions) - (log_probs.exp() * values).sum(-1)
