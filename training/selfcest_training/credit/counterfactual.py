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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.types import AgentId, Role, TurnKey
from selfcest_training.credit.base import Credit, CreditAssigner, Replayed, broadcast, leave_one_out
from selfcest_training.credit.chance import coin


@dataclass(frozen=True)
class Counterfactual(CreditAssigner, Checked):
    """Options: `samples`, replays per clone (default 1); `max_share` of the clones that get them (default 1); `paired`,
    with the join played once more for each of them (default false)."""

    samples: Count = 1
    max_share: Share = 1.0
    paired: bool = False

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return [
            replay
            for episode in group.episodes
            for start in self._starts(episode)
            for pair in self._pairs(group, episode, start)
            for replay in pair
            if replay is not None
        ]

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        found: dict[TurnKey, float] = {}
        for episode in group.episodes:
            for start in self._starts(episode):
                gaps = [
                    (episode if own is None else replayed[own]).team_return - replayed[other].team_return
                    for own, other in self._pairs(group, episode, start)
                ]
                if gaps:
                    found[start] = float(np.mean(gaps))
        credit = self.compare(found)
        for key in advantage:  # a turn's baseline is that of the last start before it, or its own
            starts = [replace(key, turn=turn) for turn in range(key.turn, -1, -1)]
            advantage[key] = next((credit[start] for start in starts if start in credit), advantage[key])
        return Credit(advantage)

    def compare(self, found: Mapping[TurnKey, float]) -> Mapping[TurnKey, float]:
        """Credit by the turn that replays start from, from the returns less the mean of the replays."""
        return found

    def _starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        """Turns of clones that replays start from."""
        for agent in replayed_clones(episode, self.max_share):
            for turn in self.starts(agent):
                yield TurnKey(episode.episode_id, agent.agent_id, turn)

    def _pairs(
        self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey
    ) -> Iterator[tuple[Replay | None, Replay]]:
        """What is compared with each counterfactual, `None` for the episode as it was played."""
        for sample, what in enumerate(self.interventions(group, episode, start)):
            own = self._own(episode, start.agent_id, sample)
            yield own, Replay.of(episode.episode_id, {start.agent_id: what}, sample)

    def _own(self, episode: EpisodeRecord, clone: AgentId, sample: int) -> Replay | None:
        agent = episode.by_id[clone]
        assert agent.parent_id is not None
        assert agent.born_at is not None
        parent, joined = agent.parent_id, agent.born_at + 1
        if not self.paired or joined >= len(episode.by_id[parent].turns):  # it ended at the call
            return None
        return Replay.of(episode.episode_id, {parent: Intervention.again(joined)}, sample)

    def starts(self, agent: AgentRecord) -> Iterable[int]:
        """Turns of a clone that replays start from, the first among them."""
        return (0,)

    def interventions(self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey) -> Sequence[Intervention]:
        """What is done in each of the replays that start from a turn."""
        raise NotImplementedError


def replayed_clones(episode: EpisodeRecord, share: float) -> Iterator[AgentRecord]:
    """The share of an episode's clones that have replays; one without a token to act with has nothing to credit."""
    for agent in episode.agents:
        if agent.role is Role.CLONE and agent.turns and coin(share, episode, agent.agent_id):
            yield agent
