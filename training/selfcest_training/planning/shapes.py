"""A model's dimensions without its weights."""

from __future__ import annotations

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
from selfcest_env.plugin import PlugIn
from selfcest_env.structure import construct
from selfcest_training.learner.footprint import without_weights


def _qwen(kind: Any, width: int, inner: int, layers: int, heads: tuple[int, int], **more: Any) -> Any:
    attention, kv = heads
    return kind(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=attention,
        num_key_value_heads=kv,
        **{"vocab_size": 151936, "tie_word_embeddings": True, **more},
    )


# As the config.json of these models on the hub has them (huggingface.co/OWNER/NAME); a published model does not change.
KNOWN: dict[str, PreTrainedConfig] = {
    "Qwen/Qwen3-0.6B": _qwen(Qwen3Config, 1024, 3072, 28, (16, 8), head_dim=128, max_position_embeddings=40960),
    "Qwen/Qwen3-1.7B": _qwen(Qwen3Config, 2048, 6144, 28, (16, 8), head_dim=128, max_position_embeddings=40960),
    "Qwen/Qwen3-4B": _qwen(Qwen3Config, 2560, 9728, 36, (32, 8), head_dim=128, max_position_embeddings=40960),
    "Qwen/Qwen2.5-7B-Instruct": _qwen(
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


@dataclass(frozen=True, eq=False)  # what is costly to find out is kept by object
class ModelShape:
    """A model without weights.

    Attributes:
        name: for people.
        source: where its dimensions come from, in words.
        config: of transformers.
        dtype: the learner's weights have, adapters apart.
        device: that the config names, as `cuda`.
        attention: `eager`, or `sdpa` for all whose memory grows with tokens and not with their square.
        model: its parameters have shapes and no data.
    """

    name: str
    source: str
    config: PreTrainedConfig
    dtype: torch.dtype
    device: str
    attention: str
    model: PreTrainedModel

    def with_lora(self, lora: LoraOptions | None) -> PreTrainedModel:
        """Like `model`, an adapter in place."""
        return self.model if lora is None else without_weights(self.config, self.dtype, self.attention, lora)

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters())

    @property
    def cached_numbers(self) -> int:
        """Keys and values of one token: 2 x layers x heads of keys x width of a head."""
        config: Any = self.config
        heads = int(config.num_attention_heads)
        width = getattr(config, "head_dim", None) or int(config.hidden_size) // heads
        return 2 * int(config.num_hidden_layers) * int(getattr(config, "num_key_value_heads", None) or heads) * width

    def linear_numbers(self, least: int) -> int:
        """Weights of linear layers that have at least so many."""
        sizes = [layer.weight.numel() for layer in self.model.modules() if isinstance(layer, nn.Linear)]
        return sum(size for size in sizes if size >= least)


def model_shape(model: PlugIn) -> ModelShape:
    """The shape of what a config's `model` names; weights, tokenizers and devices are not touched.

    Raises:
        ConfigError: options that are wrong, no such model, or one whose config cannot be read here.
    """
    return _shape(model.name, json.dumps(model.options, sort_keys=True))


@lru_cache(maxsize=16)
def _shape(name: str, said: str) -> ModelShape:
    spec = PlugIn(name, json.loads(said))
    if name == "chat":
        options = construct(ChatOptions, spec.options, place="model.options")
        config, source = _config_of(options.source)
        attention = "eager" if options.attention == "eager" else "sdpa"
        called = options.source.removeprefix(HUB)
        dtype = getattr(torch, options.dtype)
        model = without_weights(config, dtype, attention)
        return ModelShape(called, source, config, dtype, options.device, attention, model)
    language = language_of(spec)
    with torch.device("meta"):
        found = language.load(0)  # it says what it is by being made
    attention = "eager" if found.config._attn_implementation == "eager" else "sdpa"
    model = without_weights(found.config, found.dtype, attention)
    return ModelShape(name, "the model's own options", found.config, found.dtype, "cpu", attention, model)


def _config_of(source: str) -> tuple[PreTrainedConfig, str]:
    known = KNOWN.get(_SMOLLM2 if source == "smollm2" else source.removeprefix(HUB))
    if known is not None and (source == "smollm2" or source.startswith(HUB)):
        return known, "a table in this version of selfcest, copied from the model's config.json on the hub"
    where = "the hub's config.json" if source.startswith(HUB) else str(Path(source) / "config.json")
    return model_config(source), where


def device_memory(device: str) -> int | None:
    """Bytes of the GPU that a config names, as torch sees it here; `None`: it names none, or there is none."""
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)
