"""`difference`: the return minus the mean return of replays in which the clone gives a default reply.

    A_c = R(tau) - (1/n) sum_i R(replay_i of tau with c's reply := default);   root turns: rloo

In the replay c generates nothing, is charged nothing, and has no subtree. Everything that descends from its first turn
is played again.

Source: difference rewards, Wolpert & Tumer 2002; named as a baseline in arXiv 2602.13262. Unbiased, see
`counterfactual`. Its variance grows with the difference between the default reply and the clone's usual replies.
Degenerate cases: an episode without clones gets `rloo`; a clone whose reply is not used gets minus the price of its
tokens, or zero if tokens have no price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import Promise
from selfcest_training.credit.counterfactual import Counterfactual


@dataclass(frozen=True)
class Difference(Counterfactual):
    """Credits clones by replays without their reply."""

    name: ClassVar[str] = "difference"
    formula: ClassVar[str] = "clone: A = R - mean R of replays with its reply set to the default; root: rloo"
    source: ClassVar[str] = "difference rewards, Wolpert & Tumer 2002"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = True

    def interventions(self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey) -> Sequence[Intervention]:
        return [Intervention.DEFAULT] * self.samples
