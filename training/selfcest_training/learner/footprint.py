"""The memory of the learner's forward and backward pass, measured on tensors without data.

The pass is the learner's own `Forward` on fake CPU tensors. Shapes, dtypes and the tensors that autograd saves are
those of a real pass, and no memory is allocated. The workspace of single kernels is not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from selfcest_agents.lora import add_lora
from selfcest_agents.lora_options import LoraOptions
from selfcest_training.learner.batch import RowLayout
from selfcest_training.learner.forward import Forward
from selfcest_training.learner.options import ForwardOptions

# Where all layers are alike, two passes with few layers give the memory that each further layer adds.
_FEW_LAYERS = (3, 4)


@dataclass(frozen=True)
class RowShape:
    """The shape of one micro-batch.

    Attributes:
        rows, length: ids are [rows, length].
        dense: whether attention takes a mask [rows, length, length], as for tree rows.
    """

    rows: int
    length: int
    dense: bool


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operations create inside it: present (`now`) and largest (`peak`)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known_storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # An operation may return its inputs, which existed before and are not counted.
        self._register((args, kwargs), counted=False)
        result = func(*args, **(kwargs or {}))
        self._register(result, counted=True)
        return result

    def _register(self, values: Any, counted: bool) -> None:
        for tensor in tree_leaves(values):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in self._known_storages:
                continue
            self._known_storages.add(storage._cdata)
            size = storage.nbytes() if counted else 0
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._release, storage._cdata, size)

    def _release(self, address: int, size: int) -> None:
        self._known_storages.discard(address)
        self.now -= size


def build_weightless_model(
    config: PreTrainedConfig, dtype: torch.dtype, attention: str, lora: LoraOptions | None = None
) -> PreTrainedModel:
    """Build the model and its adapter with parameters that have shapes and no data (the meta device)."""
    with torch.device("meta"), no_init_weights():
        build: Any = AutoModelForCausalLM
        model: PreTrainedModel = build.from_config(deepcopy(config), dtype=dtype, attn_implementation=attention).eval()
        # `no_init_weights` skips this step.
        model.tie_weights()
        if lora is not None:
            add_lora(model, lora, 0)
    return model


def measure_pass_bytes(
    make: Callable[[PreTrainedConfig], PreTrainedModel],
    config: PreTrainedConfig,
    forward: ForwardOptions,
    rows: RowShape,
) -> int:
    """Return the peak bytes of one micro-batch's forward and backward pass, without weights and gradients.

    All ids of a row except its first are trained, and the gradients of an earlier micro-batch exist already.

    Args:
        make: builds a model without weights from a config, see `build_weightless_model`.
        config: of the full model.
        forward: options of the forward pass.
        rows: shape of the micro-batch.
    """

    def peak_with(layers: int) -> int:
        shortened = deepcopy(config)
        shortened.num_hidden_layers = layers
        if getattr(shortened, "layer_types", None):
            shortened.layer_types = shortened.layer_types[:layers]
        return _peak_bytes(make(shortened), forward, rows)

    num_layers = int(config.num_hidden_layers)
    fewer, more = _FEW_LAYERS
    has_unequal_layers = len(set(getattr(config, "layer_types", None) or [0])) > 1
    if num_layers <= more or has_unequal_layers:
        return peak_with(num_layers)
    peak_of_more = peak_with(more)
    bytes_per_layer = peak_of_more - peak_with(fewer)
    return peak_of_more + (num_layers - more) * bytes_per_layer


def _peak_bytes(model: PreTrainedModel, options: ForwardOptions, rows: RowShape) -> int:
    with FakeTensorMode():
        _replace_tensors(model, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        with LiveBytes() as live:
            run_one_pass(_FakeForward(model, options, check_head=False), rows)
    return int(live.peak)


def run_one_pass(forward: Forward, shape: RowShape) -> None:
    """Run forward and backward over ids of 0, all of them trained except the first of each row."""
    ids = torch.zeros(shape.rows, shape.length, dtype=torch.long)
    trained_per_row = shape.length - 1
    trained = torch.arange(shape.rows * trained_per_row)
    sources = torch.stack((trained // trained_per_row, trained % trained_per_row))
    positions = None
    visible = None
    if shape.dense:
        positions = torch.arange(shape.length).expand(shape.rows, -1)
        visible = torch.ones(shape.length, shape.length, dtype=torch.bool).tril().repeat(shape.rows, 1, 1)
    layout = RowLayout(ids, positions, visible, sources)
    torch.autograd.backward(forward.compute_at(layout, ids[:, 1:].flatten(), torch.ones(len(trained))).sum())


class _FakeForward(Forward):
    @property
    def in_blocks(self) -> bool:
        # Attention in blocks depends on values, which fake tensors lack; on a GPU the mask is dense.
        return False


def _replace_tensors(model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Replace parameters and buffers by `make(tensor)`; tied parameters stay tied."""
    replacements: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in replacements:
                    replacements[id(parameter)] = nn.Parameter(make(parameter), parameter.requires_grad)
                module._parameters[name] = replacements[id(parameter)]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else make(buffer)
