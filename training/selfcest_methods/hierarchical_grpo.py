"""`hierarchical_grpo` compares the clones of an episode with each other, and roots with the group's other roots.

Source: prime-rl, `orchestrator/algo/hierarchical_grpo.py` (read at 559b447), for one proposer and several solvers of
its problem. There a trace has the reward that its environment gives it. Here that is the return of the team, or with
`own` the return without the rewards of other agents' turns. Details: docs/methods.md.

    A = r - mean r of the peers, which include the agent;   peers of a root: all roots of the group;
    peers of a clone: all clones of its episode, or with `clones: group` of the group

With `clones: group` and `scale: true` it is the broadcast of rLLM (`trainer/algorithms/advantage.py` at 9beb6e0), which
normalises trajectories of one name by a mean and a population std over all of them. An episode counts there once for
every clone.

Expected effect: a clone's advantage does not move with the return of other episodes, so it does not pay for the
difficulty of its objective. With one return for the whole team it is 0: siblings have equal returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, OneOf
from selfcest_env.types import Role
from selfcest_methods.roles import AgentKey, compare_with_peers, give_to_turns, list_agents, sum_own_turns
from selfcest_training.credit.base import Credit, CreditAssigner, Promise, ReplayRecords

_EPSILON = 1e-6  # that of rLLM


@dataclass(frozen=True)
class HierarchicalGrpo(CreditAssigner, Checked):
    """Credits an agent by its reward less the mean of its peers.

    Attributes:
        clones: peers of a clone: the clones of its `episode`, or those of the whole `group`.
        own: whether an agent's reward leaves out the rewards of other agents' turns.
        scale: whether to divide by the population's standard deviation of the peers, plus 1e-6.
    """

    name: ClassVar[str] = "hierarchical_grpo"
    formula: ClassVar[str] = "A = R - mean R of the peers: a root's are all roots, a clone's those of its episode"
    source: ClassVar[str] = "prime-rl, hierarchical_grpo; rLLM with `clones: group` and `scale: true`"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    clones: Annotated[str, OneOf("episode", "group")] = "episode"
    own: bool = False
    scale: bool = False

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        rewards: dict[AgentKey, float] = {}
        for agent, episode in list_agents(group):
            rewards[agent] = episode.team_return
            if self.own:
                others = sum(episode.returns_by_turn.values()) - sum_own_turns(episode, agent.agent_id)
                rewards[agent] -= others
        epsilon = _EPSILON if self.scale else None
        return Credit(give_to_turns(group, compare_with_peers(rewards, self._get_peers, ddof=0, epsilon=epsilon)))

    def _get_peers(self, agent: AgentKey) -> object:
        if agent.role is Role.CLONE and self.clones == "episode":
            return agent.episode_id
        return agent.role
