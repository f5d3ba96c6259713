"""`difference`: what the team would have got, had the clone only given a default reply.

    A_c = R(tau) - (1/n) sum_i R(replay_i of tau with c's reply := default);   root turns: rloo

In the replay c generates nothing, is charged nothing, its subtree does not exist, and everything that descends from its
first turn is played anew.

Source: difference rewards, Wolpert & Tumer 2002; as a baseline named in arXiv 2602.13262. Unbiased, see
`counterfactual`; how large the variance is depends on how far the default is from what the clone usually brings.
Degenerate cases: an episode without clones is `rloo`; a clone whose reply nobody uses gets minus the price of its own
tokens, and zero if they are not priced.
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
    """Options: `samples` (default 1), `max_share` (default 1), `paired` (default false)."""

    name: ClassVar[str] = "difference"
    formula: ClassVar[str] = "clone: A = R - mean R of replays with its reply set to the default; root: rloo"
    source: ClassVar[str] = "difference rewards, Wolpert & Tumer 2002"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = True

    def interventions(self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey) -> Sequence[Intervention]:
        return [Intervention.DEFAULT] * self.samples
