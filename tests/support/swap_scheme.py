"""`swap`: what the team would have got, had the clone replied what it replied in other episodes of the group.

    A_c = R(tau) - (1/n) sum_i R(replay_i of tau with c's reply := that of c in another episode);   root turns: rloo

The other episodes' replies are draws of the clone that have been paid for; only what follows the join is played anew.
Episodes are taken in turn, beginning with the next one of the group; a clone that failed there stands for itself: its
parent reads the default reply.

Source: the counterfactual baseline of COMA (Foerster et al. 2018, arXiv 1705.08926) by resampling, with resamples that
exist. Unbiased, see `counterfactual`: what other episodes replied does not depend on c. It is the better a baseline the
more alike the calls of the group are: where another episode's clone of that place was asked something else, its reply
is another question's.
Degenerate cases: a clone that no other episode has gets `rloo`; with prices on tokens, the price of its own stays in.
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
class Swap(Counterfactual):
    """Options: `samples`, at most (default 1); `max_share` (default 1); `paired` (default false)."""

    name: ClassVar[str] = "swap"
    formula: ClassVar[str] = "clone: A = R - mean R of replays with its reply in other episodes; root: rloo"
    source: ClassVar[str] = "Foerster et al. 2018, arXiv 1705.08926, by the group's own samples"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = True

    def interventions(self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey) -> Sequence[Intervention]:
        own = group.episodes.index(episode)
        others = (*group.episodes[own + 1 :], *group.episodes[:own])
        found = [agent for other in others if (agent := other.by_id.get(start.agent_id)) is not None and agent.turns]
        return [
            Intervention.DEFAULT if agent.failed or agent.reply is None else Intervention.replace(agent.reply)
            for agent in found[: self.samples]
        ]
