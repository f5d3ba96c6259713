"""Attention of grouped heads over a padded cache, without a copy of keys and values for each head of a group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from selfcest_agents.window_attention import NAME as WINDOW

NAME = "selfcest_grouped"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention without dropout. The heads of a group read the same keys, so they extend the query's length.

    Args:
        module: unused, but transformers passes it.
        query: [rows, heads, new, head_dim].
        key, value: [rows, kv_heads, length, head_dim].
        attention_mask: [rows, 1, new, length], which is added to the scores.
        scaling: factor of the scores; 1 / sqrt(head_dim) by default.

    Returns:
        The output [rows, new, heads, head_dim], and `None` in place of the attention weights.
    """
    rows, heads, new, size = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(rows, kv_heads, group * new, size)
    mask = attention_mask.repeat(1, 1, group, 1)
    out = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(rows, heads, new, size).transpose(1, 2), None


AttentionInterface.register(NAME, grouped_attention)


@contextmanager
def use_grouped_attention(model: PreTrainedModel) -> Iterator[None]:
    """Replace the attention of a model within the block, unless it is `eager` or of windows, or `sdpa` without groups.

    For grouped heads transformers' `sdpa` would copy keys and values. Flash and flex attention support no dense mask.
    """
    config = model.config.get_text_config()
    implementation = config._attn_implementation
    has_groups = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    if implementation in ("eager", WINDOW) or (implementation == "sdpa" and not has_groups):
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = implementation
