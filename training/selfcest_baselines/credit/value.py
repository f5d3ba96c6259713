"""`value`: what the team got from here on, less what an agent with this observation could expect.

    A = λ-return of the team - V(o_i),   centred, and divided by max(its standard deviation in the batch, std_floor)

Source: generalised advantages, Schulman et al. 2016 (arXiv 1506.02438); with a shared policy and V on one's own
observation, IPPO (de Witt et al. 2020, arXiv 2011.09533). Targets run along the steps of the game and not along the
life of an agent, so clones that have left get the team's return; with one agent deciding at a time this is GAE. V is
fitted to a batch after the batch has its credit: else it would hold the return that it is held against.
Assumes that one's own observation tells how good the moment is; where it does not, V cannot tell whose fault it was.
For λ < 1 biased as far as V is wrong; division by the batch's deviation is
biased as well (`std_floor: null`: neither centred nor divided).
Degenerate cases: without the floor a policy that has solved the game loses it again, as differences of a few tokens are
blown up to full size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from selfcest_baselines.credit.base import Assign, Batch, Credited, Start
from selfcest_baselines.credit.critic import Critic, CriticCredit
from selfcest_baselines.rollout import row_targets
from selfcest_env.stored import stored_as
from selfcest_env.structure import Positive


@stored_as("Value", std_floor="std_floor")
@dataclass(frozen=True)
class Value(CriticCredit):
    """Options: those of the critic; `std_floor`, null for neither centring nor division."""

    std_floor: Positive | None = 0.1

    def start(self, start: Start) -> Assign:
        critic = Critic(start.games.view().observations.shape[-1], 1, self, start)

        def assign(batch: Batch) -> Credited:
            rollout = batch.rollout
            with torch.no_grad():
                values = critic.network(rollout.observations)[:, 0]
                targets = row_targets(rollout, values, gamma=self.gamma, lambda_=self.lambda_)
            advantages = targets - values
            if self.std_floor is not None and rollout.learnable.sum() > 1:
                spread, center = torch.std_mean(advantages[rollout.learnable])
                advantages = (advantages - center) / spread.clamp(min=self.std_floor)
            critic.fit(rollout.observations, torch.zeros_like(rollout.actions), targets, rollout.learnable_rows)
            return Credited(advantages)

        return assign
