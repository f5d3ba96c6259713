"""Truncated importance sampling: a sampler whose probabilities are not quite those of the learner.

    loss *= min(exp(old_logprobs - behavior_logprobs), cap)

Another engine, precision or age of the weights makes the sampler another policy than the one that learns. Without a
weight, the ratio of the surrogate holds both that mismatch and the updates since, and clips on their product. With one,
the mismatch is a weight without a gradient, and the surrogate's ratio starts at 1 from the learner's own log-probs.

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
    """[B, T] weights without a gradient, from [B, T] log-probs; 1 for the level `none`."""
    if not importance.on:
        return torch.ones_like(old_logprobs)
    difference = (old_logprobs - behavior_logprobs).detach()
    if importance.level == ImportanceLevel.SEQUENCE:
        difference = trained_sum(difference, loss_mask).expand_as(difference)
    return difference.exp().clamp(max=importance.cap)
