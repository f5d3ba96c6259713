"""`grpo`: the credit of every turn is the group-relative advantage of its episode.

    A_k = (R_k - mean R) / (max(std R, std_floor) + epsilon)

Source: Shao et al. 2024 (arXiv 2402.03300), eq. for outcome supervision; std with n - 1. The usual form for parity is
`std_floor: 0, epsilon: 1e-4`. `scale: false` omits the division, which gives (K - 1) / K times leave-one-out.

Bias: the division by the group's std changes the weights of tasks. In a group of correct answers with a token price it
inflates differences of cost; the floor (for rewards in [0, 1]) bounds this. Degenerate cases: equal returns give 0; a
group of one is a config error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, NotNegative
from selfcest_training.credit.base import Credit, CreditAssigner, Promise, ReplayRecords, broadcast, group_advantages


@dataclass(frozen=True)
class Grpo(CreditAssigner, Checked):
    """Credits every turn by the standardised return of its episode.

    Attributes:
        std_floor: lower bound of the divisor; 0 is the usual form.
        epsilon: number that is added to the divisor; 1e-4 is the usual form.
        scale: whether to divide; without it the credit is (K - 1) / K times that of `rloo`, for K episodes.
    """

    name: ClassVar[str] = "grpo"
    formula: ClassVar[str] = "A = (R - mean R) / (max(std R, std_floor) + epsilon), every turn"
    source: ClassVar[str] = "Shao et al. 2024, arXiv 2402.03300"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    std_floor: NotNegative = 0.25
    epsilon: NotNegative = 0.0
    scale: bool = True

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        return Credit(broadcast(group, self.per_episode(group)))

    def per_episode(self, group: EpisodeGroup) -> list[float]:
        """Compute the advantage of each episode."""
        return group_advantages(group, scale=self.scale, std_floor=self.std_floor, epsilon=self.epsilon)
