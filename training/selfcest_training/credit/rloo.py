"""`rloo`: the credit of every turn is the return minus the mean return of the group's other episodes.

    A_k = R_k - sum_{j != k} R_j / (K - 1)

Source: Ahmadian et al. 2024 (arXiv 2402.14740); Kool et al. 2019. Unbiased: the baseline of an episode depends on other
episodes only. For a clone its variance grows with all other causes of the return.
Degenerate cases: equal returns give 0 everywhere; a group of one is a config error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup
from selfcest_training.credit.base import Credit, CreditAssigner, Promise, ReplayRecords, broadcast, leave_one_out


@dataclass(frozen=True)
class Rloo(CreditAssigner):
    """No options."""

    name: ClassVar[str] = "rloo"
    formula: ClassVar[str] = "A = R - mean R of the other episodes, every turn"
    source: ClassVar[str] = "Ahmadian et al. 2024, arXiv 2402.14740"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = False

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        return Credit(broadcast(group, leave_one_out(group)))
