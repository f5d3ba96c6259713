"""Attention under a sparse mask on a CPU: blocks of queries, each over the keys that any query of the block attends to.

A tree row holds many contexts, and a token attends to its own context only. A dense product computes all pairs: at two
thousand ids this takes as long as all linear layers of a small model together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface, PreTrainedModel

NAME = "selfcest_blocks"
# Number of queries per block. A smaller block has fewer keys. From 768 queries on (three heads of a group) the kernel
# takes larger parts at a time, and the backward pass is 1.4 times faster than in blocks of 128.
BLOCK = 256
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class _Block:
    """Queries of one row, and the keys that any of them attends to.

    Attributes:
        row: index of the row.
        queries: columns of the N queries.
        visible: [K] columns of the keys.
        mask: [1, 1, group x N, K] additive mask, the same for all query heads of a key head.
    """

    row: int
    queries: slice
    visible: Tensor
    mask: Tensor


# All layers of a pass have the same mask, so its blocks are found once. They live as long as the mask.
_blocks_by_mask: Any = WeakTensorKeyDictionary()


def _find_blocks(mask: Tensor, group: int) -> Sequence[_Block]:
    """Return the blocks of a mask [rows, 1, length, length] for `group` query heads per key head."""
    if mask not in _blocks_by_mask:
        blocks = []
        for row in range(len(mask)):
            for start in range(0, mask.shape[2], BLOCK):
                queries = slice(start, start + BLOCK)
                block_mask = mask[row : row + 1, :, queries]
                visible = (block_mask[0, 0] == 0).any(dim=0).nonzero()[:, 0]
                block_mask = block_mask.index_select(3, visible).repeat(1, 1, group, 1)
                blocks.append(_Block(row, queries, visible, block_mask))
        _blocks_by_mask[mask] = blocks
    blocks_of_mask: Sequence[_Block] = _blocks_by_mask[mask]
    return blocks_of_mask


def _fold(states: Tensor, block: _Block, kv_heads: int) -> Tensor:
    """Return the block's part of [rows, heads, length, head_dim] as [1, kv_heads, group x N, head_dim].

    The query heads of a key head read the same keys, so together they are one head with more queries.
    """
    part = states[block.row, :, block.queries]
    return part.reshape(1, kv_heads, -1, part.shape[-1])


def _unfold(folded: Tensor, heads: int) -> Tensor:
    """Turn the result of `_fold` into [heads, N, head_dim]."""
    return folded.reshape(heads, -1, folded.shape[-1])


class _BlockAttention(torch.autograd.Function):
    """Attention in blocks. Its backward pass adds the gradients of all blocks in one place."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
        rows, heads, length, size = query.shape
        kv_heads = key.shape[1]
        # The layout in which the output layer reads it.
        output = query.new_empty(rows, length, heads, size).transpose(1, 2)
        logsumexps = []
        for block in _find_blocks(mask, heads // kv_heads):
            queries = _fold(query, block, kv_heads)
            keys = key[block.row, None].index_select(2, block.visible)
            values = value[block.row, None].index_select(2, block.visible)
            part, logsumexp = _FLASH(queries, keys, values, attn_mask=block.mask, scale=scale)
            output[block.row, :, block.queries] = _unfold(part, heads)
            logsumexps.append(logsumexp)
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, mask, output, *logsumexps)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (grad_output,) = grad_outputs
        query, key, value, mask, output, *logsumexps = ctx.saved_tensors
        heads = query.shape[1]
        kv_heads = key.shape[1]
        grad_query = torch.empty_like(query)
        # Many blocks attend to a shared prefix, so sums are not rounded to half precision in between.
        sum_dtype = torch.promote_types(key.dtype, torch.float32)
        grad_key = torch.zeros_like(key, dtype=sum_dtype)
        grad_value = torch.zeros_like(value, dtype=sum_dtype)
        for block, logsumexp in zip(_find_blocks(mask, heads // kv_heads), logsumexps, strict=True):
            keys = key[block.row, None].index_select(2, block.visible)
            values = value[block.row, None].index_select(2, block.visible)
            queries, outputs, gradients = (_fold(states, block, kv_heads) for states in (query, output, grad_output))
            grad_queries, grad_keys, grad_values = _FLASH_BACKWARD(
                gradients,
                queries,
                keys,
                values,
                outputs,
                logsumexp,
                0.0,
                False,
                attn_mask=block.mask,
                scale=ctx.scale,
            )
            grad_query[block.row, :, block.queries] = _unfold(grad_queries, heads)
            grad_key[block.row].index_add_(1, block.visible, grad_keys[0].to(sum_dtype))
            grad_value[block.row].index_add_(1, block.visible, grad_values[0].to(sum_dtype))
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def block_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute the result of transformers' `sdpa` without dropout, up to rounding.

    Args:
        module: unused, but transformers passes it.
        query: [rows, heads, length, head_dim].
        key, value: [rows, kv_heads, length, head_dim].
        attention_mask: [rows, 1, length, length], 0 where a query attends to a key, else -inf. Every query attends to
            at least one key.
        scaling: factor of the scores; 1 / sqrt(head_dim) by default.

    Returns:
        [rows, length, heads, head_dim], and `None` for the attention weights.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # The mask has the dtype of autocast. Rotary positions make queries and keys float32.
    query, key, value = (states.to(attention_mask.dtype) for states in (query, key, value))
    output: Tensor = _BlockAttention.apply(query, key, value, attention_mask, scale)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2), None


AttentionInterface.register(NAME, block_attention)


@contextmanager
def use_block_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use attention in blocks instead of transformers' `sdpa`, for passes with a dense mask."""
    config = model.config.get_text_config()
    previous = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = previous


def make_layer_contexts(
    model: PreTrainedModel,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a checkpointed layer's forward pass and of its recomputation, with the same attention.

    The recomputation happens in the backward pass, outside the block of `use_block_attention`.
    """
    uses_blocks = model.config.get_text_config()._attn_implementation == NAME
    return nullcontext(), use_block_attention(model) if uses_blocks else nullcontext()
