"""`critic` credits a clone's turns by learned values before and after them: COMA's critic for language models. If it
works, clones learn as with `coma`, at no replayed tokens.

    clones: A_t = Q(h after turn t) - V(h before turn t)     roots: rloo

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.types import Role, TurnKey
from selfcest_methods.value_head import FittedValues, ValueHead, features
from selfcest_training.credit.base import Credit, Internals, Replayed, broadcast, leave_one_out


@dataclass
class Heads:
    """The value before a turn, and after it."""

    value: ValueHead
    action_value: ValueHead

    def state_dict(self) -> Mapping[str, Any]:
        return {"value": self.value.state_dict(), "action_value": self.action_value.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value.load_state_dict(state["value"])
        self.action_value.load_state_dict(state["action_value"])


class Critic(FittedValues[Heads]):
    """Options: `decay` and `ridge`, see `FittedValues`."""

    name: ClassVar[str] = "critic"
    formula: ClassVar[str] = "clones: A = Q(after the turn) - V(before it), learned; roots: rloo"
    source: ClassVar[str] = "Foerster et al. (arXiv 1705.08926)"

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[Replayed], internals: Internals
    ) -> Sequence[Credit]:
        return [self._assign(group, internals) for group in groups]

    def _assign(self, group: EpisodeGroup, internals: Internals) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        if not self.state.value.fitted:
            return Credit(advantage)
        errors, returns = [], []
        for episode in group.episodes:
            clones = _clones(episode)
            keys = [TurnKey(episode.episode_id, c.agent_id, t) for c in clones for t in range(len(c.turns))]
            if keys:
                after = self.state.action_value(features(episode, clones, internals, after=True))
                before = self.state.value(features(episode, clones, internals))
                advantage.update(zip(keys, (after - before).tolist(), strict=True))
                errors += (episode.team_return - after).tolist()
                returns += [episode.team_return] * len(keys)
        if not errors:
            return Credit(advantage)
        missed = {"critic_error": float(np.mean(np.square(errors))), "return_variance": float(np.var(returns))}
        return Credit(advantage, diagnostics=missed)

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        found = [(episode, _clones(episode)) for group in groups for episode in group.episodes]
        found = [(episode, clones) for episode, clones in found if clones]
        if not found:
            return
        returns = np.array([e.team_return for e, clones in found for c in clones for _ in c.turns])
        for head, after in ((self.state.value, False), (self.state.action_value, True)):
            head.fit(np.concatenate([features(*pair, internals, after=after) for pair in found]), returns)

    def initial_state(self) -> Heads:
        return Heads(self.new_head(), self.new_head())


def _clones(episode: EpisodeRecord) -> list[AgentRecord]:
    return [agent for agent in episode.agents if agent.role is Role.CLONE and agent.turns]
