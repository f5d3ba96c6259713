"""PPO with shared weights (Schulman et al. 2017; as IPPO, de Witt et al. 2020): the baseline without counterfactuals.

    A = λ-return of the team - V(o_i),   centred, and divided by max(its standard deviation in the batch, floor)

Policy and value see an agent's own observation. Clones that have left get the team's return, since the targets run
along the steps of the game and not along the life of an agent; with one agent deciding at a time this is GAE. Without
the floor a policy that has solved the game loses it again: differences of a few tokens are blown up to full size.

    python -m selfcest_training.marl ppo --task chain
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional as F

from selfcest_env.structure import Positive, Share
from selfcest_training.marl.games import Games
from selfcest_training.marl.networks import descend, entropy, mlp, taken
from selfcest_training.marl.progress import Progress
from selfcest_training.marl.rollout import collect, row_targets
from selfcest_training.marl.surrogate import SurrogateConfig, clipped_surrogate, minibatches, start


@dataclass(frozen=True)
class Config(SurrogateConfig):
    """Settings of PPO, beside those of the surrogate; the value network is a second one of the same widths."""

    least_group: ClassVar[int] = 1
    group_size: int = 1
    gamma: Share = 1.0
    lambda_: Share = 0.95
    std_floor: Positive = 0.1
    value_learning_rate: Positive = 1e-3


def learn(games: Games, seed: int, config: Config) -> Iterator[Progress]:
    actor, optimizer = start(games, seed, config)
    features = games.view().observations.shape[-1]
    critic = mlp([features, *config.hidden, 1], actor.generator, last_gain=1.0)
    critic_optimizer = torch.optim.Adam(critic.parameters(), config.value_learning_rate)
    decisions = 0
    while True:
        rollout = collect(games, actor.sample)
        with torch.no_grad():
            values = critic(rollout.observations)[:, 0]
            targets = row_targets(rollout, values, gamma=config.gamma, lambda_=config.lambda_)
            behavior = taken(actor(rollout.observations, rollout.masks), rollout.actions)
            advantages = targets - values
            spread, center = torch.std_mean(advantages[rollout.learnable])
            advantages = (advantages - center) / spread.clamp(min=config.std_floor)
        for rows in minibatches(rollout, config, actor.generator):
            log_probs = actor(rollout.observations[rows], rollout.masks[rows])
            new = taken(log_probs, rollout.actions[rows])
            gain = clipped_surrogate(new, behavior[rows], advantages[rows], config.clip)
            descend(optimizer, -(gain + config.entropy * entropy(log_probs)).mean(), config.max_gradient)
            error = F.mse_loss(critic(rollout.observations[rows])[:, 0], targets[rows])
            descend(critic_optimizer, error, config.max_gradient)
        decisions += rollout.decisions
        yield Progress(decisions, actor)
