"""`gae` estimates the advantages of every agent with a learned value, as a chain of its own turns.

Source: generalised advantage estimation (Schulman et al., arXiv 1506.02438), without discounting. In the paper an
episode has one agent. Here every agent of the tree has a chain of its own, which ends in the team return. Details:
docs/methods.md.

    delta_t = V(h before turn t + 1) - V(h before turn t), after the last turn R - V;   A_t = sum_l lam^l delta_(t + l)

Expected effect: a gradient of less variance than that of `rloo` where episodes have many turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Share
from selfcest_env.types import TurnKey
from selfcest_methods.value_head import FittedValues, FittedValuesOptions, ValueHead, build_features
from selfcest_training.credit.base import Advantage, Credit, Internals, ReplayRecords


@dataclass(frozen=True)
class GaeOptions(FittedValuesOptions):
    """Options in addition to those of `FittedValues`.

    Attributes:
        lam: lambda, the decay of later differences per turn.
    """

    lam: Share = 0.95


class Gae(FittedValues[ValueHead]):
    """Credits every turn by generalised advantages, from a value head."""

    name: ClassVar[str] = "gae"
    formula: ClassVar[str] = "every agent: A_t = sum_l lam^l delta_(t + l), delta = V(next turn) - V, at its end R - V"
    source: ClassVar[str] = "Schulman et al. (arXiv 1506.02438)"

    Options = GaeOptions
    options: GaeOptions

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[ReplayRecords], internals: Internals
    ) -> Sequence[Credit]:
        if not self.state.is_fitted:
            return super().assign_step(groups, replayed, internals)
        return [self._assign(group, internals) for group in groups]

    def _assign(self, group: EpisodeGroup, internals: Internals) -> Credit:
        advantage: dict[TurnKey, Advantage] = {}
        for episode in group.episodes:
            for agent in _get_acting_agents(episode):
                values = self.state(build_features(episode, [agent], internals))
                # The episode has one reward, the team return, at the end of every agent's chain.
                deltas = np.diff(values, append=episode.team_return).tolist()
                turn_advantage = 0.0
                for turn in reversed(range(len(deltas))):
                    turn_advantage = deltas[turn] + self.options.lam * turn_advantage
                    advantage[TurnKey(episode.episode_id, agent.agent_id, turn)] = turn_advantage
        return Credit(advantage)

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        features = []
        returns: list[float] = []
        for group in groups:
            for episode in group.episodes:
                agents = _get_acting_agents(episode)
                if agents:
                    features.append(build_features(episode, agents, internals))
                    returns += [episode.team_return] * len(features[-1])
        if features:
            self.state.fit(np.concatenate(features), np.array(returns))

    def initial_state(self) -> ValueHead:
        return self.new_head()


def _get_acting_agents(episode: EpisodeRecord) -> list[AgentRecord]:
    return [agent for agent in episode.agents if agent.turns]
