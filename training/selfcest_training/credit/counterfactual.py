"""The base of `difference` and `coma`: an episode's return minus the mean return of replays without a clone's turns.

A replay keeps everything that does not descend from the clone's first turn and plays the rest again on its own random
streams. So its return is independent of the clone's actions, given the history before them, and the baseline is
unbiased with the `constant` denominator. With `episode_mean` the weight of an episode depends on its actions.
docs/credit.md has the argument, and the reasons for the options `paired` and `max_share`. Clones without replays, and
roots, get `rloo`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.structure import Checked, Count, Share
from selfcest_env.types import AgentId, Role, TurnKey
from selfcest_training.credit.base import Credit, CreditAssigner, ReplayRecords, broadcast, leave_one_out
from selfcest_training.credit.chance import flip_coin


@dataclass(frozen=True)
class Counterfactual(CreditAssigner, Checked):
    """Base of schemes that compare an episode with replays.

    Attributes:
        samples: number of replays per clone.
        max_share: share of the clones that are replayed.
        paired: whether the mean return of equally many replays from the join on replaces the episode's return.
    """

    samples: Count = 1
    max_share: Share = 1.0
    paired: bool = False

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        replays: list[Replay] = []
        for episode in group.episodes:
            for start in self._list_starts(episode):
                for factual, counterfactual in self._list_pairs(group, episode, start):
                    if factual is not None:
                        replays.append(factual)
                    replays.append(counterfactual)
        return replays

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        differences: dict[TurnKey, float] = {}
        for episode in group.episodes:
            for start in self._list_starts(episode):
                samples = []
                for factual, counterfactual in self._list_pairs(group, episode, start):
                    record = episode if factual is None else replayed[factual]
                    samples.append(record.team_return - replayed[counterfactual].team_return)
                if samples:
                    differences[start] = float(np.mean(samples))
        credit = self.compute_credit(differences)
        for key in advantage:
            # The baseline of a turn is that of the last start at or before it, so a clone's later turns share it.
            for turn in range(key.turn, -1, -1):
                start = replace(key, turn=turn)
                if start in credit:
                    advantage[key] = credit[start]
                    break
        return Credit(advantage)

    def compute_credit(self, differences: Mapping[TurnKey, float]) -> Mapping[TurnKey, float]:
        """Compute the credit of each turn that replays start from, from its return minus the mean of the replays."""
        return differences

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        """List the turns of clones that replays start from."""
        for agent in select_clones(episode, self.max_share):
            for turn in self.starts(agent):
                yield TurnKey(episode.episode_id, agent.agent_id, turn)

    def _list_pairs(
        self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey
    ) -> Iterator[tuple[Replay | None, Replay]]:
        """List pairs of a factual and a counterfactual replay. `None` is the episode as it was played."""
        for sample, intervention in enumerate(self.interventions(group, episode, start)):
            factual = self._replay_join(episode, start.agent_id, sample)
            yield factual, Replay.of(episode.episode_id, {start.agent_id: intervention}, sample)

    def _replay_join(self, episode: EpisodeRecord, clone: AgentId, sample: int) -> Replay | None:
        """The replay that plays the end again from the join after the clone's call; `None` unless `paired`."""
        agent = episode.by_id[clone]
        assert agent.parent_id is not None
        assert agent.born_at is not None
        join_turn = agent.born_at + 1
        # The parent may have ended at the call, without a turn after the join.
        has_join = join_turn < len(episode.by_id[agent.parent_id].turns)
        if not self.paired or not has_join:
            return None
        return Replay.of(episode.episode_id, {agent.parent_id: Intervention.again(join_turn)}, sample)

    def starts(self, agent: AgentRecord) -> Iterable[int]:
        """Return the turns of a clone that replays start from. The first turn must be one of them."""
        return (0,)

    def interventions(self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey) -> Sequence[Intervention]:
        """Return the intervention of each replay that starts from a turn."""
        raise NotImplementedError


def select_clones(episode: EpisodeRecord, share: float) -> Iterator[AgentRecord]:
    """Select the share of an episode's clones that have replays. A clone without turns has nothing to credit."""
    for agent in episode.agents:
        if agent.role is Role.CLONE and agent.turns and flip_coin(share, episode, agent.agent_id):
            yield agent
