"""LoRA with peft: low-rank adapters train, and the weights of the model do not.

Adapters are added to a model in place, so that it remains an object of its class, as engines, row layouts and
checkpointed layers need. A model computes with one adapter at a time. With an adapter per role this is the root's,
except inside `use_adapter`. peft is imported only when it is needed.
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

from selfcest_agents.engine import describe_mismatch
from selfcest_agents.lora_options import LoraOptions
from selfcest_env.errors import ConfigError, RecordError, did_you_mean, install_hint
from selfcest_env.types import Role

if TYPE_CHECKING:
    from peft.tuners.lora import Linear as LoraLinear

_ADAPTER = "default"
_ADAPTER_PARAMETER = re.compile(r"\.lora_[AB]\.")


def has_lora(model: nn.Module) -> bool:
    """Whether the model has an adapter, which `add_lora` adds and `merge_lora` removes."""
    return hasattr(model, "peft_config")


def add_lora(model: PreTrainedModel, options: LoraOptions, seed: int) -> None:
    """Freeze a model in place and add an adapter, or one per role. New adapters do not change the outputs.

    A half-precision model gets float32 adapters, because small steps would be lost in lower precision.

    Args:
        model: causal language model without an adapter.
        options: options of the adapters.
        seed: seed of the matrices A, in [0, 2**64). It is the same for all roles. Global random state does not change.

    Raises:
        ConfigError: peft is not installed, the model has an adapter already, or it has no such layers.
    """
    if has_lora(model):
        raise ConfigError("the model has a LoRA adapter already; merge it with merge_lora before you add another")
    targets = _find_targets(model, options.target_modules)
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.functional import cast_adapter_dtype
    except ImportError as error:
        raise ConfigError(f"LoRA needs peft ({error}); run: {install_hint('lora')}") from error
    config = LoraConfig(r=options.rank, lora_alpha=options.alpha, lora_dropout=0.0, target_modules=targets)
    for name in map(str, Role) if options.per_role else (_ADAPTER,):
        if has_lora(model):
            del model.peft_config  # it describes the first adapter only, and peft would warn of a second one
        with torch.random.fork_rng(devices=()):  # peft draws on the CPU, whatever the model's device
            torch.default_generator.manual_seed(seed)
            inject_adapter_in_model(config, model, name)
        cast_adapter_dtype(model, name)
    if options.per_role:
        _activate(_find_layers(model).values(), Role.ROOT)


def merge_lora(model: PreTrainedModel) -> None:
    """Add the adapter to the model's weights in place and remove it, so that all weights train again.

    A model without an adapter does not change.

    Raises:
        ConfigError: the model has an adapter per role, which cannot be merged into one model.
    """
    if has_roles(model):
        raise ConfigError("the model has an adapter per role; write each with export_model inside use_adapter")
    for path, layer in _find_layers(model).items():
        base = layer.get_base_layer()
        with torch.no_grad():
            base.get_parameter("weight").copy_(_merge_weight(layer))
        model.set_submodule(path, base)
    if has_lora(model):
        del model.peft_config
        model.requires_grad_(True)


def find_role_layers(model: nn.Module) -> list[LoraLinear]:
    """Return the layers with an adapter per role; empty if the model has none or one for all agents."""
    return [layer for layer in _find_layers(model).values() if Role.ROOT in layer.lora_A]


def has_roles(model: nn.Module) -> bool:
    """Whether the model has an adapter per role."""
    return bool(find_role_layers(model))


def parameters_by_role(model: nn.Module) -> dict[Role, list[nn.Parameter]]:
    """Return the parameters of each role's adapter; empty if the model has no adapter per role."""
    if not has_roles(model):
        return {}
    parameters: dict[Role, list[nn.Parameter]] = {role: [] for role in Role}
    for name, parameter in model.named_parameters():
        if _ADAPTER_PARAMETER.search(name):
            adapter = name.split(".")[-2]
            parameters[Role(adapter)].append(parameter)
    return parameters


@contextmanager
def use_adapter(model: PreTrainedModel, role: Role) -> Iterator[None]:
    """Compute, merge and export with the adapter of a role within the block. All adapters remain trainable.

    A model without an adapter per role does not change.
    """
    layers = [layer for layer in _find_layers(model).values() if role in layer.lora_A]
    _activate(layers, role)
    try:
        yield
    finally:
        _activate(layers, Role.ROOT)


@contextmanager
def without_lora(model: PreTrainedModel) -> Iterator[None]:
    """Compute without the adapter within the block. This gives the frozen reference model without a copy of it.

    A model without an adapter does not change.
    """
    layers = _find_layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
            _make_trainable(layer)


def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter with its name in a model without LoRA, and the adapter added, for `Engine.load_weights`.

    The model does not change, and only one merged tensor exists at a time. A merged tensor is rounded once, to the
    model's dtype. A model without an adapter yields its own parameters.
    """
    layers = _find_layers(model)
    for name, parameter in model.named_parameters():
        if layers and _ADAPTER_PARAMETER.search(name):
            continue
        module, _, kind = name.rpartition(".")
        path = module.removesuffix(".base_layer")
        if path in layers and kind == "weight":
            yield f"{path}.{kind}", _merge_weight(layers[path])
        else:
            yield f"{path}.{kind}", parameter.detach()


def trainable_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the trainable parameters by name, without copies: those of the adapters, or all if there is no adapter."""
    return {name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad}


def load_trainable_state(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors that `trainable_state` returned.

    Raises:
        RecordError: the tensors belong to another model or to other `LoraOptions`. The model is then unchanged.
    """
    parameters = trainable_state(model)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    expected = {name: parameter.shape for name, parameter in parameters.items()}
    mismatch = describe_mismatch(shapes, expected, "the trainable parameters of this model")
    if mismatch:
        raise RecordError(f"{mismatch}; load them with the model and LoRA options that they were saved with")
    for name, tensor in tensors.items():
        parameters[name].copy_(tensor)


def export_model(model: PreTrainedModel, folder: Path) -> None:
    """Write a model with its adapter merged as a folder for `AutoModelForCausalLM.from_pretrained`."""
    parameter_names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in parameter_names}
    model.save_pretrained(folder, state_dict={**buffers, **dict(merged_weights(model))})


def _find_targets(model: PreTrainedModel, target_modules: tuple[str, ...]) -> list[str]:
    """Return the full names of the linear layers that get an adapter.

    Args:
        model: model without an adapter.
        target_modules: names or ends of names; none for all linear layers except the output layer.

    Raises:
        ConfigError: no linear layer has one of these names, or the model has no linear layer.
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head]
    targets = set() if target_modules else set(names)
    absent = []
    for end in target_modules:
        matches = {name for name in names if f".{name}".endswith(f".{end}")}
        targets |= matches
        if not matches:
            absent.append(end)
    if absent or not targets:
        known = sorted({name.rpartition(".")[2] for name in names})
        raise ConfigError(
            f"lora.target_modules is {list(target_modules)}, and {type(model).__name__} has no such linear layer "
            f"{', '.join(map(repr, absent))} (the output layer takes no adapter); it has {', '.join(known) or 'none'}"
            + did_you_mean(absent[0] if absent else "", known)
        )
    return sorted(targets)


def _find_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """Return the layers with an adapter by their path. peft is imported only if there are any."""
    if not has_lora(model):
        return {}
    from peft.tuners.lora import Linear

    return {path: module for path, module in model.named_modules() if isinstance(module, Linear)}


def _activate(layers: Iterable[LoraLinear], role: Role) -> None:
    for layer in layers:
        layer.set_adapter(str(role))
        _make_trainable(layer)


def _make_trainable(layer: LoraLinear) -> None:
    """Make all adapters of a layer trainable. peft leaves only the active one trainable."""
    for matrices in (layer.lora_A, layer.lora_B):
        matrices.requires_grad_(True)


@torch.no_grad()
def _merge_weight(layer: LoraLinear) -> Tensor:
    """Return W + (alpha / rank) B A, summed in the wider of the two dtypes and rounded to that of W."""
    weight = layer.get_base_layer().get_parameter("weight")
    (active,) = layer.active_adapters
    total: Tensor = weight + layer.get_delta_weight(active)
    return total.to(weight.dtype)
