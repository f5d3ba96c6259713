"""`parts`: a clone answers for the parts of the answer whose documents it was handed, and for no other.

    A_c = sum over parts p of c of (R_p - mean R_p of the other episodes) + (rest - mean rest of the other episodes)

R_p is what part p adds to the return, by a grader that says so (`Grade.parts`); `rest` is the return without all parts:
prices, penalties, terms of the answer as a whole. A part is a clone's if its key is among the clone's `shared_context`.
Root turns: `rloo`, of which the above is the share that a clone can move.

Source: factored rewards, as in Guestrin et al. 2002; difference rewards (Wolpert & Tumer 2002) where a clone's default
reply would only spoil its own parts. No replay: the counterfactual is in the grade.
Unbiased where a clone moves no part but its own: each root copies replies to their places without regard to the others,
and nobody's tokens run out because of somebody else's. A root that misreads because of another reply biases it, hence
the promise. Degenerate cases: a grade without parts is `rloo`; a clone that was handed no document of a part gets the
rest alone; of a group of one a config error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup
from selfcest_env.types import Role
from selfcest_training.credit.base import (
    Credit,
    CreditAssigner,
    Promise,
    Replayed,
    against_others,
    broadcast,
    leave_one_out,
)


@dataclass(frozen=True)
class Parts(CreditAssigner):
    """No options."""

    name: ClassVar[str] = "parts"
    formula: ClassVar[str] = "clone: A = its parts of R and what is no part, each - mean of the others; root: rloo"
    source: ClassVar[str] = "factored rewards, Guestrin et al. 2002; grades by part"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        by_part = [episode.returns_by_part for episode in group.episodes]
        keys = dict.fromkeys(key for returns in by_part for key in returns)
        own = {key: against_others([returns.get(key, 0.0) for returns in by_part]) for key in keys}
        pairs = zip(group.episodes, by_part, strict=True)
        rest = against_others([episode.team_return - sum(returns.values()) for episode, returns in pairs])
        clones = owned = 0
        for k, episode in enumerate(group.episodes):
            for agent in episode.agents:
                if agent.role is Role.CLONE and keys:
                    parts = [own[key][k] for key in dict.fromkeys(agent.shared_context) if key in own]
                    clones, owned = clones + 1, owned + bool(parts)
                    key_of = (key for key, _ in episode.turns() if key.agent_id == agent.agent_id)
                    advantage.update(dict.fromkeys(key_of, sum(parts) + rest[k]))
        return Credit(advantage, diagnostics={"clones_with_parts": owned / clones} if clones else {})
