"""What `difference` and `coma` share: a clone's return against the mean return of replays that leave its turns open.

Why the baseline is unbiased. Let X be everything in the episode that does not descend from the first turn of clone c:
what it was asked and granted, its siblings, its ancestors' turns up to the call. A replay keeps X and plays the rest
anew on its own random streams, so its return is independent of what c did, given X. A number that is independent of an
action given its context adds nothing to E[grad log pi(action) x advantage]. That holds for every turn of c (each is
drawn given X and c's own earlier turns), so one baseline serves them all, and for a clone of a clone, whose X holds its
parent's turns up to the call. It would not hold if the replay kept a later turn of the factual episode, or what c
spent: both depend on c's actions.

The claim is about the `constant` denominator. With `episode_mean` the weight of an episode depends on its actions.

`paired` compares with the end of the episode played once more: in the place of R stands the mean of replays in which
the parent goes on anew from the join, with the clone's own reply, on the same streams as the counterfactuals. Its
expectation given what c did is that of R, so nothing becomes biased; what the join happens to make of equal replies
cancels. It costs a join more per call and sample.

`max_share` bounds the cost: each clone has replays with that probability, by a coin keyed by (episode seed, agent). A
share and not a number of clones: under a fixed number, a clone that caused more clones would lower its own chance, and
the baseline would depend on its actions. Clones without replays, and roots, get `rloo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.types import AgentId, Role
from selfcest_training.credit.base import Credit, Replayed, broadcast, leave_one_out
from selfcest_training.credit.chance import coin


@dataclass(frozen=True)
class Counterfactual(Checked):
    """Options: `samples`, replays per clone (default 1); `max_share` of the clones that get them (default 1); `paired`,
    with the join played once more for each of them (default false)."""

    samples: Count = 1
    max_share: Share = 1.0
    paired: bool = False

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return [
            replay
            for episode in group.episodes
            for clone in self._chosen(episode)
            for pair in self._pairs(group, episode, clone)
            for replay in pair
            if replay is not None
        ]

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        found: dict[tuple[str, AgentId], float] = {}
        for episode in group.episodes:
            for clone in self._chosen(episode):
                gaps = [
                    (episode if own is None else replayed[own]).team_return - replayed[other].team_return
                    for own, other in self._pairs(group, episode, clone)
                ]
                if gaps:
                    found[episode.episode_id, clone] = float(np.mean(gaps))
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

    def _pairs(
        self, group: EpisodeGroup, episode: EpisodeRecord, clone: AgentId
    ) -> Iterator[tuple[Replay | None, Replay]]:
        """What is compared with each counterfactual of a clone, `None` for the episode as it was played."""
        for sample, what in enumerate(self.interventions(group, episode, clone)):
            yield self._own(episode, clone, sample), Replay.of(episode.episode_id, {clone: what}, sample)

    def _own(self, episode: EpisodeRecord, clone: AgentId, sample: int) -> Replay | None:
        agent = episode.by_id[clone]
        assert agent.parent_id is not None
        assert agent.born_at is not None
        parent, joined = agent.parent_id, agent.born_at + 1
        if not self.paired or joined >= len(episode.by_id[parent].turns):  # it ended at the call
            return None
        return Replay.of(episode.episode_id, {parent: Intervention.again(joined)}, sample)

    def interventions(self, group: EpisodeGroup, episode: EpisodeRecord, clone: AgentId) -> Sequence[Intervention]:
        """What is done to a clone in each of its replays."""
        raise NotImplementedError
