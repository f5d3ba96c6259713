"""Weights as arrays: what goes through Ray's object store, whose readers on a node share one copy and read it in place.

bfloat16, which NumPy lacks, travels as uint16; nothing else is that.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class WeightSnapshot:
    """Every tensor of a model at one version.

    Attributes:
        version: of the policy.
        names: of the tensors.
        arrays: their values, in the order of the names; bfloat16 as uint16.
    """

    version: int
    names: tuple[str, ...]
    arrays: tuple[npt.NDArray[Any], ...]

    @classmethod
    def of(
        cls, weights: Iterable[tuple[str, Tensor]], version: int, dtype: torch.dtype | None = None
    ) -> WeightSnapshot:
        """Tensors as they are now, rounded to `dtype` (`None`: each in its own).

        What needs no rounding and lies in this machine's memory is a view, which sees the tensor change: put it away
        before it does.
        """
        named = [(name, tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()) for name, tensor in weights]
        return cls(version, tuple(name for name, _ in named), tuple(_array(tensor) for _, tensor in named))

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Views of the arrays, to be read and not written, for `Engine.load_weights`."""
        for name, array in zip(self.names, self.arrays, strict=True):
            yield name, _tensor(array)


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    half = array.dtype == np.uint16
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor does anybody write it
        tensor = torch.from_numpy(array.view(np.int16) if half else array)
    return tensor.view(torch.bfloat16) if half else tensor
