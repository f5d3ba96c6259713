"""`wideseek` gives every agent of an episode the same weight in the loss.

Source: WideSeek-R1 (arXiv 2602.04634), its mean on the level of agents and of tokens. The weight is the product of the
factors `agent_level` and `turn_level` of its released code. Details: docs/methods.md.

    A_t = A_k, with weight loss_denominator_tokens / (N_k * T_a), for every token t of agent a
    N_k: agents of episode k that took a turn;   T_a: generated tokens of agent a

Expected effect: training stays stable when the number of clones grows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Positive
from selfcest_env.types import AgentId, TurnKey
from selfcest_training.credit.base import Credit, ReplayRecords, broadcast
from selfcest_training.credit.grpo import Grpo


@dataclass(frozen=True)
class WideSeek(Grpo):
    """Credits every turn as `grpo`, with a weight per agent.

    Attributes:
        loss_denominator_tokens: must be equal to that of `rl`.
    """

    name: ClassVar[str] = "wideseek"
    formula: ClassVar[str] = (
        "A of grpo; a token weighs loss_denominator_tokens / (agents of the episode x tokens of its agent)"
    )
    source: ClassVar[str] = "WideSeek-R1, arXiv 2602.04634"

    loss_denominator_tokens: Positive = 100.0

    def check_constant(self, loss_denominator_tokens: float | None) -> None:
        """Raise `ConfigError` if the loss does not divide by the constant that the weights undo."""
        if loss_denominator_tokens is None:
            raise ConfigError(
                "the weights of wideseek undo a division of the loss by loss_denominator_tokens; expected the "
                "denominator 'constant'"
            )
        if loss_denominator_tokens != self.loss_denominator_tokens:
            raise ConfigError(
                f"loss_denominator_tokens of wideseek is {self.loss_denominator_tokens:g} and that of the loss "
                f"{loss_denominator_tokens:g}; expected the same number"
            )

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        weight: dict[TurnKey, float] = {}
        for episode in group.episodes:
            num_tokens = Counter[AgentId]()
            for key, turn in episode.turns():
                num_tokens[key.agent_id] += len(turn.generation.token_ids)
            num_agents = sum(count > 0 for count in num_tokens.values())
            for key, _ in episode.turns():
                # A text policy has no tokens, and nothing of such an agent is trained.
                if not num_tokens[key.agent_id]:
                    continue
                # The factor in front undoes the division of the loss, so that an episode has weight 1 in all.
                weight[key] = self.loss_denominator_tokens / (num_agents * num_tokens[key.agent_id])
        return Credit(broadcast(group, self.per_episode(group)), weight=weight)
