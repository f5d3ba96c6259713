"""`diff_loo`: a clone's difference reward against the same clone's difference rewards in the group's other episodes.

    D_c = R(tau) - (1/n) sum_i R(replay_i of tau with c's reply := default)
    A_c = D_c - mean over the other episodes that have D_c of theirs;   root turns: rloo

What a clone in this place usually brings is known from the other episodes without another replay. `difference` lacks
that: where the default reply is bad, every clone that is there at all looks good.

Source: difference rewards, Wolpert & Tumer 2002, with the leave-one-out baseline of Kool et al. 2019 per clone.
Unbiased: `difference` is, see `counterfactual`, and the mean is made of other episodes alone. Degenerate cases: a clone
that no other episode has is `difference`; an episode without clones is `rloo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.types import AgentId, TurnKey
from selfcest_training.credit.difference import Difference


@dataclass(frozen=True)
class DiffLoo(Difference):
    """Options: those of `difference`."""

    name: ClassVar[str] = "diff_loo"
    formula: ClassVar[str] = "clone: A = D - mean D of the same clone in other episodes, D of difference; root: rloo"
    null_player: ClassVar[bool] = False  # what the same clone was worth in other episodes comes in
    source: ClassVar[str] = "Wolpert & Tumer 2002, against leave-one-out as in Kool et al. 2019"

    def compare(self, found: Mapping[TurnKey, float]) -> dict[TurnKey, float]:
        by_clone: dict[AgentId, list[float]] = {}
        for start, difference in found.items():
            by_clone.setdefault(start.agent_id, []).append(difference)

        def others(clone: AgentId, own: float) -> float:
            every = by_clone[clone]
            return (sum(every) - own) / (len(every) - 1) if len(every) > 1 else 0.0

        return {start: own - others(start.agent_id, own) for start, own in found.items()}
