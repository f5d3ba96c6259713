"""`to_go`: the credit of a turn counts only the rewards of turns that it can influence.

    A_t = G_t - mean G_t of the other episodes that have such a turn,    G_t = R - sum of r_u over u not in D(t)

r_u is the contribution of turn u to the return, from terms with rewards per turn (`EpisodeRecord.by_turn`: prices,
process rewards). D(t) is t and all its descendants: later turns of its agent, the turns of clones that these spawned,
its ancestors' turns after the join, and the turns of clones that those spawned. If no other episode has the turn, the
baseline is mean R - sum of r_u, so the credit is `rloo`.

Source: reward to go, as in GPOMDP (Baxter & Bartlett 2001), along a tree instead of a line. Unbiased: given the history
before t, no turn outside D(t) depends on the text of t, because accounts are nested and a term by turn judges each turn
by its own agent's context. Compared with `rloo` it removes the noise of the siblings' prices and judgements.
Degenerate cases: without terms by turn it is `rloo`; a group of one is a config error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.types import ROOT, AgentId, TurnKey
from selfcest_training.credit.base import Advantage, Credit, CreditAssigner, Promise, ReplayRecords, leave_one_out


@dataclass(frozen=True)
class ToGo(CreditAssigner):
    """No options."""

    name: ClassVar[str] = "to_go"
    formula: ClassVar[str] = "A = G - mean G of the others, G = R without rewards of turns that it cannot affect"
    source: ClassVar[str] = "reward to go, Baxter & Bartlett 2001; along a tree"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = False

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        returns_to_go = [_compute_returns_to_go(episode) for episode in group.episodes]
        advantage: dict[TurnKey, Advantage] = {}
        for k, (episode, rloo_advantage) in enumerate(zip(group.episodes, leave_one_out(group), strict=True)):
            for key, _ in episode.turns():
                turn = key.agent_id, key.turn
                baselines = [returns[turn] for j, returns in enumerate(returns_to_go) if j != k and turn in returns]
                if baselines:
                    advantage[key] = returns_to_go[k][turn] - float(np.mean(baselines))
                else:
                    advantage[key] = rloo_advantage
        return Credit(advantage)


def _compute_returns_to_go(episode: EpisodeRecord) -> dict[tuple[AgentId, int], float]:
    """Compute G_t of every turn: the return without the rewards of turns that do not descend from it."""
    rewards = episode.returns_by_turn
    # The rewards of a turn, of its agent's later turns, and of all clones that these spawned.
    subtree: dict[tuple[AgentId, int], float] = {}
    # Agents are in tree order, so in reverse every clone comes before its parent.
    for agent in reversed(episode.agents):
        total = 0.0
        for index in reversed(range(len(agent.turns))):
            children = sum(subtree.get((child, 0), 0.0) for child in agent.turns[index].facts.children)
            total += rewards.get(TurnKey(episode.episode_id, agent.agent_id, index), 0.0) + children
            subtree[agent.agent_id, index] = total
    # The rewards of the turns that an agent's ancestors took after its join, and of all clones that these spawned.
    after_join: dict[AgentId, float] = {}
    for agent in episode.agents:
        if agent.parent_id is not None and agent.born_at is not None:
            parent_turns = subtree.get((agent.parent_id, agent.born_at + 1), 0.0)
            after_join[agent.agent_id] = parent_turns + after_join.get(agent.parent_id, 0)
    all_rewards = subtree[ROOT, 0] if episode.root.turns else 0.0
    returns_to_go: dict[tuple[AgentId, int], float] = {}
    for (agent_id, index), descendants in subtree.items():
        not_influenced = all_rewards - descendants - after_join.get(agent_id, 0.0)
        returns_to_go[agent_id, index] = episode.team_return - not_influenced
    return returns_to_go
