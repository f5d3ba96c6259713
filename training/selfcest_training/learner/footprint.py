"""What the learner's forward and backward pass hold in memory, found by doing them on tensors without data.

The pass is the learner's own `Forward`, on fake tensors of a CPU: shapes, dtypes and what autograd keeps are those of a
real pass, and nothing is allocated. What a kernel takes for itself while it works is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

_FEW = (3, 4)  # layers that a pass is done with where all are alike: what each of the others adds is the difference


@dataclass(frozen=True)
class RowShape:
    """Rows of one micro-batch.

    Attributes:
        rows, length: ids are [rows, length].
        dense: what a token sees is given by a mask [rows, length, length], as for tree rows.
    """

    rows: int
    length: int
    dense: bool


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that operations make inside it: `now`, and at `peak`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs), counted=False)  # what was there before, which an operation may return
        out = func(*args, **(kwargs or {}))
        self._note(out, counted=True)
        return out

    def _note(self, values: Any, counted: bool) -> None:
        for tensor in tree_leaves(values):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self._seen:
                self._seen.add(storage._cdata)
                size = storage.nbytes() if counted else 0
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, storage._cdata, size)

    def _gone(self, place: int, size: int) -> None:
        self._seen.discard(place)
        self.now -= size


def without_weights(
    config: PreTrainedConfig, dtype: torch.dtype, attention: str, lora: LoraOptions | None = None
) -> PreTrainedModel:
    """The model with parameters that have shapes and no data, its adapter in place."""
    with torch.device("meta"), no_init_weights():
        build: Any = AutoModelForCausalLM
        model: PreTrainedModel = build.from_config(deepcopy(config), dtype=dtype, attn_implementation=attention).eval()
        model.tie_weights()  # which is left out with the initial weights
        if lora is not None:
            add_lora(model, lora, 0)
    return model


def pass_bytes(
    make: Callable[[PreTrainedConfig], PreTrainedModel],
    config: PreTrainedConfig,
    forward: ForwardOptions,
    rows: RowShape,
) -> int:
    """Bytes at the peak of one micro-batch's forward and backward pass, beside weights and gradients.

    Every id of the rows but the first of each trains, and gradients of an earlier micro-batch are there already.

    Args:
        make: the model `without_weights`, by its config.
        config: of the whole model.
        forward: how it is computed.
        rows: what it is given.
    """

    def peak(layers: int) -> int:
        few = deepcopy(config)
        few.num_hidden_layers = layers
        if getattr(few, "layer_types", None):
            few.layer_types = few.layer_types[:layers]
        return _peak(make(few), forward, rows)

    count = int(config.num_hidden_layers)
    if count <= _FEW[1] or len(set(getattr(config, "layer_types", None) or [0])) > 1:
        return peak(count)
    less, more = (peak(layers) for layers in _FEW)
    return more + (count - _FEW[1]) * (more - less)


def _peak(model: PreTrainedModel, options: ForwardOptions, rows: RowShape) -> int:
    with FakeTensorMode():
        _without_data(model, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        with LiveBytes() as live:
            one_pass(_FakeForward(model, options, check_head=False), rows)
    return int(live.peak)


def one_pass(forward: Forward, shape: RowShape) -> None:
    """Forward and backward over ids that are 0, each trained but the first of a row."""
    ids = torch.zeros(shape.rows, shape.length, dtype=torch.long)
    kept = torch.arange(shape.rows * (shape.length - 1))
    sources = torch.stack((kept // (shape.length - 1), kept % (shape.length - 1)))
    positions = visible = None
    if shape.dense:
        positions = torch.arange(shape.length).expand(shape.rows, -1)
        visible = torch.ones(shape.length, shape.length, dtype=torch.bool).tril().repeat(shape.rows, 1, 1)
    layout = RowLayout(ids, positions, visible, sources)
    torch.autograd.backward(forward.at(layout, ids[:, 1:].flatten(), torch.ones(len(kept))).sum())


class _FakeForward(Forward):
    @property
    def in_blocks(self) -> bool:
        """Looks at values, and on a GPU a mask is dense."""
        return False


def _without_data(model: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Put other tensors into the place of parameters and buffers; what is tied stays so."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(make(parameter), parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else make(buffer)


@contextmanager
def allocated(peaks: list[int]) -> Iterator[None]:
    """Append to `peaks` what torch's allocator of the CPU held at most inside the block, beyond its beginning."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        yield
    results: Any = profile.profiler
    changes = [event.nbytes() for event in results.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for change in changes:
        held += change
        peak = max(peak, held)
    peaks.append(peak)
