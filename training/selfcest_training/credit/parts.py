"""`parts`: the credit of a clone counts only the parts of the answer whose documents it was given.

    A_c = sum over parts p of c of (R_p - mean R_p of the other episodes) + (rest - mean rest of the other episodes)

R_p is the contribution of part p to the return, from a grader with `Grade.parts`. `rest` is the return without all
parts: prices, penalties, and terms of the answer as a whole. A part belongs to a clone if its key is in the clone's
`shared_context`. Root turns: `rloo`; a clone's credit is the share of it that the clone can change.

Source: factored rewards, as in Guestrin et al. 2002; difference rewards (Wolpert & Tumer 2002) where a clone's default
reply would only spoil its own parts. No replay: the counterfactual is in the grade.
Unbiased if a clone changes no parts but its own: the root copies every reply to its place independently of the others,
and no agent runs out of tokens because of another one. A root that misreads a reply because of another one biases it,
so it promises no more than bias. Degenerate cases: a grade without parts gives `rloo`; a clone without a document of a
part gets only the rest; a group of one is a config error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.record import EpisodeGroup
from selfcest_env.types import Role, TurnKey
from selfcest_training.credit.base import (
    Credit,
    CreditAssigner,
    Promise,
    ReplayRecords,
    broadcast,
    leave_one_out,
    subtract_mean_of_others,
)


@dataclass(frozen=True)
class Parts(CreditAssigner):
    """No options."""

    name: ClassVar[str] = "parts"
    formula: ClassVar[str] = "clone: A = its parts of R + R without all parts, each - mean of the others; root: rloo"
    source: ClassVar[str] = "factored rewards, Guestrin et al. 2002; grades by part"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = broadcast(group, leave_one_out(group))
        part_returns = [episode.returns_by_part for episode in group.episodes]
        part_keys: set[str] = set()
        for returns in part_returns:
            part_keys.update(returns)
        if not part_keys:
            return Credit(advantage)
        # Lists of one advantage per episode.
        part_advantages: dict[str, list[float]] = {}
        for part in part_keys:
            part_advantages[part] = subtract_mean_of_others([returns.get(part, 0.0) for returns in part_returns])
        rest_returns = []
        for episode, returns in zip(group.episodes, part_returns, strict=True):
            rest_returns.append(episode.team_return - sum(returns.values()))
        rest_advantages = subtract_mean_of_others(rest_returns)
        num_clones = 0
        num_clones_with_parts = 0
        for k, episode in enumerate(group.episodes):
            for agent in episode.agents:
                if agent.role is not Role.CLONE:
                    continue
                # A clone may be given a document twice.
                documents = dict.fromkeys(agent.shared_context)
                clone_parts = [part_advantages[document][k] for document in documents if document in part_keys]
                num_clones += 1
                num_clones_with_parts += bool(clone_parts)
                for turn in range(len(agent.turns)):
                    key = TurnKey(episode.episode_id, agent.agent_id, turn)
                    advantage[key] = sum(clone_parts) + rest_advantages[k]
        diagnostics = {"clones_with_parts": num_clones_with_parts / num_clones} if num_clones else {}
        return Credit(advantage, diagnostics=diagnostics)
