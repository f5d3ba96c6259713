"""`aristocrat`: a clone against a mixture of itself drawn again and of nothing at all.

    A_c = R - [(1 - absence) mean R(c resampled) + absence mean R(c's reply := default)];   root turns: rloo

With `absence: 0` it is `coma`, with 1 `difference`. Unbiased for the same reason: each part of the mixture is played
without what the clone did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup
from selfcest_env.replay import Intervention, Replay
from selfcest_env.types import AgentId, Role
from selfcest_training.credit import Credit, CreditAssigner, Promise, ReplayRecords, broadcast, leave_one_out


@dataclass(frozen=True)
class Aristocrat(CreditAssigner):
    """Options: `absence`, the weight of the default reply (default 0.5)."""

    name: ClassVar[str] = "aristocrat"
    formula: ClassVar[str] = "clone: A = R - mixture of its resampled and its default return; root: rloo"
    source: ClassVar[str] = "an example of the selfcest documentation"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = True

    absence: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.absence <= 1:
            raise ConfigError(f"absence is {self.absence!r}; expected a weight between 0 and 1")

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return [
            Replay.of(episode.episode_id, {agent.agent_id: what})
            for episode in group.episodes
            for agent in episode.agents
            if agent.role is Role.CLONE and agent.turns
            for what in (Intervention.DEFAULT, Intervention.RESAMPLE)
        ]

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        for episode in group.episodes:

            def value(clone: AgentId, what: Intervention, name: str = episode.episode_id) -> float:
                return replayed[Replay.of(name, {clone: what})].team_return

            for key, _ in episode.turns():
                if episode.by_id[key.agent_id].role is Role.CLONE:
                    present = value(key.agent_id, Intervention.RESAMPLE)
                    absent = value(key.agent_id, Intervention.DEFAULT)
                    baseline = (1 - self.absence) * present + self.absence * absent
                    advantage[key] = episode.team_return - baseline
        return Credit(advantage)
