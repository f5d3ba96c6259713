"""Eager attention of Llama on a CPU, a few rows at a time, so that the scores stay in the cache of the processor.

Transformers' eager attention writes the scores of a whole batch to memory four times, and their gradients three times.
Over rows of some hundred ids this takes longer than the layers. Here every step of the same computation reads what the
step before has just written, and gives the same numbers: bit for bit on most processors, to rounding on all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

NAME = "selfcest_eager"
# Number of scores that are computed at a time: 1 MiB, half of the second-level cache of a common server core.
MAX_SCORES = 1 << 18


class _EagerAttention(torch.autograd.Function):
    """softmax(query key^T * scaling + mask) value, over [rows * heads, length, head_dim]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, heads: int
    ) -> Tensor:
        num_matrices, length, _ = query.shape
        probs = query.new_empty(num_matrices, length, length)
        out = torch.empty_like(query)
        for matrices, rows in _split(num_matrices // heads, heads, length):
            scores = probs[matrices]
            torch.bmm(query[matrices], key[matrices].transpose(1, 2), out=scores)
            by_row = scores.view(-1, heads, length, length)
            # The mask is 0 or so low that the probability is 0, so it does not matter whether the sum is rounded once.
            torch.add(mask[rows], by_row, alpha=scaling, out=by_row)
            torch.softmax(scores, -1, out=scores)
            torch.bmm(scores, value[matrices], out=out[matrices])
        ctx.save_for_backward(query, key, value, probs)
        ctx.scaling = scaling
        ctx.heads = heads
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, probs = ctx.saved_tensors
        (gradient,) = gradients
        num_matrices, length, size = query.shape
        of_query = torch.empty_like(query)
        # Transposed, as in the gradient of `query @ key.transpose(1, 2)`.
        of_key = key.new_empty(num_matrices, size, length)
        of_value = torch.empty_like(value)
        parts = list(_split(num_matrices // ctx.heads, ctx.heads, length))
        largest = max(matrices.stop - matrices.start for matrices, _ in parts)
        buffer = query.new_empty(largest, length, length)
        for matrices, _ in parts:
            scores = buffer[: matrices.stop - matrices.start]
            torch.bmm(probs[matrices].transpose(1, 2), gradient[matrices], out=of_value[matrices])
            torch.bmm(gradient[matrices], value[matrices].transpose(1, 2), out=scores)
            torch._softmax_backward_data(scores, probs[matrices], -1, torch.float32, grad_input=scores)
            scores.mul_(ctx.scaling)
            torch.bmm(scores, key[matrices], out=of_query[matrices])
            torch.bmm(query[matrices].transpose(1, 2), scores, out=of_key[matrices])
        return of_query, of_key.transpose(1, 2), of_value, None, None, None


def _split(rows: int, heads: int, length: int) -> Iterator[tuple[slice, slice]]:
    """Yield parts of a batch as a slice of matrices (a row and a head), and the slice of their rows."""
    size = max(1, MAX_SCORES // (heads * length * length))
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        yield slice(start * heads, stop * heads), slice(start, stop)


def eager_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute the result of transformers' `eager`, without dropout.

    Args:
        module: unused, but transformers passes it.
        query, key, value: [rows, heads, length, head_dim].
        attention_mask: [rows or 1, 1, length, length], which is added to the scores.
        scaling: factor of the scores.

    Returns:
        [rows, length, heads, head_dim], and `None` for the attention weights.
    """
    rows, heads, length, size = query.shape
    flat = [states.reshape(rows * heads, length, size) for states in (query, key, value)]
    mask = attention_mask.expand(rows, -1, -1, -1)
    out: Tensor = _EagerAttention.apply(*flat, mask, scaling, heads)  # type: ignore[no-untyped-call]
    return out.view(rows, heads, length, size).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, eager_attention)
AttentionMaskInterface.register(NAME, eager_mask)


def can_use_eager_attention(model: PreTrainedModel) -> bool:
    """Return whether `eager_attention` computes what the model's own attention does."""
    config = model.config.get_text_config()
    return (
        config.model_type == "llama"
        and config._attn_implementation == "eager"
        and config.num_key_value_heads == config.num_attention_heads
        and model.device.type == "cpu"
        and model.dtype == torch.float32
    )


@contextmanager
def use_eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use `eager_attention` within the block. The backward pass may run after it."""
    config = model.config.get_text_config()
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = "eager"
