"""Attention of grouped heads over a padded cache, without a copy of keys and values for each head of a group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from selfcest_agents.window_attention import NAME as WINDOW

NAME = "selfcest_grouped"
IRREPLACEABLE = ("eager", WINDOW)  # attentions that are always computed as they are


@dataclass(frozen=True)
class RaggedRows:
    """Rows of different lengths that go through the model as one row, without padding.

    Attributes:
        num_rows: number of rows.
        longest: number of ids of the longest row.
        rows: [ids] row of each id. The first row's ids come first, then those of the second.
        columns: [ids] place of each id in its row.
    """

    # Indices, since a mask would make every layer wait for a GPU to count its ids.
    num_rows: int
    longest: int
    rows: torch.Tensor
    columns: torch.Tensor

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """Turn states [1, heads, ids, head_dim] into [rows, heads, longest, head_dim], with zeros as padding."""
        padded = states.new_zeros(self.num_rows, self.longest, states.shape[1], states.shape[3])
        padded[self.rows, self.columns] = states[0].transpose(0, 1)
        return padded.transpose(1, 2)

    def unpad(self, outputs: torch.Tensor) -> torch.Tensor:
        """Turn outputs [rows, longest, heads, head_dim] into [1, ids, heads, head_dim]."""
        return outputs[self.rows, self.columns][None]


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    scaling: float | None = None,
    ragged_rows: RaggedRows | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention without dropout. The heads of a group read the same keys, so they extend the query's length.

    Args:
        module: unused, but transformers passes it.
        query: [rows, heads, new, head_dim].
        key, value: [rows, kv_heads, length, head_dim].
        attention_mask: [rows, 1, new, length], which is added to the scores.
        scaling: factor of the scores; 1 / sqrt(head_dim) by default.
        ragged_rows: if given, `query` is [1, heads, ids, head_dim] and `new` is the length of the longest row.

    Returns:
        The output [rows, new, heads, head_dim], or [1, ids, heads, head_dim] for ragged rows, and `None` in place of
        the attention weights.
    """
    if ragged_rows is not None:
        query = ragged_rows.pad(query)
    rows, heads, new, size = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(rows, kv_heads, group * new, size)
    mask = attention_mask.repeat(1, 1, group, 1)
    out = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    outputs = out.reshape(rows, heads, new, size).transpose(1, 2)
    return outputs if ragged_rows is None else ragged_rows.unpad(outputs), None


AttentionInterface.register(NAME, grouped_attention)


@contextmanager
def use_grouped_attention(model: PreTrainedModel, *, ragged: bool = False) -> Iterator[None]:
    """Replace the attention of a model within the block, unless it is `eager` or of windows, or `sdpa` without groups.

    For grouped heads transformers' `sdpa` would copy keys and values. Flash and flex attention support no dense mask.

    Args:
        model: a model of transformers.
        ragged: whether passes have ragged rows, which only this attention can compute. It must be replaceable.
    """
    config = model.config.get_text_config()
    implementation = config._attn_implementation
    has_groups = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    if implementation in IRREPLACEABLE or (implementation == "sdpa" and not has_groups and not ragged):
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = implementation
