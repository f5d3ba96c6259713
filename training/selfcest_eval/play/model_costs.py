"""Costs that follow from a model's dimensions: floating-point operations, and memory.

Two strategies with equal tokens can differ in both: a token attends to all earlier tokens of its own context, so it
costs more in one long context than in many short ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from selfcest_agents.pretrained import model_config
from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeRecord
from selfcest_env.structure import Name, Positive
from selfcest_env.types import AgentId
from selfcest_eval.play.costs import ConcurrentContext, EpisodeCost

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class DecoderShape:
    """The dimensions of a decoder that its costs depend on.

    Attributes:
        weights: number of parameters, tied ones counted once.
        layer_weights: those of them that are in no embedding and in no output projection.
        output_weights: number of parameters of the output projection, which may be those of the embedding.
        layers: number of layers.
        query_width: number of query heads times their dimension.
        key_width: number of key heads times their dimension.
    """

    weights: int
    layer_weights: int
    output_weights: int
    layers: int
    query_width: int
    key_width: int

    def flops(self, start: int, stop: int) -> float:
        """Return the operations of a forward pass over the positions from `start` to before `stop` of one context.

        A token at position i, from 0, costs 2 N + 4 L d (i + 1): a multiplication and an addition for each of the N
        parameters outside of embeddings, and the same for each of the d channels of a query with each of i + 1 keys and
        values, in each of L layers. It is a third of the operations of training in Chowdhery et al. (PaLM, arXiv
        2204.02311, appendix B), 6 N + 12 L H Q T, with d = H Q and the exact number of keys in the place of T. Softmax,
        norms and activations are left out, and the output projection too, which generated tokens alone need.
        """
        num_keys = (stop * (stop + 1) - start * (start + 1)) // 2
        return 2.0 * self.layer_weights * (stop - start) + 4.0 * self.layers * self.query_width * num_keys

    @property
    def output_flops(self) -> float:
        """The operations of the output projection for one generated token."""
        return 2.0 * self.output_weights

    @property
    def cached_numbers(self) -> int:
        """The numbers that the cache of keys and values holds for one token."""
        return 2 * self.layers * self.key_width


@cache
def read_shape(source: str) -> DecoderShape:
    """Return the shape of a chat model (`ChatOptions.source`), from its config alone. Raises `ConfigError`."""
    return make_shape(source, model_config(source))


def make_shape(source: str, config: PreTrainedConfig) -> DecoderShape:
    """Return the shape of the decoder of a config.

    Raises:
        ConfigError: the formulas of costs do not hold for the model; the message names it by `source`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    _check_layers(source, config)
    heads = config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    # On the meta device parameters have shapes and no values.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    outside_layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    embeddings = {id(weight): weight.numel() for module in outside_layers if module for weight in module.parameters()}
    weights = sum(weight.numel() for weight in model.parameters())
    return DecoderShape(
        weights=weights,
        layer_weights=weights - sum(embeddings.values()),
        output_weights=model.get_output_embeddings().weight.numel(),
        layers=config.num_hidden_layers,
        query_width=heads * head_width,
        key_width=(getattr(config, "num_key_value_heads", None) or heads) * head_width,
    )


def _check_layers(source: str, config: PreTrainedConfig) -> None:
    """Raise `ConfigError` if tokens do not attend to all earlier ones, or do not use all weights."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    window = window or getattr(config, "attention_window", None)
    layer_types = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if window is not None or layer_types:
        layers = f"layers of {', '.join(sorted(layer_types))}" if layer_types else f"an attention window of {window}"
        raise ConfigError(
            f"model is {source}, which has {layers}; expected full attention in every layer, since the formulas of "
            "costs count all earlier tokens as keys; use another model"
        )
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if getattr(config, name, None):
            raise ConfigError(
                f"model is {source}, which has {getattr(config, name)} experts; expected a model without experts, "
                "since the formulas of costs count every weight for every token; use another model"
            )


@dataclass(frozen=True)
class ModelCost(EpisodeCost):
    """The base of costs of a model.

    Attributes:
        model: the model, as `source` of a chat model. Only its config is read.
    """

    model: Name

    @property
    def shape(self) -> DecoderShape:
        return read_shape(self.model)

    def check(self) -> None:
        try:
            _ = self.shape
        except AttributeError as error:
            raise ConfigError(f"model is {self.model}, whose config lacks a dimension: {error}") from error


@dataclass(frozen=True)
class Flops(ModelCost):
    """Floating-point operations of all agents; see `DecoderShape.flops`.

    Every token of a context is computed once: an agent's own earlier tokens are in its cache, those of other agents are
    not. So the system prompt counts in full for each agent, although an engine with a prefix cache computes it once.

    Attributes:
        phase: "prefill" for the tokens that the environment wrote, "decoding" for generated ones, or "all".
    """

    phase: Literal["all", "prefill", "decoding"] = "all"

    def of(self, episode: EpisodeRecord) -> float:
        total = 0.0
        for agent in episode.agents:
            position = 0
            for turn in agent.turns:
                generated_from = position + turn.facts.prompt_tokens
                stop = generated_from + turn.facts.generated_tokens
                if self.phase != "decoding":
                    total += self.shape.flops(position, generated_from)
                if self.phase != "prefill":
                    total += self.shape.flops(generated_from, stop)
                    total += self.shape.output_flops * turn.facts.generated_tokens
                position = stop
        return total


@dataclass(frozen=True)
class IdealMemory(ModelCost):
    """Bytes of the weights, and of the largest cache of keys and values at one time, as an ideal engine needs them.

    It is computed from tokens and not measured. Activations, padding, unused capacity and second copies of weights are
    left out, so a process needs more.

    Attributes:
        weight_bytes, cache_bytes: bytes of a weight, and of a number in the cache; 4 in float32, 2 in bfloat16.
        concurrent: whether all clones of a call run at once, as in `ConcurrentContext`. Otherwise one agent runs at a
            time, and the cache holds its context and those of its waiting ancestors, at their full lengths.
    """

    weight_bytes: Positive = 4.0
    cache_bytes: Positive = 4.0
    concurrent: bool = True

    def of(self, episode: EpisodeRecord) -> float:
        if self.concurrent:
            tokens = ConcurrentContext().of(episode)
        else:
            tokens = max(_count_chain(episode, agent.agent_id) for agent in episode.agents)
        return self._weights + self.cache_bytes * self.shape.cached_numbers * tokens

    def over_samples(self, values: Iterable[float]) -> float:
        # Samples run at once, and share the weights.
        return self._weights + sum(value - self._weights for value in values)

    def in_series(self, values: Iterable[float]) -> float:
        return max(values)

    @property
    def _weights(self) -> float:
        return self.weight_bytes * self.shape.weights


def _count_chain(episode: EpisodeRecord, agent_id: AgentId) -> int:
    """Return the tokens in the contexts of an agent and of its ancestors."""
    parent = agent_id.parent
    above = 0 if parent is None else _count_chain(episode, parent)
    return above + episode.by_id[agent_id].context_tokens
