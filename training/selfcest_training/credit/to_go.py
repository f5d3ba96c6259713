"""`to_go`: a turn answers for the rewards of turns that it can have moved, and for no other.

    A_t = G_t - mean G_t of the other episodes that have such a turn,    G_t = R - sum of r_u over u not in D(t)

r_u is what turn u adds to the return, by terms that say so (`EpisodeRecord.by_turn`: prices, process rewards). D(t) is
t and all that descends from it: later turns of its agent, what that agent's clones did from then on, its ancestors'
turns after the join and what those spawned. Of a turn that no other episode has, the baseline is mean R - sum of r_u,
which makes it `rloo`.

Source: reward to go, as in GPOMDP (Baxter & Bartlett 2001), along a tree in the place of a line. Unbiased: given what
came before t, no turn outside D(t) depends on what was written in t, by nested accounts and because a term by turn
judges each by what its own agent had seen. What is saved is the noise of the siblings' prices and judgements.
Degenerate cases: without terms by turn, `rloo`; of a group of one a config error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.types import ROOT, AgentId, TurnKey
from selfcest_training.credit.base import Advantage, Credit, CreditAssigner, Promise, Replayed, leave_one_out


@dataclass(frozen=True)
class ToGo(CreditAssigner):
    """No options."""

    name: ClassVar[str] = "to_go"
    formula: ClassVar[str] = "every turn: A = G - mean G of the others, G: R without what turns add that it cannot move"
    source: ClassVar[str] = "reward to go, Baxter & Bartlett 2001; along a tree"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = False

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        unmoved = [_unmoved(episode) for episode in group.episodes]
        to_go = [
            {place: episode.team_return - fixed for place, fixed in own.items()}
            for episode, own in zip(group.episodes, unmoved, strict=True)
        ]
        advantage: dict[TurnKey, Advantage] = {}
        for k, (episode, plain) in enumerate(zip(group.episodes, leave_one_out(group), strict=True)):
            for key, _ in episode.turns():
                place = key.agent_id, key.turn
                others = [returns[place] for j, returns in enumerate(to_go) if j != k and place in returns]
                advantage[key] = to_go[k][place] - float(np.mean(others)) if others else plain
        return Credit(advantage)


def _unmoved(episode: EpisodeRecord) -> Mapping[tuple[AgentId, int], float]:
    """Per turn what the turns that do not descend from it add to the return."""
    rewards = episode.returns_by_turn
    below: dict[tuple[AgentId, int], float] = {}  # a turn with its agent's later ones and all that these spawned
    for agent in reversed(episode.agents):  # clones before their parents
        rest = 0.0
        for index in reversed(range(len(agent.turns))):
            children = sum(below.get((child, 0), 0.0) for child in agent.turns[index].facts.children)
            rest += rewards.get(TurnKey(episode.episode_id, agent.agent_id, index), 0.0) + children
            below[agent.agent_id, index] = rest
    after: dict[AgentId, float] = {}  # what the ancestors of an agent did after its join
    for agent in episode.agents:  # parents before their clones
        if agent.parent_id is not None and agent.born_at is not None:
            after[agent.agent_id] = below.get((agent.parent_id, agent.born_at + 1), 0.0) + after.get(agent.parent_id, 0)
    whole = below[ROOT, 0] if episode.root.turns else 0.0
    return {place: whole - rest - after.get(place[0], 0.0) for place, rest in below.items()}
