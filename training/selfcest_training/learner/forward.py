"""The learner's forward pass: log-probs of the ids that train, and never more logits than a chunk of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from selfcest_env.errors import ConfigError
from selfcest_training.learner.batch import RowLayout, TokenBatch
from selfcest_training.learner.block_attention import in_blocks, same_attention
from selfcest_training.learner.losses.functions import chosen_logprobs, entropies
from selfcest_training.learner.options import ForwardOptions, Precision

Read = Callable[[Tensor, Tensor, Tensor], Tensor]  # from logits [M, V], ids [M] and temperature [M] to [M, ...]


class Forward:
    """A model and how it is computed. The model stays in evaluation mode: log-probs must be those of the sampler.

    Args:
        model: a causal language model of transformers, or such a model with adapters of peft.
        options: see there.
        check_head: whether to compare logits, which takes a model with values.

    Raises:
        ConfigError: the model's logits are more than its output layer gives, so that they cannot be made in chunks; it
            has no layers that can be computed again; its trained weights are half precision.
    """

    def __init__(
        self, model: PreTrainedModel, options: ForwardOptions = ForwardOptions(), *, check_head: bool = True
    ) -> None:
        _check_weights(model)
        self.model, self.options = model, options
        self._layers = _checkpointed_layers(model) if options.gradient_checkpointing else []
        trunk: Any = model
        if options.logit_chunk:
            trunk, self._head = _parts(model)
            if check_head:
                check_output_layer(model, options)
        self._trunk: Callable[..., Any] = torch.compile(trunk) if options.compile else trunk

    @property
    def in_blocks(self) -> bool:
        """Whether tree rows are computed so that what a token does not see costs next to nothing."""
        attention = self.model.config.get_text_config()._attn_implementation
        return self.model.device.type == "cpu" and attention == "sdpa" and not self.options.compile

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """[B, T] float32 log-prob of each id at its temperature where `loss_mask` is True; 0 elsewhere.

        float64 if the model is. An id that nothing precedes has 0.
        """
        return self._placed(batch, chosen_logprobs)

    def logprobs_and_entropy(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """`logprobs`, and in the same way the entropy of the distribution that each id was drawn from."""
        logprobs, entropy = self._placed(batch, _chosen_and_entropy).unbind(-1)
        return logprobs, entropy

    def hidden(self, batch: TokenBatch) -> Tensor:
        """[M, H] float32 hidden state of the last layer at the token before each id that trains, in their order."""
        layout = _layout(batch)
        decoder, _ = _parts(self.model)
        given = {"attention_mask": self._mask(layout), "position_ids": layout.positions}
        with self._computing(layout):
            states: Tensor = decoder(input_ids=layout.token_ids, **given, use_cache=False).last_hidden_state
        rows, columns = layout.sources
        return states[rows, columns].float()

    def _placed(self, batch: TokenBatch, read: Read) -> Tensor:
        """[B, T, ...] what is read off the logits that predict each id that trains; 0 elsewhere."""
        trained = batch.loss_mask[:, 1:]
        layout = _layout(batch)
        ids, temperature = batch.token_ids[:, 1:][trained], batch.temperature[:, 1:][trained]
        once, again = _distinct(layout, ids, temperature)
        layout = replace(layout, sources=layout.sources[:, once])
        found = self.at(layout, ids[once], temperature[once], read)[again]
        placed = found.new_zeros((*trained.shape, *found.shape[1:]))
        placed = placed.masked_scatter(trained.view(*trained.shape, *(1,) * (found.dim() - 1)), found)
        return torch.cat([torch.zeros_like(placed[:, :1]), placed], 1)

    def at(self, layout: RowLayout, ids: Tensor, temperature: Tensor, read: Read = chosen_logprobs) -> Tensor:
        """[M, ...] what is read off the logits at `layout.sources`, of ids [M] at temperature [M]."""
        with self._computing(layout), self._computed_again():
            return self._read(layout, ids, temperature, read)

    def _read(self, layout: RowLayout, ids: Tensor, temperature: Tensor, read: Read) -> Tensor:
        """[M, ...] of the ids that train."""
        given = {"attention_mask": self._mask(layout), "position_ids": layout.positions}
        run = partial(self._trunk, input_ids=layout.token_ids, **given, use_cache=False)
        rows, columns = layout.sources
        if not self.options.logit_chunk:
            kept, columns = torch.unique(columns, return_inverse=True)
            logits = run(logits_to_keep=kept).logits
            if logits.shape[1] != len(kept):
                raise ConfigError(
                    f"forward.logit_chunk is 0 and {type(self.model).__name__} gives the logits of all positions, "
                    "whatever is asked for; set forward.logit_chunk to 256"
                )
            return read(logits[rows, columns], ids, temperature)
        hidden = run().last_hidden_state[rows, columns]
        chunks = zip(*(values.split(self.options.logit_chunk) for values in (hidden, ids, temperature)), strict=True)
        again = partial(checkpoint, self._chunk, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([again(*chunk, read) for chunk in chunks])

    def _chunk(self, hidden: Tensor, ids: Tensor, temperature: Tensor, read: Read) -> Tensor:
        return read(self._head(hidden), ids, temperature)

    def _mask(self, layout: RowLayout) -> Tensor | None:
        """Additive, because eager attention adds whatever it is given: True would be + 1."""
        if layout.visible is None:
            return None
        # In the dtype of the queries, or every layer would keep its own copy; autocast leaves float64 alone.
        dtype = torch.bfloat16 if self._half and self.model.dtype == torch.float32 else self.model.dtype
        mask = torch.zeros(layout.visible.shape, dtype=dtype, device=layout.visible.device)
        return mask.masked_fill_(~layout.visible, float("-inf"))[:, None]

    @property
    def _half(self) -> bool:
        return self.options.autocast == Precision.BFLOAT16

    @contextmanager
    def _computing(self, layout: RowLayout) -> Iterator[None]:
        attention = in_blocks(self.model) if layout.visible is not None and self.in_blocks else nullcontext()
        half = torch.autocast(self.model.device.type, torch.bfloat16, enabled=self._half)
        with half, attention:
            yield

    @contextmanager
    def _computed_again(self) -> Iterator[None]:
        """Layers are checkpointed in training mode alone; theirs is set, that of what drops out within them is not."""
        for layer in self._layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in self._layers:
                layer.training = False


def _layout(batch: TokenBatch) -> RowLayout:
    return batch.layout or RowLayout(batch.token_ids, None, None, batch.loss_mask[:, 1:].nonzero().T)


def _distinct(layout: RowLayout, ids: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """[K] which of the M ids that train to read, and [M] where each finds itself among them.

    Samples that a tree row has joined share sources, and most of them ids too: over a large vocabulary that is most of
    what reading costs.
    """
    rows, columns = layout.sources
    temperatures, kind = torch.unique(temperature, return_inverse=True)
    place = rows * layout.token_ids.shape[1] + columns
    key = (place * len(temperatures) + kind) * (int(ids.max()) + 1 if len(ids) else 1) + ids
    distinct, again = torch.unique(key, return_inverse=True)
    once = again.new_empty(len(distinct)).scatter_(0, again, torch.arange(len(ids), device=ids.device))
    return once, again


def _chosen_and_entropy(logits: Tensor, ids: Tensor, temperature: Tensor) -> Tensor:
    return torch.stack((chosen_logprobs(logits, ids, temperature), entropies(logits, temperature)), -1)


def _check_weights(model: PreTrainedModel) -> None:
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.dtype in (torch.bfloat16, torch.float16):
            raise ConfigError(
                f"{name} trains and is {str(weight.dtype).removeprefix('torch.')}, in which small steps are lost; load "
                "the model in float32 and set forward.autocast to 'bfloat16'"
            )


def _parts(model: Any) -> tuple[Any, Any]:
    """The model without its output layer, and that layer; `None` if it has none."""
    return model.get_decoder(), model.get_output_embeddings()


@torch.no_grad()
def check_output_layer(model: PreTrainedModel, options: ForwardOptions) -> None:
    """Raise `ConfigError` unless, on the same hidden states, the model's logits are its output layer's, bit for bit.

    Two ids tell.
    """
    ids = torch.tensor([[0, 1]], device=model.device)
    trunk, head = _parts(model)
    if head is not None:
        expected = model(input_ids=ids, use_cache=False).logits
        found = head(trunk(input_ids=ids, use_cache=False).last_hidden_state)
        if torch.equal(found.to(expected.dtype), expected):
            return
    raise ConfigError(
        f"forward.logit_chunk is {options.logit_chunk} and the logits of {type(model).__name__} are not what its "
        "output layer gives (some models scale or cap them); set forward.logit_chunk to 0"
    )


def _checkpointed_layers(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"forward.gradient_checkpointing is true and {type(model).__name__} has no layers that transformers can "
            "compute again; set it to false"
        )
    again = {"use_reentrant": False, "preserve_rng_state": False, "context_fn": partial(same_attention, model)}
    model.gradient_checkpointing_enable(again)
    return layers
