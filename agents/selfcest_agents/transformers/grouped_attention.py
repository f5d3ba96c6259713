"""Attention of grouped heads over a padded cache without copying keys and values once per head of a group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

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
    """The heads of a group look at the same keys, so they are folded into the query's length. No dropout.

    Args:
        module: unused; transformers passes it.
        query: [rows, heads, new, head_dim].
        key, value: [rows, kv_heads, length, head_dim].
        attention_mask: [rows, 1, new, length], added to the scores.
        scaling: of the scores; 1 / sqrt(head_dim) by default.

    Returns:
        [rows, new, heads, head_dim], and no weights.
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
def grouped(model: PreTrainedModel) -> Iterator[None]:
    """Use it where transformers' `sdpa` would copy, and for flash and flex attention, which take no dense mask."""
    config = model.config.get_text_config()
    given = config._attn_implementation
    shared = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    if given == "eager" or (given == "sdpa" and not shared):
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = given
