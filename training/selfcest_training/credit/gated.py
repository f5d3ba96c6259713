"""`gated`: as `grpo`, but a failed clone takes no part in the loss of an episode that went well.

    A_clone = A_root;   a failed clone is excluded when A >= 0 and keeps its negative advantage when A < 0

A clone has failed when it did not end by an answer, or when one of its turns was malformed. A failed clone under a good
episode would be reinforced for failing; under a bad one it deserves the blame that its siblings get.
`sides: both` excludes a failed clone always: the rollout gating of the paper's Figure 2 (arXiv 2602.13262), where gated
clones do not take part in backpropagation.

Biased by construction, safe in sign. Degenerate case: without failed clones it is `grpo`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from selfcest_env.record import AgentRecord, EpisodeGroup
from selfcest_env.types import Outcome, Role
from selfcest_training.credit.base import Credit, Replayed, broadcast
from selfcest_training.credit.grpo import Grpo


@dataclass(frozen=True)
class Gated(Grpo):
    """Options: those of `grpo`, and `sides`: `positive` (default) or `both`."""

    name: ClassVar[str] = "gated"
    formula: ClassVar[str] = "as grpo; a failed clone is excluded when A >= 0 (sides: both: always)"
    source: ClassVar[str] = "rollout gating of arXiv 2602.13262, made safe in sign"

    sides: Literal["positive", "both"] = "positive"

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        advantages = self.per_episode(group)
        clones = [
            (episode, agent, advantage)
            for episode, advantage in zip(group.episodes, advantages, strict=True)
            for agent in episode.agents
            if agent.role is Role.CLONE
        ]
        gated = {
            (episode.episode_id, agent.agent_id)
            for episode, agent, advantage in clones
            if has_failed(agent) and (self.sides == "both" or advantage >= 0)
        }
        everyone = broadcast(group, advantages)
        excluded = frozenset(key for key in everyone if (key.episode_id, key.agent_id) in gated)
        kept = {key: value for key, value in everyone.items() if key not in excluded}
        return Credit(kept, excluded, {"gated_share": len(gated) / len(clones) if clones else 0.0})


def has_failed(agent: AgentRecord) -> bool:
    """Whether a clone is one that gating looks at: no answer reached its parent, or a turn of its was malformed."""
    return agent.failed or any(turn.facts.outcome is Outcome.MALFORMED for turn in agent.turns)
