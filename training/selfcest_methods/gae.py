"""`gae` estimates advantages of every agent by a learned value, after generalised advantage estimation (arXiv
1506.02438). If it works, the gradient has less variance than that of `rloo` where episodes have many turns.

    delta_t = V(h before turn t + 1) - V(h before turn t), after the last turn R - V;   A_t = sum_l lam^l delta_(t + l)

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Share
from selfcest_env.types import TurnKey
from selfcest_methods.value_head import FittedValues, FittedValuesOptions, ValueHead, features
from selfcest_training.credit.base import Advantage, Credit, Internals, Replayed


@dataclass(frozen=True)
class GaeOptions(FittedValuesOptions):
    lam: Share = 0.95


class Gae(FittedValues[ValueHead]):
    """Options: `lam` (default 0.95); `decay` and `ridge`, see `FittedValues`."""

    name: ClassVar[str] = "gae"
    formula: ClassVar[str] = "every agent: A_t = sum_l lam^l delta_(t + l), delta = V(next turn) - V, at its end R - V"
    source: ClassVar[str] = "Schulman et al. (arXiv 1506.02438)"

    Options = GaeOptions
    options: GaeOptions

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[Replayed], internals: Internals
    ) -> Sequence[Credit]:
        if not self.state.fitted:
            return [self.assign(group, found) for group, found in zip(groups, replayed, strict=True)]
        return [self._assign(group, internals) for group in groups]

    def _assign(self, group: EpisodeGroup, internals: Internals) -> Credit:
        advantage: dict[TurnKey, Advantage] = {}
        for episode in group.episodes:
            for agent in _acted(episode):
                values = self.state(features(episode, [agent], internals))
                delta = np.diff(values, append=episode.team_return)
                later = 0.0
                for turn in reversed(range(len(delta))):
                    later = float(delta[turn]) + self.options.lam * later
                    advantage[TurnKey(episode.episode_id, agent.agent_id, turn)] = later
        return Credit(advantage)

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        episodes = [episode for group in groups for episode in group.episodes if _acted(episode)]
        if not episodes:
            return
        returns = np.array([episode.team_return for episode in episodes for a in _acted(episode) for _ in a.turns])
        self.state.fit(np.concatenate([features(e, _acted(e), internals) for e in episodes]), returns)

    def initial_state(self) -> ValueHead:
        return self.new_head()


def _acted(episode: EpisodeRecord) -> list[AgentRecord]:
    return [agent for agent in episode.agents if agent.turns]
