"""Broadcast GRPO (Shao et al. 2024): every decision of an episode, root's and clones', gets the same credit.

    A = (R - mean R) / max(std R, floor)     over episodes of the same problem

No value network and no counterfactual: whichever clone was wrong, all pay. The floor keeps groups that differ by little
more than their cost from being blown up; division by the standard deviation is biased.

    python -m selfcest_training.marl broadcast --task chain
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from selfcest_env.structure import Positive
from selfcest_training.marl.games import KernelGames
from selfcest_training.marl.progress import Progress
from selfcest_training.marl.rollout import collect
from selfcest_training.marl.surrogate import SurrogateConfig, improve, start


@dataclass(frozen=True)
class Config(SurrogateConfig):
    """Settings of broadcast GRPO, beside those of the surrogate."""

    std_floor: Positive = 0.25


def learn(games: KernelGames, seed: int, config: Config) -> Iterator[Progress]:
    actor, optimizer = start(games, seed, config)
    decisions = 0
    while True:
        rollout = collect(games, actor.sample)
        advantages = group_advantages(rollout.returns, games.group_size, config.std_floor)[rollout.game]
        improve(actor, optimizer, rollout, advantages, config)
        decisions += rollout.decisions
        yield Progress(decisions, actor)


def group_advantages(returns: Tensor, group_size: int, std_floor: float) -> Tensor:
    """[G] to [G]; neighbours form groups, and a standard deviation is that of a sample (n - 1)."""
    groups = returns.view(-1, group_size)
    centered = groups - groups.mean(1, keepdim=True)
    return (centered / groups.std(1, keepdim=True).clamp(min=std_floor)).flatten()


def leave_one_out(returns: Tensor, group_size: int) -> Tensor:
    """A return less the mean of the others of its group, [G] to [G]: unbiased."""
    groups = returns.view(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) * (group_size / (group_size - 1))).flatten()
