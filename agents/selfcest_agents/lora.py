"""LoRA through peft: low-rank additions train, the model that they are added to does not.

Adapters are put into a model in place, and it stays an object of its class: engines, row layouts and checkpointed
layers find what they expect. A model computes with one adapter at a time: with its only one, or of one per role with
the root's, but inside `acting_as`. peft is imported where a model gets one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from selfcest_agents.engine import mismatch
from selfcest_agents.lora_options import LoraOptions
from selfcest_env.errors import ConfigError, RecordError, did_you_mean, install_hint
from selfcest_env.types import Role

if TYPE_CHECKING:
    from peft.tuners.lora import Linear as LoraLinear

_ADAPTER = "default"
_OF_ADAPTER = re.compile(r"\.lora_[AB]\.")


def has_lora(model: nn.Module) -> bool:
    """Whether `add_lora` has put an adapter into the model and `merge_lora` has not taken it out."""
    return hasattr(model, "peft_config")


def add_lora(model: PreTrainedModel, options: LoraOptions, seed: int) -> None:
    """Freeze the model, in place, and put a new adapter into it, which changes no output until it is trained.

    With `per_role` there is one per role, all drawn alike.

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
        raise ConfigError(f"LoRA needs peft ({error}); run: {install_hint('lora')}") from error
    config = LoraConfig(r=options.rank, lora_alpha=options.alpha, lora_dropout=0.0, target_modules=targets)
    for name in map(str, Role) if options.per_role else (_ADAPTER,):
        if has_lora(model):
            del model.peft_config  # it names the first adapter alone, and peft would warn of a second
        with torch.random.fork_rng(devices=()):  # peft draws on the CPU, wherever the model is
            torch.default_generator.manual_seed(seed)
            inject_adapter_in_model(config, model, name)
        cast_adapter_dtype(model, name)
    if options.per_role:
        _act(_layers(model).values(), Role.ROOT)


def merge_lora(model: PreTrainedModel) -> None:
    """Add the adapter to the model's weights, in place, and take it out; every weight trains again.

    A model without one stays as it is. Raises `ConfigError` where there is one per role: they are not one model.
    """
    if has_roles(model):
        raise ConfigError("the model has an adapter per role; export_model writes each of them, inside acting_as")
    for path, layer in _layers(model).items():
        base = layer.get_base_layer()
        with torch.no_grad():
            base.get_parameter("weight").copy_(_merged(layer))
        model.set_submodule(path, base)
    if has_lora(model):
        del model.peft_config
        model.requires_grad_(True)


def has_roles(model: nn.Module) -> bool:
    """Whether `add_lora` has put an adapter per role into the model."""
    return any(Role.ROOT in layer.lora_A for layer in _layers(model).values())


def parameters_by_role(model: nn.Module) -> dict[Role, list[nn.Parameter]]:
    """The adapter of each role; empty where there is not one per role."""
    if not has_roles(model):
        return {}
    adapters = [(name.split(".")[-2], p) for name, p in model.named_parameters() if _OF_ADAPTER.search(name)]
    return {role: [parameter for adapter, parameter in adapters if adapter == role] for role in Role}


@contextmanager
def acting_as(model: PreTrainedModel, role: Role) -> Iterator[None]:
    """Inside, the model computes, and is merged and exported, with the adapter of this role.

    A model without one per role is what it always is. All adapters go on training.
    """
    layers = [layer for layer in _layers(model).values() if role in layer.lora_A]
    _act(layers, role)
    try:
        yield
    finally:
        _act(layers, Role.ROOT)


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
            _train(layer)


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


def _act(layers: Iterable[LoraLinear], role: Role) -> None:
    for layer in layers:
        layer.set_adapter(str(role))
        _train(layer)


def _train(layer: LoraLinear) -> None:
    """Every adapter of a layer, where peft has the active one train alone."""
    for matrices in (layer.lora_A, layer.lora_B):
        matrices.requires_grad_(True)


@torch.no_grad()
def _merged(layer: LoraLinear) -> Tensor:
    """W + alpha / rank * B A, summed in the wider of both dtypes."""
    weight = layer.get_base_layer().get_parameter("weight")
    (active,) = layer.active_adapters
    total: Tensor = weight + layer.get_delta_weight(active)
    return total.to(weight.dtype)
