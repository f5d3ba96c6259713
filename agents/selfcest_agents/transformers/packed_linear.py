"""Linear layers on a CPU with copies of their weights in the layout of oneDNN's kernels.

A plain product converts the weight to this layout at every call. For the few rows of a decoding step this takes about
as long as the product itself. The copies need as much memory as the weights of the linear layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import torch

_OPS = torch.ops.mkldnn
MIN_WEIGHTS = 2**18  # weights of a layer; for smaller layers the call of the kernel costs more than the conversion
_ROWS = 64  # number of rows for which the layout is chosen; it also works for others


class PackedLinears:
    """Packed weights of a model's linear layers, which are renewed when the weights have changed.

    Args:
        model: model that changes only within `use`. Small layers, and layers of other kinds, devices and dtypes, never
            change.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._packed: dict[torch.nn.Linear, torch.Tensor] = {}
        self._state: list[tuple[int, int]] = []

    def clear(self) -> None:
        """Drop the copies. This is needed after changes that torch does not count: by `.data` or a fused optimiser."""
        self._packed = {}
        self._state = []

    @contextmanager
    def use(self) -> Iterator[None]:
        """Compute the layers with the packed weights within the block, without gradients."""
        layers = [module for module in self._model.modules() if _can_pack(module)]
        state = [(layer.weight.data_ptr(), layer.weight._version) for layer in layers]
        if state != self._state:
            self.clear()  # before packing, so that there are never two copies
            self._packed = {layer: _OPS._reorder_linear_weight(layer.weight.detach(), _ROWS) for layer in layers}
            self._state = state
        for layer, packed in self._packed.items():
            layer.forward = partial(_linear, packed, layer.bias)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for layer in self._packed:
                del layer.forward


def _can_pack(module: torch.nn.Module) -> TypeGuard[torch.nn.Linear]:
    if type(module) is not torch.nn.Linear or module.weight.numel() < MIN_WEIGHTS:
        return False
    if module.weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    dtype = module.weight.dtype
    return dtype is torch.float32 or (dtype is torch.bfloat16 and bool(_OPS._is_mkldnn_bf16_supported()))


def _linear(packed: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _OPS._linear_pointwise(rows, packed, bias, "none", [], "")
    return out
