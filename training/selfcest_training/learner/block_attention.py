"""Attention under a sparse mask on a CPU: blocks of queries, each over the keys that any query of the block attends to.

A tree row holds many contexts, and a token attends to its own context only. A dense product computes all pairs: at two
thousand ids this takes as long as all linear layers of a small model together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "selfcest_blocks"
# Number of queries per block. A smaller block has fewer keys; a larger one makes fewer calls.
BLOCK = 128


def block_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    """Compute the result of transformers' `sdpa`, up to rounding.

    Args:
        module, options: as `sdpa` takes them.
        query: [rows, heads, length, head_dim].
        key, value: [rows, kv_heads, length, head_dim].
        attention_mask: [rows, 1, length, length], 0 where a query attends to a key, else -inf. Every query attends to
            at least one key.

    Returns:
        [rows, length, heads, head_dim], and `None` for the attention weights.
    """
    rows = []
    for index in range(len(query)):
        row = slice(index, index + 1)
        masks = torch.split(attention_mask[row], BLOCK, dim=2)
        blocks = []
        for queries, mask in zip(torch.split(query[row], BLOCK, dim=2), masks, strict=True):
            visible = (mask[0, 0] == 0).any(dim=0).nonzero()[:, 0]
            keys = key[row].index_select(2, visible)
            values = value[row].index_select(2, visible)
            block, _ = sdpa_attention_forward(module, queries, keys, values, mask.index_select(3, visible), **options)
            blocks.append(block)
        rows.append(torch.cat(blocks, dim=1))
    return torch.cat(rows), None


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
