"""`hapo` scales each token's advantage by its entropy, after HAPO (Liu et al., arXiv 2509.16591). If it works, entropy
falls more slowly than with `grpo`, and accuracy ends higher.

    A_k = (R_k - m) / (max(s, std_floor) + epsilon),   m, s: mean and std of R over all tokens of the group
    A_t = A_k (1 + beta h_t) if h_t <= 0 and |ratio_t - 1| < neutral,
          A_k (1 + beta h_t) if h_t > 0 and |ratio_t - 1| >= neutral (never at lag 0, see below),   else A_k
    h = ln H - its pivot quantile over all tokens of the step, divided on each side of 0 by its extreme: in [-1, 1]

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, NotNegative, Positive, Share
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import (
    Advantage,
    Credit,
    CreditAssigner,
    Internal,
    Internals,
    Promise,
    Replayed,
    broadcast,
    group_advantages,
)

_LEAST_ENTROPY = 1e-8  # as in the released code: its logarithm is finite


@dataclass(frozen=True)
class Hapo(CreditAssigner, Checked):
    """Options: `std_floor` (default 0.25), `epsilon` (default 1e-6), `limit` (default 5), `beta` (default 1, at most 1:
    more would turn the sign of tokens of low entropy), `pivot` (default 0.8), `neutral` (default 0.1)."""

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

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        """Return the credit without entropies, which has only the token-level average."""
        fallback = group_advantages(group, scale=True, std_floor=self.std_floor, epsilon=self.epsilon)
        returns = np.array([episode.team_return for episode in group.episodes])
        tokens = [sum(len(turn.generation.token_ids) for _, turn in episode.turns()) for episode in group.episodes]
        if not any(tokens):
            return Credit(broadcast(group, fallback))
        centred = returns - np.average(returns, weights=tokens)
        std = float(np.sqrt(np.average(centred**2, weights=tokens)))
        divisor = max(std, self.std_floor) + self.epsilon
        advantages = centred / divisor if divisor else 0 * centred
        # The released code takes the group's own average where one advantage is too large.
        is_too_large = np.abs(advantages).max() >= self.limit
        return Credit(broadcast(group, fallback if is_too_large else advantages.tolist()))

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[Replayed], internals: Internals
    ) -> Sequence[Credit]:
        episodes = [episode for group in groups for episode in group.episodes]
        turns = [(key, turn) for episode in episodes for key, turn in episode.turns()]
        entropies = np.concatenate([*(internals[key].entropies for key, _ in turns), []])
        heights = _heights(entropies, self.pivot)
        factors: dict[TurnKey, npt.NDArray[Any]] = {}
        for key, turn in turns:
            # The turn's tokens come first; the rest is that of the turns after it.
            h, heights = np.split(heights, [len(turn.generation.token_ids)])
            ratio = np.exp(internals[key].logprobs - np.array(turn.generation.behavior_logprobs))
            redistributed = (h > 0) != (np.abs(ratio - 1) < self.neutral)
            factors[key] = np.where(redistributed, 1 + self.beta * h, 1.0)
        credits = []
        for group, of_group in zip(groups, replayed, strict=True):
            advantage = self.assign(group, of_group).advantage
            credits.append(Credit({key: _times(value, factors[key]) for key, value in advantage.items()}))
        return credits


def _times(value: Advantage, factors: npt.NDArray[Any]) -> Advantage:
    return tuple((np.asarray(value) * factors).tolist())


def _heights(entropies: npt.NDArray[Any], pivot: float) -> npt.NDArray[Any]:
    """Return the logarithm of each entropy, shifted so that the pivot quantile is 0 and scaled to [-1, 1]."""
    if not len(entropies):
        return entropies
    logs = np.log(np.maximum(entropies.astype(np.float64), _LEAST_ENTROPY))
    centred = logs - np.quantile(logs, pivot, method="nearest")
    above = max(centred.max(), _LEAST_ENTROPY)
    below = min(centred.min(), -_LEAST_ENTROPY)
    return np.asarray(np.where(centred > 0, centred / above, centred / -below))
