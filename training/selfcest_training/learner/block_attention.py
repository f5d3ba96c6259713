"""Attention under a sparse mask on a CPU: queries in blocks, each over the keys that any of them sees.

A tree row holds many contexts and a token sees its own alone, yet a dense product pays for all pairs: at two thousand
ids as much as all linear layers of a small model together.
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
BLOCK = 128  # queries; fewer see fewer keys, more make fewer calls


def block_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **options: Any
) -> tuple[Tensor, None]:
    """What transformers' `sdpa` gives, up to rounding.

    Args:
        module, options: as `sdpa` takes them.
        query: [rows, heads, length, head_dim].
        key, value: [rows, kv_heads, length, head_dim].
        attention_mask: [rows, 1, length, length], 0 where a query sees a key, else -inf; every query sees one.

    Returns:
        [rows, length, heads, head_dim], and no weights.
    """
    rows = []
    for at in range(len(query)):
        row, blocks = slice(at, at + 1), []
        masks = torch.split(attention_mask[row], BLOCK, dim=2)
        for queries, mask in zip(torch.split(query[row], BLOCK, dim=2), masks, strict=True):
            seen = (mask[0, 0] == 0).any(dim=0).nonzero()[:, 0]
            keys, values = (each[row].index_select(2, seen) for each in (key, value))
            out, _ = sdpa_attention_forward(module, queries, keys, values, mask.index_select(3, seen), **options)
            blocks.append(out)
        rows.append(torch.cat(blocks, dim=1))
    return torch.cat(rows), None


AttentionInterface.register(NAME, block_attention)


@contextmanager
def in_blocks(model: PreTrainedModel) -> Iterator[None]:
    """Use it where transformers' `sdpa` would be, in passes with such a mask."""
    config = model.config.get_text_config()
    given = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = given


def same_attention(model: PreTrainedModel) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of a layer that is being computed, and of its being computed again: with the same attention."""
    now = model.config.get_text_config()._attn_implementation == NAME
    return nullcontext(), in_blocks(model) if now else nullcontext()
