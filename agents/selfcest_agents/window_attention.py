"""A Llama whose tokens see a window of recent tokens and the first tokens of the context, called sinks.

Xiao et al. 2023 (arXiv 2309.17453) keep the sinks and the window in the cache, and number positions within the cache.
Here the cache keeps all keys, with the rotations of their positions in the text, and only the query changes: towards
the sinks it is rotated as if it stood directly behind sinks and window. The scores are the same, and a cached key never
changes, so that decoding with a cache equals the full forward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from selfcest_env.errors import PolicyError

NAME = "selfcest_window"
BLOCK = 128  # number of queries that share one selection of keys


class WindowLlamaConfig(LlamaConfig):  # type: ignore[no-untyped-call]
    """The config of `WindowLlama`. A program without this package refuses its `model_type`, instead of ignoring it.

    Attributes:
        attention_window: number of last tokens that a token sees, with itself.
        attention_sinks: number of first tokens of the context that every token sees.
    """

    model_type = "selfcest_window_llama"
    attention_window: int = 1
    attention_sinks: int = 0


class WindowLlama(LlamaForCausalLM):
    """A `LlamaForCausalLM` with attention windows, whose attention cannot be replaced."""

    config_class = WindowLlamaConfig

    def __init__(self, config: WindowLlamaConfig) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        config._attn_implementation = NAME

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Any:
        """Compute as `LlamaForCausalLM`. Raises `PolicyError` for a mask of padding, which positions do not show."""
        if attention_mask is not None and attention_mask.dim() == 2 and not bool(attention_mask.all()):
            raise PolicyError(
                "the attention_mask hides tokens, and in a model with an attention window positions alone decide what "
                "a token sees; pad on the right without a mask, or compute the rows one by one"
            )
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **options)

    def set_attn_implementation(self, attn_implementation: str | dict[str, str], *_: Any, **__: Any) -> None:
        """Raise `PolicyError` for any other attention, which would see the whole context."""
        if attn_implementation != NAME:
            raise PolicyError(
                f"attn_implementation is {attn_implementation!r}, and this model has an attention window of "
                f"{self.config.attention_window} tokens; expected {NAME!r}"
            )


def window_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    position_ids: Tensor,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention over window and sinks. Keys stand in order of their positions, from 0.

    Args:
        module: attention layer whose config is a `WindowLlamaConfig`.
        query: [rows, heads, new, head_dim], rotated by its positions.
        key, value: [rows, heads, length, head_dim]; keys are rotated by their positions.
        attention_mask: unused. Positions alone decide which keys a query sees.
        scaling: factor of the scores.
        position_ids: [rows or 1, new] positions of the queries.

    Returns:
        The output [rows, new, heads, head_dim], and `None` in place of the attention weights.
    """
    config: Any = module.config
    size = BLOCK if key.shape[2] >= config.attention_sinks + config.attention_window + BLOCK else query.shape[2]
    blocks = zip(torch.split(query, size, dim=2), torch.split(position_ids, size, dim=1), strict=True)
    outputs = [_attend(config, queries, key, value, positions, scaling) for queries, positions in blocks]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _attend(config: Any, query: Tensor, key: Tensor, value: Tensor, position_ids: Tensor, scaling: float) -> Tensor:
    """Compute the output [rows, heads, new, head_dim] of queries at consecutive positions [rows or 1, new]."""
    sinks: int = config.attention_sinks
    window: int = config.attention_window
    length = key.shape[2]
    positions = torch.arange(length, device=key.device)[None]
    if length > sinks + window + query.shape[2]:
        # Only the keys that some query sees. A query within sinks and window sees fewer, and the others lie behind it.
        first = (position_ids[:, :1] - (window - 1)).clamp(min=sinks)
        seen = first + torch.arange(window + query.shape[2] - 1, device=key.device)
        positions = torch.cat([positions[:, :sinks].expand(len(seen), sinks), seen], dim=1)
        key = _select(key, positions)
        value = _select(value, positions)
    # The first columns are the sinks, also after the selection.
    is_sink = torch.arange(positions.shape[1], device=key.device) < sinks
    distance = position_ids[:, :, None] - positions[:, None]
    is_visible = (distance >= 0) & (is_sink | (distance < window))
    if length <= sinks + window:
        scores = torch.matmul(query, key.transpose(2, 3))
    else:
        # A query beyond sinks and window is moved to the last position that sees all of both.
        excess = (position_ids - (sinks + window - 1)).clamp(min=0)
        moved_query = _rotate_back(query, excess, config.rope_parameters["rope_theta"])
        sink_scores = torch.matmul(moved_query, key[:, :, :sinks].transpose(2, 3))
        window_scores = torch.matmul(query, key[:, :, sinks:].transpose(2, 3))
        scores = torch.cat([sink_scores, window_scores], dim=-1)
    scores = (scores * scaling).masked_fill(~is_visible[:, None], float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
    return torch.matmul(weights.to(value.dtype), value)


def _select(states: Tensor, positions: Tensor) -> Tensor:
    """Select positions [rows or 1, selected] of states [rows, heads, length, head_dim]; behind the last: the last."""
    positions = positions.clamp(max=states.shape[2] - 1)
    if len(positions) == 1:
        return states.index_select(2, positions[0])
    rows = torch.arange(len(states), device=states.device)[:, None]
    return states[rows, :, positions].transpose(1, 2)


def _rotate_back(query: Tensor, steps: Tensor, theta: float) -> Tensor:
    """Rotate queries [rows, heads, new, head_dim] back by a number of positions [rows or 1, new]."""
    size = query.shape[-1]
    # The frequencies of RoPE (Su et al. 2021, arXiv 2104.09864, section 3.2.2), of which each turns a pair of numbers.
    frequency = theta ** (-torch.arange(0, size, 2, device=query.device, dtype=torch.float32) / size)
    angle = -steps[:, None, :, None] * frequency
    cos = angle.cos().to(query.dtype)
    sin = angle.sin().to(query.dtype)
    # transformers stores the first numbers of all pairs, and then the second ones.
    first, second = query.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


AttentionInterface.register(NAME, window_attention)
AutoConfig.register(WindowLlamaConfig.model_type, WindowLlamaConfig)
AutoModelForCausalLM.register(WindowLlamaConfig, WindowLlama)
