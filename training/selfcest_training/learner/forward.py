"""The learner's forward pass: log-probs of the trained ids, with the logits of one chunk of positions at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from selfcest_agents.weights import warn_of_slow_bfloat16
from selfcest_env.errors import ConfigError
from selfcest_training.learner.batch import RowLayout, TokenBatch
from selfcest_training.learner.block_attention import make_layer_contexts, use_block_attention
from selfcest_training.learner.eager_attention import can_use_eager_attention, use_eager_attention
from selfcest_training.learner.losses.functions import chosen_logprobs, entropies
from selfcest_training.learner.options import ForwardOptions, Precision

# Number of logits of one pass that are kept for the backward pass, as to recompute them takes longer than their 16 MiB
# are worth. Chunks of more logits are recomputed.
MAX_KEPT_LOGITS = 1 << 22
# From logits [M, V], ids [M] and temperature [M] to values [M, ...].
LogitFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


class Forward:
    """A model and the options of its forward pass.

    The model stays in evaluation mode, since its log-probs must be those of the sampler.

    Args:
        model: a causal language model of transformers, or such a model with adapters of peft.
        options: precision, chunks of logits, gradient checkpointing, compilation.
        check_head: whether to compare the output layer with the model's logits. A model without values (on the meta
            device) cannot be compared.

    Raises:
        ConfigError: the model changes the logits of its output layer, so they cannot be computed in chunks; it has no
            layers that can be checkpointed; its trained weights are half precision.
    """

    def __init__(
        self, model: PreTrainedModel, options: ForwardOptions = ForwardOptions(), *, check_head: bool = True
    ) -> None:
        _check_weights(model)
        self.model = model
        self.options = options
        if self._half:
            warn_of_slow_bfloat16(model.device, "set forward.autocast to float32")
        self._layers = _checkpointed_layers(model) if options.gradient_checkpointing else []
        trunk: Any = model
        if options.logit_chunk:
            trunk, self._head = _split_output_layer(model)
            if check_head:
                check_output_layer(model, options)
        self._trunk: Callable[..., Any] = torch.compile(trunk) if options.compile else trunk
        # A checkpointed layer is computed again outside of the block that replaces the attention.
        is_plain = not (options.compile or options.gradient_checkpointing or self._half)
        self._uses_eager_attention = is_plain and can_use_eager_attention(model)

    @property
    def in_blocks(self) -> bool:
        """Whether tree rows use attention in blocks, which skips most pairs of tokens that do not attend."""
        attention = self.model.config.get_text_config()._attn_implementation
        return self.model.device.type == "cpu" and attention == "sdpa" and not self.options.compile

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Return [B, T] log-probs of the ids at their temperature where `loss_mask` is True, 0 elsewhere.

        float32, or float64 if the model is. The first id of a context has 0.
        """
        return self._compute_per_token(batch, chosen_logprobs)

    def logprobs_and_entropy(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return `logprobs`, and likewise the entropy in nats of the distribution that each id was drawn from."""
        logprobs, entropy = self._compute_per_token(batch, _chosen_and_entropy).unbind(-1)
        return logprobs, entropy

    def hidden(self, batch: TokenBatch) -> Tensor:
        """Return [M, H] float32 hidden states of the last layer at the token before each trained id, in their order."""
        layout = _layout_of(batch)
        decoder, _ = _split_output_layer(self.model)
        with self._precision_and_attention(layout):
            states: Tensor = decoder(**self._make_inputs(layout)).last_hidden_state
        rows, columns = layout.sources
        return states[rows, columns].float()

    def _compute_per_token(self, batch: TokenBatch, function: LogitFunction) -> Tensor:
        """Return [B, T, ...] the values of `function` at the trained ids, 0 elsewhere."""
        # The logits at position t - 1 predict the id at t, hence the shift by one.
        trained = batch.loss_mask[:, 1:]
        layout = _layout_of(batch)
        ids = batch.token_ids[:, 1:][trained]
        temperature = batch.temperature[:, 1:][trained]
        representative, inverse = _deduplicate(layout, ids, temperature)
        layout = replace(layout, sources=layout.sources[:, representative])
        values = self.compute_at(layout, ids[representative], temperature[representative], function)[inverse]
        per_token = values.new_zeros((*trained.shape, *values.shape[1:]))
        mask = trained.view(*trained.shape, *(1,) * (values.dim() - 1))
        per_token = per_token.masked_scatter(mask, values)
        return torch.cat([torch.zeros_like(per_token[:, :1]), per_token], 1)

    def compute_at(
        self, layout: RowLayout, ids: Tensor, temperature: Tensor, function: LogitFunction = chosen_logprobs
    ) -> Tensor:
        """Return [M, ...] the values of `function` for the logits at `layout.sources`, ids [M], temperature [M]."""
        with self._precision_and_attention(layout), self._checkpointing():
            return self._compute_at(layout, ids, temperature, function)

    def _compute_at(self, layout: RowLayout, ids: Tensor, temperature: Tensor, function: LogitFunction) -> Tensor:
        inputs = self._make_inputs(layout)
        rows, columns = layout.sources
        if not self.options.logit_chunk:
            needed_columns, columns = torch.unique(columns, return_inverse=True)
            logits = self._trunk(**inputs, logits_to_keep=needed_columns).logits
            if logits.shape[1] != len(needed_columns):
                raise ConfigError(
                    f"forward.logit_chunk is 0 and {type(self.model).__name__} computes the logits of all positions, "
                    "since it ignores logits_to_keep; set forward.logit_chunk to 256"
                )
            return function(logits[rows, columns], ids, temperature)
        hidden = self._trunk(**inputs).last_hidden_state[rows, columns]
        size = self.options.logit_chunk
        chunks = zip(*(values.split(size) for values in (hidden, ids, temperature)), strict=True)
        apply_head: Callable[..., Tensor] = self._apply_head
        if len(ids) * self.model.config.get_text_config().vocab_size > MAX_KEPT_LOGITS:
            # Each chunk's logits are freed after use and recomputed in the backward pass.
            apply_head = partial(checkpoint, apply_head, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([apply_head(*chunk, function) for chunk in chunks])

    def _apply_head(self, hidden: Tensor, ids: Tensor, temperature: Tensor, function: LogitFunction) -> Tensor:
        return function(self._head(hidden), ids, temperature)

    def _make_inputs(self, layout: RowLayout) -> dict[str, Any]:
        """Make the arguments of the model's forward pass."""
        return {
            "input_ids": layout.token_ids,
            "attention_mask": self._attention_mask(layout),
            "position_ids": layout.positions,
            "use_cache": False,
        }

    def _attention_mask(self, layout: RowLayout) -> Tensor | None:
        """Return an additive mask, because eager attention adds the mask: True would add 1."""
        if layout.visible is None:
            return None
        # In the dtype of the queries, or every layer would keep a converted copy. Autocast does not change float64.
        dtype = torch.bfloat16 if self._half and self.model.dtype == torch.float32 else self.model.dtype
        mask = torch.zeros(layout.visible.shape, dtype=dtype, device=layout.visible.device)
        return mask.masked_fill_(~layout.visible, float("-inf"))[:, None]

    @property
    def _half(self) -> bool:
        return self.options.autocast == Precision.BFLOAT16

    @contextmanager
    def _precision_and_attention(self, layout: RowLayout) -> Iterator[None]:
        uses_blocks = layout.visible is not None and self.in_blocks
        attention: AbstractContextManager[None] = nullcontext()
        if uses_blocks:
            attention = use_block_attention(self.model)
        elif self._uses_eager_attention:
            attention = use_eager_attention(self.model)
        precision = torch.autocast(self.model.device.type, torch.bfloat16, enabled=self._half)
        with precision, attention:
            yield

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        # transformers checkpoints a layer only in training mode. The flag is set on the layer itself and not on its
        # modules, so that dropout stays off.
        for layer in self._layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in self._layers:
                layer.training = False


def _layout_of(batch: TokenBatch) -> RowLayout:
    return batch.layout or RowLayout(batch.token_ids, None, None, batch.loss_mask[:, 1:].nonzero().T)


def _deduplicate(layout: RowLayout, ids: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Find the trained ids that share source, id and temperature, which tree rows have many of.

    Over a large vocabulary the logits are most of the cost, so each distinct triple is computed once.

    Returns:
        [K] index of a representative for each of K distinct triples, and [M] the triple of each of the M trained ids.
    """
    rows, columns = layout.sources
    temperatures, temperature_index = torch.unique(temperature, return_inverse=True)
    position = rows * layout.token_ids.shape[1] + columns
    num_ids = int(ids.max()) + 1 if len(ids) else 1
    # Every triple as one number: the digits of position, temperature and id in a mixed base.
    key = (position * len(temperatures) + temperature_index) * num_ids + ids
    distinct_keys, inverse = torch.unique(key, return_inverse=True)
    indices = torch.arange(len(ids), device=ids.device)
    representative = inverse.new_empty(len(distinct_keys)).scatter_(0, inverse, indices)
    return representative, inverse


def _chosen_and_entropy(logits: Tensor, ids: Tensor, temperature: Tensor) -> Tensor:
    return torch.stack((chosen_logprobs(logits, ids, temperature), entropies(logits, temperature)), -1)


def _check_weights(model: PreTrainedModel) -> None:
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype in (torch.bfloat16, torch.float16):
            raise ConfigError(
                f"{name} trains and is {str(weight.dtype).removeprefix('torch.')}, in which small steps are lost; load "
                "the model in float32 and set forward.autocast to 'bfloat16'"
            )


def _split_output_layer(model: Any) -> tuple[Any, Any]:
    """Return the model without its output layer, and that layer or `None`."""
    return model.get_decoder(), model.get_output_embeddings()


@torch.no_grad()
def check_output_layer(model: PreTrainedModel, options: ForwardOptions) -> None:
    """Raise `ConfigError` unless the model's logits are those of its output layer, bit for bit, on two ids."""
    ids = torch.tensor([[0, 1]], device=model.device)
    trunk, head = _split_output_layer(model)
    if head is not None:
        expected = model(input_ids=ids, use_cache=False).logits
        logits = head(trunk(input_ids=ids, use_cache=False).last_hidden_state)
        if torch.equal(logits.to(expected.dtype), expected):
            return
    raise ConfigError(
        f"forward.logit_chunk is {options.logit_chunk} and the logits of {type(model).__name__} are not those of its "
        "output layer (some models scale or cap them); set forward.logit_chunk to 0"
    )


def _checkpointed_layers(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"forward.gradient_checkpointing is true and {type(model).__name__} has no layers that transformers can "
            "checkpoint; set it to false"
        )
    contexts = partial(make_layer_contexts, model)
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False, "context_fn": contexts})
    return layers
