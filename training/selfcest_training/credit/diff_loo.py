"""`diff_loo`: a clone's difference reward minus the mean for the same clone in the group's other episodes.

    D_c = R(tau) - (1/n) sum_i R(replay_i of tau with c's reply := default)
    A_c = D_c - mean of D_c over the other episodes that have it;   root turns: rloo

The other episodes give a baseline for this clone without another replay. `difference` lacks this baseline: where the
default reply is bad, it rewards every clone, because any reply is better.

Source: difference rewards, Wolpert & Tumer 2002, with the leave-one-out baseline of Kool et al. 2019 per clone.
Unbiased: `difference` is, see `counterfactual`, and the mean is over other episodes only. Degenerate cases: a clone
that no other episode has gets `difference`; an episode without clones gets `rloo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.types import AgentId, TurnKey
from selfcest_training.credit.difference import Difference


@dataclass(frozen=True)
class DiffLoo(Difference):
    """Credits clones as `difference`, minus the mean of the same clone in the other episodes."""

    name: ClassVar[str] = "diff_loo"
    formula: ClassVar[str] = "clone: A = D - mean D of the same clone in other episodes, D of difference; root: rloo"
    # The differences of other episodes enter its credit, so it is not zero.
    null_player: ClassVar[bool] = False
    source: ClassVar[str] = "Wolpert & Tumer 2002, against leave-one-out as in Kool et al. 2019"

    def compute_credit(self, differences: Mapping[TurnKey, float]) -> dict[TurnKey, float]:
        by_clone: dict[AgentId, list[float]] = {}
        for start, difference in differences.items():
            by_clone.setdefault(start.agent_id, []).append(difference)
        credit: dict[TurnKey, float] = {}
        for start, difference in differences.items():
            same_clone = by_clone[start.agent_id]
            num_others = len(same_clone) - 1
            mean_of_others = (sum(same_clone) - difference) / num_others if num_others else 0.0
            credit[start] = difference - mean_of_others
        return credit
