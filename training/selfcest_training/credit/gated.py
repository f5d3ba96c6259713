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

from selfcest_env.errors import ConfigError
from selfcest_env.record import AgentRecord, EpisodeGroup
from selfcest_env.types import Outcome, Role, TurnKey
from selfcest_training.credit.base import Advantage, Credit
from selfcest_training.credit.grpo import Grpo


@dataclass(frozen=True)
class Gated(Grpo):
    """Options: those of `grpo`, and `sides`: `positive` (default) or `both`."""

    sides: str = "positive"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sides not in ("positive", "both"):
            raise ConfigError(f"credit.options.sides is {self.sides!r}; expected 'positive' or 'both'")

    def assign(self, group: EpisodeGroup) -> Credit:
        broadcast = super().assign(group)
        advantage: dict[TurnKey, Advantage] = {}
        excluded: set[TurnKey] = set()
        num_clones = num_gated = 0
        for episode in group.episodes:
            for agent in episode.agents:
                keys = [TurnKey(episode.episode_id, agent.agent_id, turn) for turn in range(len(agent.turns))]
                num_clones += agent.role is Role.CLONE
                gated = agent.role is Role.CLONE and has_failed(agent) and self._gates(broadcast.advantage[keys[0]])
                num_gated += gated
                if gated:
                    excluded.update(keys)
                else:
                    advantage.update({key: broadcast.advantage[key] for key in keys})
        share = num_gated / num_clones if num_clones else 0.0
        return Credit(advantage, frozenset(excluded), {"gated_share": share})

    def _gates(self, advantage: Advantage) -> bool:
        assert isinstance(advantage, float)
        return self.sides == "both" or advantage >= 0


def has_failed(agent: AgentRecord) -> bool:
    """Whether a clone is one that gating looks at: no answer reached its parent, or a turn of its was malformed."""
    return agent.failed or any(turn.facts.outcome is Outcome.MALFORMED for turn in agent.turns)
