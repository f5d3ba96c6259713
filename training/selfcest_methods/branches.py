"""`branches` credits a clone's turns against alternatives drawn in the same place, and trains on all of them, after C3
(arXiv 2603.06859). If it works, the gradient has less variance than that of `coma` for the same replayed tokens.

    A_i = R_i - mean_{j != i} R_j   for c's turns in the episode, i = 0, and in n replays that resample them,
                                    each with weight 1 / (n + 1)

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.types import ROOT, AgentId, TurnKey
from selfcest_training.credit.base import (
    Credit,
    CreditAssigner,
    Promise,
    Replayed,
    TurnCounts,
    broadcast,
    leave_one_out,
    subtract_mean_of_others,
)
from selfcest_training.credit.counterfactual import select_clones


@dataclass(frozen=True)
class Branches(CreditAssigner, Checked):
    """Options: `samples`, alternatives per clone (default 1); `max_share` of the clones that have them (default 1);
    `nested`, clones that are born in alternatives are credited there too (default false; of all clones)."""

    name: ClassVar[str] = "branches"
    formula: ClassVar[str] = (
        "clone, n alternatives, all trained at 1 / (n + 1): A = R - mean R of the others; root: rloo"
    )
    source: ClassVar[str] = "C3, arXiv 2603.06859"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = True

    samples: Count = 1
    max_share: Share = 1.0
    nested: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nested and self.max_share < 1:
            raise ConfigError(f"max_share is {self.max_share} and nested true; expected a max_share of 1 with nested")

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return [
            replay
            for episode in group.episodes
            for clone in select_clones(episode, self.max_share)
            for replay in self._of(episode.episode_id, clone.agent_id)
        ]

    def more_replays(self, episode: EpisodeRecord, turn_counts: TurnCounts) -> Sequence[Replay]:
        return [
            replay
            for clone in select_clones(episode, self.max_share if self.nested else 0.0)
            for first in self._of(episode.episode_id, clone.agent_id)
            for agent_id, turns in turn_counts[first].items()
            if agent_id.parent == clone.agent_id and turns
            for replay in self._of(str(first), agent_id)
        ]

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        advantage, weight = broadcast(group, leave_one_out(group)), dict[TurnKey, float]()

        def credit(born_in: EpisodeRecord, clone: AgentId, share: float) -> list[EpisodeRecord]:
            alternatives = [replayed[replay] for replay in self._of(born_in.episode_id, clone)]
            draws = [born_in, *alternatives]
            for record, value in zip(draws, subtract_mean_of_others([draw.team_return for draw in draws]), strict=True):
                turns = [key for key, _ in record.turns() if key.agent_id == clone]
                advantage.update(dict.fromkeys(turns, value))
                weight.update(dict.fromkeys(turns, share / len(draws)))
            return alternatives

        per_draw = 1 / (1 + self.samples) if self.nested else 1.0
        for episode in group.episodes:
            for clone in select_clones(episode, self.max_share):
                alternatives = credit(episode, clone.agent_id, 1.0 if clone.parent_id == ROOT else per_draw)
                for record in alternatives if self.nested else ():
                    for agent in record.agents:
                        if agent.parent_id == clone.agent_id and agent.turns:
                            credit(record, agent.agent_id, per_draw)
        return Credit(advantage, weight=weight)

    def _of(self, name: str, clone: AgentId) -> list[Replay]:
        """Alternatives to a clone's turns in the episode, or the replay, of this id."""
        return [Replay.of(name, {clone: Intervention.RESAMPLE}, sample) for sample in range(self.samples)]
