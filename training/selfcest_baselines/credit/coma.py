"""`coma`: the value of the action taken, less that of the agent's other actions while all others keep theirs.

    A_i(s, u) = Q(s, u) - sum_u' pi(u' | o_i) Q(s, (u_-i, u'))

Source: counterfactual multi-agent policy gradients, Foerster et al. 2018 (arXiv 1705.08926). A centralised critic gives
all |U| values of agent i at once from the state, i's observation, the actions of all others and i's number. It learns
λ-returns of a target network, and does so before the batch gets its credit, as published. After termination nothing is
bootstrapped, after truncation the value of the last moment is. As in the paper, but for recurrence: the observation
holds all an agent knows. The paper's other two parts are the learner's: `floor` keeps the policy exploring, so that Q
of actions not taken is learned at all, and the loss `one_pass` takes one step per batch.
Assumes games with a state. Unbiased with the true Q; as far as Q is wrong, biased.
Degenerate cases: an agent with one legal action gets 0, as does one whose action cannot matter, given the true Q.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from selfcest_baselines.credit.base import Assign, Batch, Credited, Start
from selfcest_baselines.credit.critic import Critic, CriticCredit
from selfcest_baselines.networks import taken
from selfcest_baselines.rollout import Rollout, row_targets
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count, Share


@stored_as("Coma", target_every="target_every")
@dataclass(frozen=True)
class Coma(CriticCredit):
    """Options: those of the critic; `target_every`, batches between copies of the critic to its target."""

    central: ClassVar[bool] = True
    lambda_: Share = 0.8
    critic_passes: Count = 2
    target_every: Count = 5

    def start(self, start: Start) -> Assign:
        view = start.games.view()
        agents, features, actions = view.num_agents, view.observations.shape[-1], view.masks.shape[-1]
        inputs = start.games.states().shape[-1] + features + agents * actions + agents
        critic = Critic(inputs, actions, self, start)
        target, batches = copy.deepcopy(critic.network), itertools.count(1)

        def assign(batch: Batch) -> Credited:
            rollout = batch.rollout
            seen = critic_inputs(rollout)
            with torch.no_grad():
                estimates = taken(target(seen), rollout.actions)
                targets = row_targets(rollout, estimates, gamma=self.gamma, lambda_=self.lambda_)
            critic.fit(seen, rollout.actions, targets, rollout.learnable_rows)
            if next(batches) % self.target_every == 0:
                target.load_state_dict(critic.network.state_dict())
            with torch.no_grad():
                log_probs = batch.actor(rollout.observations, rollout.masks)
                return Credited(coma_advantages(critic.network(seen), log_probs, rollout.actions))

        return assign


def coma_advantages(values: Tensor, log_probs: Tensor, actions: Tensor) -> Tensor:
    """Value of the action taken less the counterfactual baseline: [B, A], [B, A], [B] to [B].

    `values` are those of one agent's actions while all others keep theirs. Illegal actions have probability 0 and so no
    part in the baseline.
    """
    return taken(values, actions) - (log_probs.exp() * values).sum(-1)


def critic_inputs(rollout: Rollout) -> Tensor:
    """State, own observation, the others' actions one-hot (one's own left out) and own number, per decision."""
    agents, actions = rollout.joint.shape[-1], rollout.masks.shape[-1]
    others = F.one_hot(rollout.joint[rollout.cycle, rollout.game], actions).float()
    others[torch.arange(len(others)), rollout.agent] = 0
    number = F.one_hot(rollout.agent, agents).float()
    return torch.cat([rollout.states[rollout.cycle, rollout.game], rollout.observations, others.flatten(1), number], -1)
