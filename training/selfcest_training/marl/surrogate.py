"""The policy's step that PPO and the group-relative methods share: the clipped surrogate over a few passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from selfcest_env.structure import Above, Checked, Count, NotEmpty, NotNegative, Positive
from selfcest_training.marl.games import Games
from selfcest_training.marl.networks import Actor, descend, entropy, taken
from selfcest_training.marl.rollout import Rollout
from selfcest_training.marl.settings import check_groups


@dataclass(frozen=True)
class SurrogateConfig(Checked):
    """Settings of the clipped surrogate.

    Attributes:
        episodes: per update.
        group_size: episodes that play the same problem.
        hidden: widths of the policy's hidden layers.
        passes: over the batch, each in `minibatches` steps.
        clip: how far a probability ratio may leave 1.
        entropy: weight of the entropy bonus.
    """

    least_group: ClassVar[int] = 2  # to be compared with one another
    episodes: Count = 256
    group_size: Count = 8
    hidden: Annotated[tuple[Count, ...], NotEmpty()] = (128, 128)
    learning_rate: Positive = 1e-3
    passes: Count = 4
    minibatches: Count = 4
    clip: Positive = 0.2
    entropy: NotNegative = 0.01
    max_gradient: Annotated[float, Above(0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_groups(self, self.least_group)


def start(games: Games, seed: int, config: SurrogateConfig) -> tuple[Actor, torch.optim.Optimizer]:
    """A fresh policy that fits the games."""
    games.reset()
    view = games.view()
    generator = torch.Generator().manual_seed(seed)
    actor = Actor(view.observations.shape[-1], view.masks.shape[-1], config.hidden, generator)
    return actor, torch.optim.Adam(actor.parameters(), config.learning_rate)


def clipped_surrogate(log_probs: Tensor, behavior: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """min(ρ A, clip(ρ, 1 ± clip) A) with ρ = exp(log_probs - behavior), all [B] (Schulman et al. 2017)."""
    ratio = (log_probs - behavior).exp()
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def minibatches(rollout: Rollout, config: SurrogateConfig, generator: torch.Generator) -> Iterator[Tensor]:
    """Rows of every minibatch of every pass; only those that are learnable."""
    learnable = rollout.learnable.nonzero()[:, 0]
    for _ in range(config.passes):
        order = learnable[torch.randperm(len(learnable), generator=generator)]
        yield from filter(len, order.tensor_split(config.minibatches))


def improve(
    actor: Actor, optimizer: torch.optim.Optimizer, rollout: Rollout, advantages: Tensor, config: SurrogateConfig
) -> None:
    """Climb the surrogate. A sum over decisions divided by a constant: long episodes count in full."""
    with torch.no_grad():
        behavior = taken(actor(rollout.observations, rollout.masks), rollout.actions)
    for rows in minibatches(rollout, config, actor.generator):
        log_probs = actor(rollout.observations[rows], rollout.masks[rows])
        new = taken(log_probs, rollout.actions[rows])
        gain = clipped_surrogate(new, behavior[rows], advantages[rows], config.clip)
        gain = gain + config.entropy * entropy(log_probs)
        descend(optimizer, -gain.sum() * config.minibatches / config.episodes, config.max_gradient)
