"""Gives the shape of a config's model: its parameters without data."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from selfcest_agents.language import language_of
from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.pretrained import HUB, ChatOptions, model_config
from selfcest_agents.window_attention import NAME as WINDOW
from selfcest_env.plugin import PlugIn
from selfcest_env.structure import construct
from selfcest_training.learner.footprint import build_weightless_model


def _qwen_config(cls: Any, width: int, inner: int, layers: int, heads: tuple[int, int], **more: Any) -> Any:
    """Make a config. `heads` are the numbers of attention heads and of key-value heads."""
    attention, kv = heads
    return cls(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=attention,
        num_key_value_heads=kv,
        **{"vocab_size": 151936, "tie_word_embeddings": True, **more},
    )


# As the config.json of these models on the hub has them (huggingface.co/OWNER/NAME); a published model does not change.
KNOWN: dict[str, PreTrainedConfig] = {
    "Qwen/Qwen3-0.6B": _qwen_config(Qwen3Config, 1024, 3072, 28, (16, 8), head_dim=128, max_position_embeddings=40960),
    "Qwen/Qwen3-1.7B": _qwen_config(Qwen3Config, 2048, 6144, 28, (16, 8), head_dim=128, max_position_embeddings=40960),
    "Qwen/Qwen3-4B": _qwen_config(Qwen3Config, 2560, 9728, 36, (32, 8), head_dim=128, max_position_embeddings=40960),
    "Qwen/Qwen2.5-7B-Instruct": _qwen_config(
        Qwen2Config, 3584, 18944, 28, (28, 4), vocab_size=152064, tie_word_embeddings=False
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
}
_SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


# Compared by identity, because expensive results are cached per object.
@dataclass(frozen=True, eq=False)
class ModelShape:
    """A model without data.

    Attributes:
        name: name of the model in the plan.
        source: origin of its dimensions, for the reader of the plan.
        config: its config in transformers.
        dtype: data type of the learner's weights, without adapters.
        device: device in the run's config, for example `cuda`.
        attention: `eager`, or `sdpa` for every kernel whose memory is linear in the number of tokens.
        model: the model, with parameters on the meta device.
    """

    name: str
    source: str
    config: PreTrainedConfig
    dtype: torch.dtype
    device: str
    attention: str
    model: PreTrainedModel

    def with_lora(self, lora: LoraOptions | None) -> PreTrainedModel:
        """The model with an adapter, or without one if `lora` is None."""
        return self.model if lora is None else build_weightless_model(self.config, self.dtype, self.attention, lora)

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters())

    @property
    def cache_numbers_per_token(self) -> int:
        """Keys and values of one token: 2 x layers x key-value heads x head width."""
        config: Any = self.config
        heads = int(config.num_attention_heads)
        width = getattr(config, "head_dim", None) or int(config.hidden_size) // heads
        return 2 * int(config.num_hidden_layers) * int(getattr(config, "num_key_value_heads", None) or heads) * width

    def linear_weights(self, min_size: int) -> int:
        """The number of weights in linear layers that have at least `min_size` of them."""
        sizes = [layer.weight.numel() for layer in self.model.modules() if isinstance(layer, nn.Linear)]
        return sum(size for size in sizes if size >= min_size)


def get_model_shape(model: PlugIn) -> ModelShape:
    """Get the shape of a config's `model`, without loading weights or tokenizers and without using devices.

    Raises:
        ConfigError: an option is wrong, the model is unknown, or its config cannot be read.
    """
    return _get_cached_shape(model.name, json.dumps(model.options, sort_keys=True))


@lru_cache(maxsize=16)
def _get_cached_shape(name: str, options_json: str) -> ModelShape:
    # The options are JSON here, because the cache needs arguments that can be hashed.
    spec = PlugIn(name, json.loads(options_json))
    if name == "chat":
        options = construct(ChatOptions, spec.options, place="model.options")
        config, source = _find_config(options.source)
        config = copy.copy(config)  # of the table
        config.max_position_embeddings = int(config.max_position_embeddings * options.rope_factor)
        attention = "eager" if options.attention == "eager" else "sdpa"
        dtype = getattr(torch, options.dtype)
        model = build_weightless_model(config, dtype, attention)
        return ModelShape(options.source.removeprefix(HUB), source, config, dtype, options.device, attention, model)
    language = language_of(spec)
    with torch.device("meta"):
        meta_model = language.load(0)
    config = meta_model.config
    attention = "eager" if config._attn_implementation in ("eager", WINDOW) else "sdpa"
    model = build_weightless_model(config, meta_model.dtype, attention)
    return ModelShape(name, "the model's own options", config, meta_model.dtype, "cpu", attention, model)


def _find_config(source: str) -> tuple[PreTrainedConfig, str]:
    """Find the config of a model in the table, or read it. The second value describes its origin."""
    name = _SMOLLM2 if source == "smollm2" else source.removeprefix(HUB)
    is_hub_model = source == "smollm2" or source.startswith(HUB)
    if is_hub_model and name in KNOWN:
        return KNOWN[name], "a table in this version of selfcest, copied from the model's config.json on the hub"
    origin = "the hub's config.json" if source.startswith(HUB) else str(Path(source) / "config.json")
    return model_config(source), origin


def device_memory(device: str) -> int | None:
    """Bytes of the GPU that a config names; `None` if it names no GPU, or if this machine has none."""
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)
