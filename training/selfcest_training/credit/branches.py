"""`branches`: a clone's turns against alternatives that were drawn in the same place, and all of them trained on.

    A_i = R_i - mean_{j != i} R_j   for c's turns in the episode, i = 0, and in n replays that resample them,
                                    each with weight 1 / (n + 1)

Root turns have `rloo`.

`coma` pays for the same replays and throws them away once it has their returns. Here each is a sample of its own: the
n + 1 draws of the clone are alike given all that does not descend from its first turn, so the mean of their gradients,
each against the others' mean return, is the gradient.

Source: C3, contextual counterfactual credit (arXiv 2603.06859): alternatives at a frozen context, leave-one-out among
them, all trained; there for two agents of fixed roles. Unbiased, see `counterfactual`. Clones of clones are credited
where they were born, in the episode, and not in replays of their parents. Degenerate cases: an episode without clones
is `rloo`; a clone without replays (`max_share`) gets `rloo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import Credit, Promise, Replayed, against_others, broadcast, leave_one_out
from selfcest_training.credit.counterfactual import replayed_clones


@dataclass(frozen=True)
class Branches(Checked):
    """Options: `samples`, alternatives per clone (default 1); `max_share` of the clones that have them (default 1)."""

    name: ClassVar[str] = "branches"
    formula: ClassVar[str] = (
        "clone, n alternatives, all trained at 1 / (n + 1): A = R - mean R of the others; root: rloo"
    )
    source: ClassVar[str] = "C3, arXiv 2603.06859"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = True

    samples: Count = 1
    max_share: Share = 1.0

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return [
            replay
            for episode in group.episodes
            for clone in replayed_clones(episode, self.max_share)
            for replay in self._of(episode, clone)
        ]

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        advantage, weight = broadcast(group, leave_one_out(group)), dict[TurnKey, float]()
        for episode in group.episodes:
            for clone in replayed_clones(episode, self.max_share):
                draws = [episode, *(replayed[replay] for replay in self._of(episode, clone))]
                for record, value in zip(draws, against_others([draw.team_return for draw in draws]), strict=True):
                    turns = [key for key, _ in record.turns() if key.agent_id == clone.agent_id]
                    advantage.update(dict.fromkeys(turns, value))
                    weight.update(dict.fromkeys(turns, 1 / len(draws)))
        return Credit(advantage, weight=weight)

    def _of(self, episode: EpisodeRecord, clone: AgentRecord) -> list[Replay]:
        changes = {clone.agent_id: Intervention.RESAMPLE}
        return [Replay.of(episode.episode_id, changes, sample) for sample in range(self.samples)]
