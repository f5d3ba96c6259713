"""What `difference` and `coma` share: a clone's return against the mean return of replays that leave its turns open.

Why the baseline is unbiased. Let X be everything in the episode that does not descend from the first turn of clone c:
what it was asked and granted, its siblings, its ancestors' turns up to the call. A replay keeps X and plays the rest
anew on its own random streams, so its return is independent of what c did, given X. A number that is independent of an
action given its context adds nothing to E[grad log pi(action) x advantage]. That holds for every turn of c (each is
drawn given X and c's own earlier turns), so one baseline serves them all, and for a clone of a clone, whose X holds its
parent's turns up to the call. It would not hold if the replay kept a later turn of the factual episode, or what c
spent: both depend on c's actions.

The claim is about the `constant` denominator. With `episode_mean` the weight of an episode depends on its actions.

`max_share` bounds the cost: each clone has replays with that probability, by a coin keyed by (episode seed, agent). A
share and not a number of clones: under a fixed number, a clone that caused more clones would lower its own chance, and
the baseline would depend on its actions. Clones without replays, and roots, get `rloo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.types import AgentId, Role
from selfcest_training.credit.base import Credit, Replayed, broadcast, leave_one_out
from selfcest_training.credit.chance import coin


@dataclass(frozen=True)
class Counterfactual(Checked):
    """Options: `samples`, replays per clone (default 1), and `max_share` of the clones that get them (default 1)."""

    intervention: ClassVar[Intervention]

    samples: Count = 1
    max_share: Share = 1.0

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return [replay for episode in group.episodes for c in self._chosen(episode) for replay in self._of(episode, c)]

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        found: dict[tuple[str, AgentId], float] = {}
        for episode in group.episodes:
            for clone in self._chosen(episode):
                returns = [replayed[replay].team_return for replay in self._of(episode, clone)]
                found[episode.episode_id, clone] = episode.team_return - float(np.mean(returns))
        credit = self.compare(found)
        for key in advantage:
            if (who := (key.episode_id, key.agent_id)) in credit:
                advantage[key] = credit[who]
        return Credit(advantage)

    def compare(self, found: Mapping[tuple[str, AgentId], float]) -> Mapping[tuple[str, AgentId], float]:
        """Credit of clones by episode and agent, from their returns less the mean of their replays."""
        return found

    def _chosen(self, episode: EpisodeRecord) -> Iterator[AgentId]:
        """Clones that get replays; one that was born without a token to act with has nothing to credit."""
        for agent in episode.agents:
            if agent.role is Role.CLONE and agent.turns and coin(self.max_share, episode, agent.agent_id):
                yield agent.agent_id

    def _of(self, episode: EpisodeRecord, clone: AgentId) -> list[Replay]:
        changes = {clone: self.intervention}
        return [Replay.of(episode.episode_id, changes, sample) for sample in range(self.samples)]
