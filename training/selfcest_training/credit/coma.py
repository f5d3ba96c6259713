"""`coma`: the return minus the mean return of replays in which the clone's turns are sampled again.

    A_c = R(tau) - (1/n) sum_i R(replay_i of tau with c's turns resampled);   root turns: rloo

The replay keeps the clone's context, its grant and its siblings. The clone's turns, and everything that descends from
them, are sampled again. All turns of c share the baseline. With `per_turn` each turn has its own baseline, from replays
that keep the turns before it, as in VinePPO (Kazemnejad et al. 2024, arXiv 2410.01679).

Source: the counterfactual baseline of COMA, Foerster et al. 2018 (arXiv 1705.08926), estimated by sampling instead of a
centralised critic. Unbiased, see `counterfactual`. With n = 1 and a noisy end of the episode its variance can exceed
that of `rloo`, as the baseline adds its own variance divided by n.
Degenerate cases: an episode without clones gets `rloo`; a clone that cannot matter gets zero in expectation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import Promise
from selfcest_training.credit.counterfactual import Counterfactual


@dataclass(frozen=True)
class Coma(Counterfactual):
    """Credits clones by replays in which their turns are sampled again.

    Attributes:
        per_turn: whether every turn of a clone has its own replays, which keep its earlier turns.
    """

    name: ClassVar[str] = "coma"
    formula: ClassVar[str] = "clone: A = R - mean R of replays with its turns resampled; root: rloo"
    source: ClassVar[str] = "Foerster et al. 2018, arXiv 1705.08926, baseline by sampling"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = True

    per_turn: bool = False

    def starts(self, agent: AgentRecord) -> Iterable[int]:
        return range(len(agent.turns)) if self.per_turn else (0,)

    def interventions(self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey) -> Sequence[Intervention]:
        return [Intervention.resample(start.turn)] * self.samples
