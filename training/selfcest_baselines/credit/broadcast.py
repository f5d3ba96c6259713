"""`broadcast`: every decision of an episode, root's and clones', gets the same.

    A = (R - mean R) / max(std R, std_floor)     over episodes of the same problem

Source: GRPO, Shao et al. 2024 (arXiv 2402.03300). Assumes groups of at least two. No value and no counterfactual:
whichever clone was wrong, all pay, and one clone's share of the signal falls as 1 / number of clones. The floor keeps
groups that differ by little more than their cost from being blown up. Division by the standard deviation is biased;
without it (`std_floor: null`) the expected gradient is (K - 1) / K of the exact one in groups of K, whose mean holds
one's own return.
Degenerate cases: a group of equal returns gets 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from selfcest_baselines.credit.base import Assign, Batch, Credit, Credited, Start
from selfcest_env.stored import stored_as
from selfcest_env.structure import Positive


@stored_as("Broadcast", std_floor="std_floor")
@dataclass(frozen=True)
class Broadcast(Credit):
    """Options: `std_floor`, null for no division."""

    least_group: ClassVar[int] = 2
    std_floor: Positive | None = 0.25

    def start(self, start: Start) -> Assign:
        return self.assign

    def assign(self, batch: Batch) -> Credited:
        advantages = group_advantages(batch.rollout.returns, batch.group_size, self.std_floor)
        return Credited(advantages[batch.rollout.game])


def group_advantages(returns: Tensor, group_size: int, std_floor: float | None) -> Tensor:
    """[G] to [G]; neighbours form groups, and a standard deviation is that of a sample (n - 1)."""
    groups = returns.view(-1, group_size)
    centered = groups - groups.mean(1, keepdim=True)
    if std_floor is not None:
        centered = centered / groups.std(1, keepdim=True).clamp(min=std_floor)
    return centered.flatten()
