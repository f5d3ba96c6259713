"""`sharp` adds a clone's marginal contribution and the rewards of its own turns to the return of the team.

Source: SHARP (arXiv 2602.08335): a global broadcast reward, a Shapley-based marginal credit by masking an agent, and a
tool-process reward, with advantages normalised per agent across a group. Only the abstract could be read: the weights
of the three, the normalisation's constants and a planner's marginal credit are choices of this project. Here agents are
normalised by role, as clones of different episodes do not correspond, and a root has no marginal credit, as no episode
is left without it. Details: docs/methods.md.

    r = broadcast R + marginal (R - R without the agent) + process P,   P: what `term` gives for the agent's own turns
    A = (r - mean r of the role) / (std r of the role + 1e-6)

Expected effect: of two clones of one episode, the one without which the return would be lower gets more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward
from selfcest_env.structure import Checked, NotNegative
from selfcest_env.types import Role
from selfcest_methods.roles import (
    AgentKey,
    compare_with_peers,
    give_to_turns,
    list_agents,
    remove_agents,
    sum_own_turns,
)
from selfcest_training.credit.base import Credit, CreditAssigner, Promise, ReadsTerm, ReplayRecords

_EPSILON = 1e-6


@dataclass(frozen=True)
class Sharp(CreditAssigner, ReadsTerm, Checked):
    """Credits an agent by a sum of three rewards, standardised over its role in the group.

    Attributes:
        broadcast: weight of the team's return.
        marginal: weight of the return minus the return without the clone.
        process: weight of the rewards of the agent's own turns by `term`.
        term: reward term with a reward for each turn that judges calls, for `process` only.
    """

    name: ClassVar[str] = "sharp"
    formula: ClassVar[str] = "A = r standardised by role, r = R + (R - R without the clone) + its turns' `term`"
    source: ClassVar[str] = "SHARP, arXiv 2602.08335, from its abstract"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    broadcast: NotNegative = 1.0
    marginal: NotNegative = 1.0
    process: NotNegative = 1.0
    term: str = "malformed"

    def check_reward(self, reward: Reward) -> None:
        if self.process:
            super().check_reward(reward)

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        if not self.marginal:
            return []
        return [remove_agents(episode, agent.agent_id) for agent, episode in list_agents(group) if _is_clone(agent)]

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        rewards: dict[AgentKey, float] = {}
        for agent, episode in list_agents(group):
            reward = self.broadcast * episode.team_return
            if self.process:
                reward += self.process * sum_own_turns(episode, agent.agent_id, self.term)
            if self.marginal and _is_clone(agent):
                without = replayed[remove_agents(episode, agent.agent_id)].team_return
                reward += self.marginal * (episode.team_return - without)
            rewards[agent] = reward
        advantages = compare_with_peers(rewards, lambda agent: agent.role, epsilon=_EPSILON)
        return Credit(give_to_turns(group, advantages))


def _is_clone(agent: AgentKey) -> bool:
    return agent.role is Role.CLONE
