"""`hapo` takes the baseline over the tokens of a group, and scales each token's advantage by its entropy.

Source: HAPO (Liu et al., arXiv 2509.16591), its token-level group average and advantage redistribution, by the released
code. h has the sign of the paper's text. Two parts are left out. A request has one temperature, which the learner
applies too; the released code changes vLLM to sample by entropy. Clipping by entropy needs h in the loss, whose terms
see one micro-batch; the released code computes h for each micro-batch, so its gradient depends on how a batch is cut.
Details: docs/methods.md.

    A_k = (R_k - m) / (max(s, std_floor) + epsilon),   m, s: mean and std of R over all tokens of the group
    A_t = A_k (1 + beta h_t) if h_t <= 0 and |ratio_t - 1| < neutral,
          A_k (1 + beta h_t) if h_t > 0 and |ratio_t - 1| >= neutral (never without staleness),   else A_k
    h = ln H - its pivot quantile over all tokens of the step, divided on each side of 0 by its extreme: in [-1, 1]

Expected effect: entropy falls more slowly than without the redistribution (`beta: 0`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from selfcest_env.record import EpisodeGroup, EpisodeRecord, Turn
from selfcest_env.structure import Checked, NotNegative, Positive, Share
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import (
    Advantage,
    Credit,
    CreditAssigner,
    Internal,
    Internals,
    Promise,
    ReplayRecords,
    are_equal,
    broadcast,
    group_advantages,
)

_LEAST_ENTROPY = 1e-8  # as in the released code: its logarithm is finite


@dataclass(frozen=True)
class Hapo(CreditAssigner, Checked):
    """Credits every token by the group's token-level average and its own entropy.

    Attributes:
        std_floor: smallest std that returns are divided by.
        epsilon: number that is added to this divisor.
        limit: |A| from which a group falls back to `grpo`.
        beta: strength of the scaling; above 1 the advantage of tokens with low entropy could change its sign.
        pivot: quantile of the entropies at which h is 0.
        neutral: distance from 1 below which a ratio counts as 1.
    """

    name: ClassVar[str] = "hapo"
    formula: ClassVar[str] = "A = (R - token mean R) / token std R, times 1 + beta h for tokens by their entropy"
    source: ClassVar[str] = "HAPO, Liu et al. 2025, arXiv 2509.16591"
    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False
    internals: ClassVar[frozenset[Internal]] = frozenset({Internal.ENTROPY})

    std_floor: NotNegative = 0.25
    epsilon: NotNegative = 1e-6
    limit: Positive = 5.0
    beta: Share = 1.0
    pivot: Share = 0.8
    neutral: NotNegative = 0.1

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        """Return the credit without entropies, which has only the token-level average."""
        fallback = group_advantages(group, scale=True, std_floor=self.std_floor, epsilon=self.epsilon)
        returns = [episode.team_return for episode in group.episodes]
        num_tokens = [_count_tokens(episode) for episode in group.episodes]
        if are_equal(returns) or not any(num_tokens):
            return Credit(broadcast(group, fallback))
        centred = np.array(returns) - np.average(returns, weights=num_tokens)
        std = float(np.sqrt(np.average(centred**2, weights=num_tokens)))
        divisor = max(std, self.std_floor) + self.epsilon
        advantages = centred / divisor if divisor else 0 * centred
        # The released code takes the group's own average where one advantage is too large.
        is_too_large = np.abs(advantages).max() >= self.limit
        return Credit(broadcast(group, fallback if is_too_large else advantages.tolist()))

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[ReplayRecords], internals: Internals
    ) -> Sequence[Credit]:
        turns: list[tuple[TurnKey, Turn]] = []
        for group in groups:
            for episode in group.episodes:
                turns += episode.turns()
        entropies = np.concatenate([*(internals[key].entropies for key, _ in turns), []])
        step_heights = _compute_heights(entropies, self.pivot)
        factors: dict[TurnKey, npt.NDArray[Any]] = {}  # one for each token of a turn
        start = 0
        for key, turn in turns:
            end = start + len(turn.generation.token_ids)
            heights = step_heights[start:end]
            start = end
            ratio = np.exp(internals[key].logprobs - np.array(turn.generation.behavior_logprobs))
            # Without staleness every ratio is 1 up to rounding, and only tokens of low entropy are scaled.
            is_neutral = np.abs(ratio - 1) < self.neutral
            is_scaled = (heights > 0) != is_neutral
            factors[key] = np.where(is_scaled, 1 + self.beta * heights, 1.0)
        credits = []
        for credit in super().assign_step(groups, replayed, internals):
            advantage: dict[TurnKey, Advantage] = {}
            for key, value in credit.advantage.items():
                advantage[key] = tuple((np.asarray(value) * factors[key]).tolist())
            credits.append(Credit(advantage))
        return credits


def _count_tokens(episode: EpisodeRecord) -> int:
    return sum(len(turn.generation.token_ids) for _, turn in episode.turns())


def _compute_heights(entropies: npt.NDArray[Any], pivot: float) -> npt.NDArray[Any]:
    """Return the logarithm of each entropy, shifted so that the pivot quantile is 0 and scaled to [-1, 1]."""
    if not len(entropies):
        return entropies
    logs = np.log(np.maximum(entropies.astype(np.float64), _LEAST_ENTROPY))
    centred = logs - np.quantile(logs, pivot, method="nearest")
    above = max(centred.max(), _LEAST_ENTROPY)
    below = min(centred.min(), -_LEAST_ENTROPY)
    return np.asarray(np.where(centred > 0, centred / above, centred / -below))
