"""Linear layers of a model on a CPU, with weights in the layout that oneDNN's kernels read.

A plain product lays the weight out anew on every call, which for the few rows of a decoding step takes about as long as
the product itself. The copy in the other layout costs as much memory as the linear layers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import torch

_OPS = torch.ops.mkldnn
MIN_WEIGHTS = 2**18  # of a layer; below, a call to the kernel costs more than the layout
_ROWS = 64  # what the layout is chosen for; it serves other numbers of rows as well


class PackedLinears:
    """Packs the linear layers of a model, again whenever their weights have changed.

    Args:
        model: left as it is, but for the time of `use`. Small layers, and those of other kinds, devices and dtypes, are
            not touched.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._packed: dict[torch.nn.Linear, torch.Tensor] = {}
        self._state: list[tuple[int, int]] = []

    def clear(self) -> None:
        """Forget the copies. Needed after changes that torch does not count: through `.data`, by a fused optimiser."""
        self._packed, self._state = {}, []

    @contextmanager
    def use(self) -> Iterator[None]:
        """Let the layers compute from the packed weights. No gradients flow."""
        layers = [module for module in self._model.modules() if _can_pack(module)]
        state = [(layer.weight.data_ptr(), layer.weight._version) for layer in layers]
        if state != self._state:
            self.clear()  # or there would be two copies for a while
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
