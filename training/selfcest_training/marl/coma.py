"""COMA: counterfactual multi-agent policy gradients (Foerster et al. 2018, arXiv 1705.08926).

    A_i(s, u) = Q(s, u) - sum_u' pi(u' | o_i) Q(s, (u_-i, u'))

A centralised critic gives all |U| values of agent i at once from the state, i's observation, the actions of all others
and i's number; it learns TD(λ) targets of a target network. After termination nothing is bootstrapped, after truncation
the value of the last moment is. Probabilities have a floor that anneals: (1 - ε) softmax + ε / number of legal actions.
The policy takes one step per batch, on policy. As in the paper, but for recurrence: the observation holds all an agent
knows.

    python -m selfcest_training.marl coma --task chain
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from selfcest_env.structure import Above, AtLeast, Below, Checked, Count, NotEmpty, NotNegative, Positive, Share
from selfcest_training.marl.games import Games
from selfcest_training.marl.networks import Actor, descend, draw, entropy, mlp, taken
from selfcest_training.marl.progress import Progress
from selfcest_training.marl.rollout import Act, Rollout, collect, row_targets
from selfcest_training.marl.settings import check_groups

_Floor = Annotated[float, AtLeast(0), Below(1)]


@dataclass(frozen=True)
class Config(Checked):
    """Settings of COMA.

    Attributes:
        episodes: per update.
        hidden: widths of the policy's and the critic's hidden layers.
        floor: ε at first and at last; `anneal` decisions lie between.
        critic_passes: over the batch, in minibatches of `critic_batch` decisions.
        target_every: updates between copies of the critic to its target.
    """

    episodes: Count = 64
    group_size: Count = 1
    hidden: Annotated[tuple[Count, ...], NotEmpty()] = (128, 128)
    learning_rate: Positive = 1e-3
    critic_learning_rate: Positive = 1e-3
    gamma: Share = 1.0
    lambda_: Share = 0.8
    floor: tuple[_Floor, _Floor] = (0.1, 0.0)
    anneal: Count = 100_000
    entropy: NotNegative = 0.01
    critic_passes: Count = 2
    critic_batch: Count = 128
    target_every: Count = 5
    max_gradient: Annotated[float, Above(0)] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups(self, 1)


def learn(games: Games, seed: int, config: Config) -> Iterator[Progress]:
    generator = torch.Generator().manual_seed(seed)
    games.reset()
    view = games.view()
    (_, agents, features), actions = view.observations.shape, view.masks.shape[-1]
    inputs = games.states().shape[-1] + features + agents * actions + agents
    actor = Actor(features, actions, config.hidden, generator)
    critic = mlp([inputs, *config.hidden, actions], generator, last_gain=1.0)
    target = copy.deepcopy(critic)
    actor_optimizer = torch.optim.Adam(actor.parameters(), config.learning_rate)
    critic_optimizer = torch.optim.Adam(critic.parameters(), config.critic_learning_rate)
    decisions = updates = 0
    while True:
        first, last = config.floor
        floor = last + (first - last) * max(0.0, 1 - decisions / config.anneal)
        with torch.no_grad():
            rollout = collect(games, explorer(actor, floor), central=True)
            seen = critic_inputs(rollout)
            estimates = taken(target(seen), rollout.actions)
            targets = row_targets(rollout, estimates, gamma=config.gamma, lambda_=config.lambda_)
        learnable = rollout.learnable.nonzero()[:, 0]
        for _ in range(config.critic_passes):
            order = learnable[torch.randperm(len(learnable), generator=generator)]
            for rows in order.tensor_split(1 + len(order) // config.critic_batch):
                loss = F.mse_loss(taken(critic(seen[rows]), rollout.actions[rows]), targets[rows])
                descend(critic_optimizer, loss, config.max_gradient)
        rows = learnable
        soft = actor(rollout.observations[rows], rollout.masks[rows])
        log_probs = floored(soft, rollout.masks[rows], floor)
        with torch.no_grad():
            advantages = coma_advantages(critic(seen[rows]), log_probs, rollout.actions[rows])
        gain = advantages * taken(log_probs, rollout.actions[rows]) + config.entropy * entropy(soft)
        descend(actor_optimizer, -gain.sum() / config.episodes, config.max_gradient)
        decisions, updates = decisions + rollout.decisions, updates + 1
        if updates % config.target_every == 0:
            target.load_state_dict(critic.state_dict())
        yield Progress(decisions, actor)


def coma_advantages(values: Tensor, log_probs: Tensor, actions: Tensor) -> Tensor:
    """Value of the action taken less the counterfactual baseline: [B, A], [B, A], [B] to [B].

    `values` are those of one agent's actions while all others keep theirs. Illegal actions have probability 0 and so no
    part in the baseline.
    """
    return taken(values, actions) - (log_probs.exp() * values).sum(-1)


def explorer(actor: Actor, floor: float) -> Act:
    """The policy with its floor."""

    def act(observations: Tensor, masks: Tensor) -> Tensor:
        return draw(floored(actor(observations, masks), masks, floor).exp(), actor.generator)

    return act


def critic_inputs(rollout: Rollout) -> Tensor:
    """State, own observation, the others' actions one-hot (one's own left out) and own number, per decision."""
    agents, actions = rollout.joint.shape[-1], rollout.masks.shape[-1]
    others = F.one_hot(rollout.joint[rollout.cycle, rollout.game], actions).float()
    others[torch.arange(len(others)), rollout.agent] = 0
    number = F.one_hot(rollout.agent, agents).float()
    return torch.cat([rollout.states[rollout.cycle, rollout.game], rollout.observations, others.flatten(1), number], -1)


def floored(log_probs: Tensor, masks: Tensor, floor: float) -> Tensor:
    """Log-probabilities of (1 - floor) pi + floor * uniform over the legal actions."""
    if floor == 0:
        return log_probs
    mixed = (1 - floor) * log_probs.exp() + floor * masks / masks.sum(-1, keepdim=True)
    return torch.where(masks, mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log(), log_probs)
