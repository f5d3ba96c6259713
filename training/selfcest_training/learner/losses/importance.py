"""Truncated importance sampling, for a sampler whose probabilities differ from the learner's.

    loss *= min(exp(old_logprobs - behavior_logprobs), cap)

Another engine, another precision or stale weights make the sampler a different policy from the learner. Without
importance weights, the loss's ratio contains both this mismatch and the updates since, and is clipped on their product.
With them, the mismatch is a weight without a gradient, and the loss's ratio starts at 1.

Sources: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training", for the cap; Hilton
et al. 2021 (arXiv 2110.00641) for the two reference points.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfcest_training.learner.losses.functions import trained_sum
from selfcest_training.learner.options import Importance, ImportanceLevel


def importance_weights(
    importance: Importance, old_logprobs: Tensor, behavior_logprobs: Tensor, loss_mask: Tensor
) -> Tensor:
    """Return [B, T] weights without a gradient from [B, T] log-probs; 1 for the level `none`."""
    if not importance.on:
        return torch.ones_like(old_logprobs)
    difference = (old_logprobs - behavior_logprobs).detach()
    if importance.level == ImportanceLevel.SEQUENCE:
        difference = trained_sum(difference, loss_mask).expand_as(difference)
    return difference.exp().clamp(max=importance.cap)
