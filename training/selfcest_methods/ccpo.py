"""`ccpo` credits clones by a bounded counterfactual, and roots by their return with and without clones.

Source: CCPO (arXiv 2603.21563), version 1, read in its abstract and its released code (`CCPO-v1` at ea50d3a), for one
agent that thinks and one that answers. Here every clone is a thinker and the root answers; an episode without clones is
its own counterfactual, and the root answers alone when the clones of its first call are absent. Version 2 of the paper
has no history: there the thinker's reward is R plus 0.2 times whether it helped or hurt. Details: docs/methods.md.

    clone: r = tanh(alpha (D - mean D) / std D),   D = R - R without the clone
    root:  r = g (R - mean R) / std R + (1 - g) (S - mean S) / std S,   S = R without clones,
           g = sigmoid(eta mean D / std D)
    A = (r - mean r of the role) / (std r of the role + 1e-6) within the group

Means and deviations of D, R and S are moving averages over earlier steps; before `min_samples` clones were seen, r is D
or R itself.

Expected effect: a clone that only rides on the answers of others gets less than one whose removal lowers the return.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from selfcest_env.plugin import PlainState, Stateful
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.structure import Checked, Count, NotNegative, Share
from selfcest_env.types import AgentId, Role
from selfcest_methods.roles import AgentKey, compare_with_peers, give_to_turns, list_agents, remove_agents
from selfcest_training.credit.base import Credit, CreditAssigner, Internals, Promise, ReplayRecords

_EPSILON = 1e-6


@dataclass
class MovingMoments(PlainState):
    """Moving averages of the mean and the variance of a number within a step; the first step sets them."""

    mean: float = 0.0
    variance: float = 1.0
    count: int = 0

    @property
    def std(self) -> float:
        return math.sqrt(self.variance) if self.variance > _EPSILON else 1.0

    def standardise(self, value: float) -> float:
        return (value - self.mean) / (self.std + _EPSILON)

    def observe(self, values: Sequence[float], decay: float) -> None:
        if not values:
            return
        keep = decay if self.count else 0.0
        self.mean = keep * self.mean + (1 - keep) * float(np.mean(values))
        self.variance = keep * self.variance + (1 - keep) * float(np.var(values))
        self.count += len(values)


@dataclass
class CcpoHistory:
    """What earlier steps say of contributions D, returns R and returns without clones S.

    Attributes:
        pending: contributions and returns without clones of episodes whose step is not yet learned from, by episode.
            They are not stored: credit and learning are parts of one step.
    """

    contributions: MovingMoments = field(default_factory=MovingMoments)
    returns: MovingMoments = field(default_factory=MovingMoments)
    returns_alone: MovingMoments = field(default_factory=MovingMoments)
    pending: dict[str, tuple[list[float], float]] = field(default_factory=dict)

    def state_dict(self) -> Mapping[str, Any]:
        moments = {"contributions": self.contributions, "returns": self.returns, "returns_alone": self.returns_alone}
        return {name: value.state_dict() for name, value in moments.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.contributions.load_state_dict(state["contributions"])
        self.returns.load_state_dict(state["returns"])
        self.returns_alone.load_state_dict(state["returns_alone"])


@dataclass(frozen=True)
class CcpoOptions(Checked):
    """Options of `Ccpo`.

    Attributes:
        alpha: steepness of the bound on contributions.
        eta: steepness of the gate between the returns with and without clones.
        decay: weight of earlier steps in the moving averages.
        min_samples: number of clones that must have been seen before the averages are used.
    """

    alpha: NotNegative = 1.0
    eta: NotNegative = 1.0
    decay: Share = 0.99
    min_samples: Count = 10


class Ccpo(Stateful[CcpoHistory], CreditAssigner):
    """Credits clones and roots by rewards of their own, standardised over their role in the group."""

    name: ClassVar[str] = "ccpo"
    formula: ClassVar[str] = (
        "A = r standardised by role; clone: r = tanh of standardised R - R without it; root: R with and without clones"
    )
    source: ClassVar[str] = "CCPO, arXiv 2603.21563, version 1 by its released code"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    Options = CcpoOptions
    options: CcpoOptions

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        replays: dict[Replay, None] = {}
        for agent, episode in list_agents(group):
            if agent.role is Role.CLONE:
                replays[remove_agents(episode, agent.agent_id)] = None
        for episode in group.episodes:
            if called := _list_first_called(episode):
                replays[remove_agents(episode, *called)] = None
        return list(replays)

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        rewards: dict[AgentKey, float] = {}
        for episode in group.episodes:
            contributions = {}
            for agent in episode.agents:
                if agent.role is Role.CLONE and agent.turns:
                    without = replayed[remove_agents(episode, agent.agent_id)].team_return
                    contributions[agent.agent_id] = episode.team_return - without
            called = _list_first_called(episode)
            alone = replayed[remove_agents(episode, *called)].team_return if called else episode.team_return
            self.state.pending[episode.episode_id] = (list(contributions.values()), alone)
            for agent_id, contribution in contributions.items():
                rewards[AgentKey(episode.episode_id, agent_id)] = self._shape_contribution(contribution)
            if episode.root.turns:
                root = AgentKey(episode.episode_id, episode.root.agent_id)
                rewards[root] = self._mix_returns(episode.team_return, alone)
        advantages = compare_with_peers(rewards, lambda agent: agent.role, epsilon=_EPSILON)
        return Credit(give_to_turns(group, advantages))

    def _has_history(self) -> bool:
        return self.state.contributions.count >= self.options.min_samples

    def _shape_contribution(self, contribution: float) -> float:
        if not self._has_history():
            return contribution
        return math.tanh(self.options.alpha * self.state.contributions.standardise(contribution))

    def _mix_returns(self, team_return: float, alone: float) -> float:
        if not self._has_history():
            return team_return
        history = self.state
        ratio = history.contributions.mean / (history.contributions.std + _EPSILON)
        gate = 1 / (1 + math.exp(-self.options.eta * min(20.0, max(-20.0, ratio))))
        return gate * history.returns.standardise(team_return) + (1 - gate) * history.returns_alone.standardise(alone)

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        contributions: list[float] = []
        returns: list[float] = []
        returns_alone: list[float] = []
        for group in groups:
            for episode in group.episodes:
                # An episode whose credit was never asked for has no counterfactuals to learn from.
                if episode.episode_id in self.state.pending:
                    own, alone = self.state.pending[episode.episode_id]
                    contributions += own
                    returns.append(episode.team_return)
                    returns_alone.append(alone)
        self.state.pending.clear()
        self.state.contributions.observe(contributions, self.options.decay)
        self.state.returns.observe(returns, self.options.decay)
        self.state.returns_alone.observe(returns_alone, self.options.decay)

    def initial_state(self) -> CcpoHistory:
        return CcpoHistory()


def _list_first_called(episode: EpisodeRecord) -> list[AgentId]:
    """List the clones of the root's first call that took a turn."""
    for turn in episode.root.turns:
        if called := [child for child in turn.facts.children if episode.by_id[child].turns]:
            return called
    return []
