"""Pure functions on tensors that the losses share. `[B, T]` is rows by token positions.

`weighted_sum` is the only reduction. Weights are fixed before micro-batching, so the gradient does not depend on how a
batch is cut.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: Tensor) -> Tensor:
    """Return the log-probability of every id given the ids before it.

    Args:
        logits: [B, T, V] of the model on `token_ids`.
        token_ids: [B, T].
        temperature: [B, T], at which each id was sampled.

    Returns:
        [B, T] float32, or float64 if the logits are; position 0, which has no context, is 0.
    """
    return F.pad(chosen_logprobs(logits[:, :-1], token_ids[:, 1:], temperature[:, 1:]), (1, 0))


def chosen_logprobs(logits: Tensor, token_ids: Tensor, temperature: Tensor) -> Tensor:
    """Return the log-probability of ids [...] under logits [..., V] at a temperature [...].

    float32, or float64 if the logits are.
    """
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scaled = precise / temperature[..., None]
    return -F.cross_entropy(scaled.flatten(0, -2), token_ids.flatten(), reduction="none").view(token_ids.shape)


def entropies(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return the entropy [...] in nats of logits [..., V] at a temperature [...]; dtypes as in `chosen_logprobs`."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = F.log_softmax(precise / temperature[..., None], -1)
    return -(logprobs.exp() * logprobs).sum(-1)


def trained_sum(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Return [B, 1] the sum of values [B, T] over the trained positions of a row."""
    return torch.where(loss_mask, values, 0.0).sum(-1, keepdim=True)


def weighted_sum(per_token: Tensor, weights: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the sum of per-token losses times weights over the trained positions, all [B, T].

    `weights` hold one over the denominator (rule 8 of the design). Masked positions may hold any number, also NaN.
    """
    # `where` and not a product: 0 x NaN is NaN.
    return (torch.where(loss_mask, per_token, 0.0) * torch.where(loss_mask, weights, 0.0)).sum()
