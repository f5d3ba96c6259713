"""`wideseek` gives every agent of an episode the same weight in the loss, after WideSeek-R1 (arXiv 2602.04634). If it
works, training stays stable when the number of clones grows.

    A_t = A_k, with weight loss_denominator_tokens / (N_k * T_a), for every token t of agent a

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Positive
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import Credit, Replayed, broadcast
from selfcest_training.credit.grpo import Grpo


@dataclass(frozen=True)
class WideSeek(Grpo):
    """Options: those of `grpo`, and `loss_denominator_tokens` as the variant's `rl` has it (default 100)."""

    name: ClassVar[str] = "wideseek"
    formula: ClassVar[str] = (
        "A of grpo; a token weighs loss_denominator_tokens / (agents of the episode x tokens of its agent)"
    )
    source: ClassVar[str] = "WideSeek-R1, arXiv 2602.04634"

    loss_denominator_tokens: Positive = 100.0

    def check_constant(self, loss_denominator_tokens: float) -> None:
        """Its weights undo the loss's division. Raises `ConfigError` if that is by another constant."""
        if loss_denominator_tokens != self.loss_denominator_tokens:
            raise ConfigError(
                f"loss_denominator_tokens of wideseek is {self.loss_denominator_tokens:g} and that of the loss "
                f"{loss_denominator_tokens:g}; expected the same number"
            )

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        weight: dict[TurnKey, float] = {}
        for episode in group.episodes:
            tokens = {
                agent.agent_id: sum(len(turn.generation.token_ids) for turn in agent.turns) for agent in episode.agents
            }
            agents = sum(count > 0 for count in tokens.values())
            for key, _ in episode.turns():
                weight[key] = self.loss_denominator_tokens / (agents * tokens[key.agent_id])
        return Credit(broadcast(group, self.per_episode(group)), weight=weight)
