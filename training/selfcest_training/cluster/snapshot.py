"""Weights as arrays for Ray's object store, whose readers on a node share one copy and read it in place.

bfloat16, which NumPy lacks, is stored as uint16, and no other dtype is.
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
    """All tensors of a model at one policy version.

    Attributes:
        version: policy version.
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
        """Build a snapshot of the present weights.

        Arrays of CPU tensors that need no rounding are views, so store the snapshot before the weights change.

        Args:
            weights: names and tensors.
            version: policy version.
            dtype: to round to; `None`: each tensor's own.
        """
        names = []
        arrays = []
        for name, tensor in weights:
            names.append(name)
            arrays.append(_array_of(tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()))
        return cls(version, tuple(names), tuple(arrays))

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and read-only views of the arrays, for `Engine.load_weights`."""
        for name, array in zip(self.names, self.arrays, strict=True):
            yield name, _tensor_of(array)


def _array_of(tensor: Tensor) -> npt.NDArray[Any]:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def _tensor_of(array: npt.NDArray[Any]) -> Tensor:
    is_bfloat16 = array.dtype == np.uint16
    with warnings.catch_warnings():
        # The readers of the arrays do not write.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        tensor = torch.from_numpy(array.view(np.int16) if is_bfloat16 else array)
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor
