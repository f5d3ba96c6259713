"""`critic` credits a clone's turn by the difference of two learned values, before and after it.

Source: COMA's critic (Foerster et al., arXiv 1705.08926, section 4), for language models. In the paper the expectation
over actions is a sum. Here the alternatives are all texts, so a second value head learns the expectation. Details:
docs/methods.md.

    clones: A_t = Q(h after turn t) - V(h before turn t)     roots: rloo

Expected effect: clones learn as with `coma`, without replayed tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.types import Role, TurnKey
from selfcest_methods.value_head import FittedValues, ValueHead, build_features
from selfcest_training.credit.base import Credit, Internals, ReplayRecords, broadcast, leave_one_out


@dataclass
class CriticHeads:
    """Two value heads.

    Attributes:
        value: V, of the state before a turn.
        action_value: Q, of the state after a turn.
    """

    value: ValueHead
    action_value: ValueHead

    def state_dict(self) -> Mapping[str, Any]:
        return {"value": self.value.state_dict(), "action_value": self.action_value.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value.load_state_dict(state["value"])
        self.action_value.load_state_dict(state["action_value"])


class Critic(FittedValues[CriticHeads]):
    """Credits the turns of clones by two value heads, and those of roots by `rloo`."""

    name: ClassVar[str] = "critic"
    formula: ClassVar[str] = "clones: A = Q(after the turn) - V(before it), learned; roots: rloo"
    source: ClassVar[str] = "Foerster et al. (arXiv 1705.08926)"

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[ReplayRecords], internals: Internals
    ) -> Sequence[Credit]:
        return [self._assign(group, internals) for group in groups]

    def _assign(self, group: EpisodeGroup, internals: Internals) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        if not self.state.value.is_fitted:
            return Credit(advantage)
        errors: list[float] = []
        returns: list[float] = []  # team return for each turn of a clone
        for episode in group.episodes:
            clones = _get_acting_clones(episode)
            if not clones:
                continue
            after = self.state.action_value(build_features(episode, clones, internals, after=True))
            before = self.state.value(build_features(episode, clones, internals))
            keys = _get_turn_keys(episode, clones)
            advantage.update(zip(keys, (after - before).tolist(), strict=True))
            errors += (episode.team_return - after).tolist()
            returns += [episode.team_return] * len(keys)
        if not errors:
            return Credit(advantage)
        diagnostics = {"critic_error": float(np.mean(np.square(errors))), "return_variance": float(np.var(returns))}
        return Credit(advantage, diagnostics=diagnostics)

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        before = []
        after = []
        returns: list[float] = []
        for group in groups:
            for episode in group.episodes:
                clones = _get_acting_clones(episode)
                if clones:
                    before.append(build_features(episode, clones, internals))
                    after.append(build_features(episode, clones, internals, after=True))
                    returns += [episode.team_return] * len(_get_turn_keys(episode, clones))
        if returns:
            self.state.value.fit(np.concatenate(before), np.array(returns))
            self.state.action_value.fit(np.concatenate(after), np.array(returns))

    def initial_state(self) -> CriticHeads:
        return CriticHeads(self.new_head(), self.new_head())


def _get_acting_clones(episode: EpisodeRecord) -> list[AgentRecord]:
    return [agent for agent in episode.agents if agent.role is Role.CLONE and agent.turns]


def _get_turn_keys(episode: EpisodeRecord, agents: Sequence[AgentRecord]) -> list[TurnKey]:
    """Return the keys of all turns of these agents, in the order of the rows of `build_features`."""
    keys: list[TurnKey] = []
    for agent in agents:
        keys += [TurnKey(episode.episode_id, agent.agent_id, turn) for turn in range(len(agent.turns))]
    return keys
