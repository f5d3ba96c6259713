"""What a credit is: a function from a batch of games to one number per decision.

A credit looks at nothing but the batch, what replays of it bring, and a critic that it keeps and trains itself. The
critic's steps are the credit's own: were they the loss's, the credit would change with the loss. What the policy does
with the numbers is the loss's affair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from selfcest_baselines.counterfactual import Cost, Recording
from selfcest_baselines.games import Games
from selfcest_baselines.networks import Actor
from selfcest_baselines.rollout import Rollout
from selfcest_env.structure import Checked


@dataclass(frozen=True)
class Start:
    """What a credit builds its own networks from.

    Attributes:
        games: that will be played; they have been started, so that sizes can be read off.
        hidden: widths of the policy's hidden layers.
        max_gradient: norm to which gradients are cut.
        generator: of all that is drawn; its initial seed is the run's.
    """

    games: Games
    hidden: tuple[int, ...]
    max_gradient: float
    generator: torch.Generator


@dataclass(frozen=True)
class Batch:
    """One episode of every game, just played.

    Attributes:
        actor: the policy that played them.
        group_size: neighbouring games with the same problem.
        recording: what replays need; `None` unless the credit `replays`.
    """

    rollout: Rollout
    actor: Actor
    group_size: int
    recording: Recording | None = None


class Credited(NamedTuple):
    advantages: Tensor  # [B], one per row of the rollout; those of rows that are not learnable are not read
    cost: Cost = Cost()  # of the replays that it took


Assign = Callable[[Batch], Credited]


class Credit(Checked, ABC):
    """Settings of a credit; what it learns lives in what `start` returns.

    Attributes:
        least_group: how many episodes of the same problem it needs to compare.
        central: whether it reads states.
        replays: whether it plays games again, which only the batch kernel can do, and only if nothing is cut.
    """

    least_group: ClassVar[int] = 1
    central: ClassVar[bool] = False
    replays: ClassVar[bool] = False

    @abstractmethod
    def start(self, start: Start) -> Assign:
        """A fresh run: what gives credit to one batch after another."""


def leave_one_out(returns: Tensor, group_size: int) -> Tensor:
    """A return less the mean of the others of its group, [G] to [G]: unbiased."""
    groups = returns.view(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) * (group_size / (group_size - 1))).flatten()


def per_agent(batch: Batch, clones: Tensor, cost: Cost) -> Credited:
    """Credit of clones [G, N], all decisions of one alike, and for roots their return, leave one out."""
    rollout = batch.rollout
    credit = clones.clone()
    credit[:, 0] = leave_one_out(rollout.returns, batch.group_size)
    return Credited(credit[rollout.game, rollout.agent], cost)
