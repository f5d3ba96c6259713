"""LoRA through peft: low-rank additions train, the model that they are added to does not.

Adapters are put into a model in place, and it stays an object of its class: engines, row layouts and checkpointed
layers find what they expect. One adapter at a time; peft is imported where a model gets one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from selfcest_agents.engine import mismatch
from selfcest_agents.lora_options import LoraOptions
from selfcest_env.errors import ConfigError, RecordError, did_you_mean

if TYPE_CHECKING:
    from peft.tuners.lora import Linear as LoraLinear

_ADAPTER = "default"
_OF_ADAPTER = re.compile(r"\.lora_[AB]\.")


def has_lora(model: nn.Module) -> bool:
    """Whether `add_lora` has put an adapter into the model and `merge_lora` has not taken it out."""
    return hasattr(model, "peft_config")


def add_lora(model: PreTrainedModel, options: LoraOptions, seed: int) -> None:
    """Freeze the model, in place, and put a new adapter into it, which changes no output until it is trained.

    A half-precision model gets float32 adapters: small steps would be lost in anything less.

    Args:
        model: a causal language model without an adapter.
        options: see there.
        seed: of A, in [0, 2**64); global random state is left as it was.

    Raises:
        ConfigError: peft is not installed, there is an adapter already, or no such layers.
    """
    if has_lora(model):
        raise ConfigError("the model has a LoRA adapter already; merge_lora it, then add the next")
    targets = _targets(model, options.target_modules)
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.functional import cast_adapter_dtype
    except ImportError as error:
        raise ConfigError(f"LoRA needs peft ({error}); run: pip install 'selfcest[lora]'") from error
    config = LoraConfig(r=options.rank, lora_alpha=options.alpha, lora_dropout=0.0, target_modules=targets)
    with torch.random.fork_rng(devices=()):  # peft draws on the CPU, wherever the model is
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(config, model, _ADAPTER)
    cast_adapter_dtype(model, _ADAPTER)


def merge_lora(model: PreTrainedModel) -> None:
    """Add the adapter to the model's weights, in place, and take it out; every weight trains again.

    A model without one stays as it is.
    """
    for path, layer in _layers(model).items():
        base = layer.get_base_layer()
        with torch.no_grad():
            base.get_parameter("weight").copy_(_merged(layer))
        model.set_submodule(path, base)
    if has_lora(model):
        del model.peft_config
        model.requires_grad_(True)


@contextmanager
def without_lora(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model computes what it did before `add_lora`: a frozen reference without a second copy.

    A model without an adapter computes what it always does.
    """
    layers = _layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Every parameter by the name that it has without LoRA, the adapter added to it; for `Engine.load_weights`.

    The model does not change, and one sum at a time is made. They have the model's dtype and are rounded to it once. Of
    a model without an adapter these are its own parameters.
    """
    layers = _layers(model)
    for name, parameter in model.named_parameters():
        if layers and _OF_ADAPTER.search(name):
            continue
        module, _, kind = name.rpartition(".")
        path = module.removesuffix(".base_layer")
        merged = path in layers and kind == "weight"
        yield f"{path}.{kind}", _merged(layers[path]) if merged else parameter.detach()


def trainable_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The parameters that train, by name: the adapter's, or without one all. They are the model's own, not copies."""
    return {name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad}


def load_trainable_state(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Put what `trainable_state` gave back, all or nothing.

    Raises:
        RecordError: it is the state of another model, or of other `LoraOptions`.
    """
    own = trainable_state(model)
    found, expected = ({name: tensor.shape for name, tensor in side.items()} for side in (tensors, own))
    if wrong := mismatch(found, expected, "what trains in this model"):
        raise RecordError(f"{wrong}; load it with the model and LoRA options it had")
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def export_model(model: PreTrainedModel, folder: Path) -> None:
    """Write the model, its adapter merged into it, as a plain folder for `AutoModelForCausalLM.from_pretrained`."""
    named = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in named}
    model.save_pretrained(folder, state_dict={**buffers, **dict(merged_weights(model))})


def _targets(model: PreTrainedModel, wanted: tuple[str, ...]) -> list[str]:
    """Full names of the linear layers that are wanted, checked before anything has changed."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head]
    chosen = {name for name in linear if not wanted or any(f".{name}".endswith(f".{end}") for end in wanted)}
    absent = [end for end in wanted if not any(f".{name}".endswith(f".{end}") for name in chosen)]
    if absent or not chosen:
        known = sorted({name.rpartition(".")[2] for name in linear})
        raise ConfigError(
            f"lora.target_modules is {list(wanted)}, and {type(model).__name__} has no such linear layer "
            f"{', '.join(map(repr, absent))} (the output layer takes no adapter); it has {', '.join(known) or 'none'}"
            + did_you_mean(absent[0] if absent else "", known)
        )
    return sorted(chosen)


def _layers(model: nn.Module) -> dict[str, LoraLinear]:
    """Layers with an adapter, by their path; peft is imported only if there are any."""
    if not has_lora(model):
        return {}
    from peft.tuners.lora import Linear

    return {path: module for path, module in model.named_modules() if isinstance(module, Linear)}


@torch.no_grad()
def _merged(layer: LoraLinear) -> Tensor:
    """W + alpha / rank * B A, summed in the wider of both dtypes."""
    weight = layer.get_base_layer().get_parameter("weight")
    total: Tensor = weight + layer.get_delta_weight(_ADAPTER)
    return total.to(weight.dtype)
