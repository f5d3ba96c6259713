"""Truncated importance sampling: a sampler whose probabilities are not quite those of the learner.

    loss *= min(exp(old_logprobs - behavior_logprobs), cap)

Another engine, precision or age of the weights makes the sampler another policy than the one that learns. Without a
weight, the ratio of the surrogate holds both that mismatch and the updates since, and clips on their product. With one,
the mismatch is a weight without a gradient, and the surrogate's ratio starts at 1 from the learner's own log-probs.

Sources: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training", for the cap; Hilton
et al. 2021 (arXiv 2110.00641) for the two reference points.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from selfcest_env.errors import ConfigError
from selfcest_training.learner.losses.functions import trained_sum


class ImportanceLevel(StrEnum):
    """What a weight belongs to.

    NONE: no weights; the surrogate's ratio is against the sampler.
    TOKEN: each token has its own.
    SEQUENCE: a sample, that is one agent's context: the product over its trained tokens. Exact for the sample but for
        the cap, and of a variance that grows with length.
    """

    NONE = "none"
    TOKEN = "token"
    SEQUENCE = "sequence"


@dataclass(frozen=True)
class Importance:
    """How the mismatch between sampler and learner is weighed. `cap` is the largest weight."""

    level: ImportanceLevel = ImportanceLevel.NONE
    cap: float = 2.0

    def __post_init__(self) -> None:
        if self.level not in list(ImportanceLevel):
            raise ConfigError(f"importance.level is {self.level!r}; expected one of {', '.join(ImportanceLevel)}")
        if not self.cap >= 1:  # as every comparison with NaN
            raise ConfigError(f"importance.cap is {self.cap!r}; expected a number >= 1 (.inf: not truncated)")

    @property
    def on(self) -> bool:
        return self.level != ImportanceLevel.NONE

    def weights(self, old_logprobs: Tensor, behavior_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
        """[B, T] weights without a gradient, from [B, T] log-probs; 1 for the level `none`."""
        if not self.on:
            return torch.ones_like(old_logprobs)
        difference = (old_logprobs - behavior_logprobs).detach()
        if self.level == ImportanceLevel.SEQUENCE:
            difference = trained_sum(difference, loss_mask).expand_as(difference)
        return difference.exp().clamp(max=self.cap)
