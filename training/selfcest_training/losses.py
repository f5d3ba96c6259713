"""Losses as pure functions on tensors: arrays in, array out. `[B, T]` is rows by token positions.

Every function returns one number per token; `weighted_sum` is the only reduction. Weights are fixed before
micro-batching, so a batch cut in any way has the same gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: Tensor) -> Tensor:
    """Log-probability of every id given the ids before it.

    Args:
        logits: [B, T, V] of the model on `token_ids`.
        token_ids: [B, T].
        temperature: [B, T], that each id was sampled at; the same division that the sampler made.

    Returns:
        [B, T] float32, or float64 if the logits are; position 0, which nothing precedes, is 0.
    """
    return F.pad(chosen_logprobs(logits[:, :-1], token_ids[:, 1:], temperature[:, 1:]), (1, 0))


def chosen_logprobs(logits: Tensor, token_ids: Tensor, temperature: Tensor) -> Tensor:
    """Log-probability of ids [...] under the logits [..., V] that predict them, at a temperature [...].

    float32, or float64 if the logits are.
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scaled = precise / temperature[..., None]
    return -F.cross_entropy(scaled.flatten(0, -2), token_ids.flatten(), reduction="none").view(token_ids.shape)


def clipped_surrogate(
    logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """PPO's pessimistic surrogate per token, as a loss: -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).

    rho = exp(logprobs - behavior_logprobs). Source: Schulman et al. 2017 (arXiv 1707.06347), eq. 7. On policy rho is 1
    and the gradient is that of REINFORCE, -A grad logprobs. All arguments and the result are [B, T].
    """
    ratio = torch.exp(logprobs - behavior_logprobs)
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def kl_to_reference(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Estimate of KL(policy || reference) per token, never negative: exp(d) - d - 1 with d = ref - policy log-prob.

    Source: Schulman 2020, "Approximating KL divergence", estimator k3. [B, T] to [B, T].
    """
    difference = ref_logprobs - logprobs
    return torch.exp(difference) - difference - 1


def weighted_sum(per_token: Tensor, weights: Tensor, loss_mask: Tensor) -> Tensor:
    """Sum of per-token losses times weights over the positions that train: the only reduction there is.

    `weights` hold one over the denominator (rule 8 of the design); masked positions may hold anything, NaN included.
    """
    return (torch.where(loss_mask, per_token, 0.0) * torch.where(loss_mask, weights, 0.0)).sum()
