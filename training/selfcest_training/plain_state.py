"""Splits what stages and credit schemes remember into JSON values and tensors, as checkpoints store it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from selfcest_env.errors import TrainingError

# torch takes seconds to import, and most states have no tensor.
if TYPE_CHECKING:
    from torch import Tensor

# Key of the mapping that stands for a tensor in plain values.
_TENSOR = "__tensor__"


def extract_tensors(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Copy a value with every tensor moved to `tensors` and replaced by its name. `place` is the path in errors.

    Raises:
        TrainingError: the value has something that neither JSON nor a tensor can hold.
    """
    from torch import Tensor

    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().contiguous().clone()
        return {_TENSOR: name}
    if isinstance(value, Mapping) and all(isinstance(key, str) and key != _TENSOR for key in value):
        return {key: extract_tensors(item, f"{place}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [extract_tensors(item, f"{place}/{i}", tensors) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TrainingError(
        f"the state_dict of a stage or scheme holds {_describe(value)} at {place or '/'}; expected dicts with text "
        "keys, lists, texts, numbers, booleans, None and tensors"
    )


def _describe(value: object) -> str:
    """Return the type of a value that cannot be stored, with the keys of a mapping."""
    return f"a mapping with the keys {list(value)!r:.60}" if isinstance(value, Mapping) else type(value).__name__


def insert_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Copy a value with the tensors that `extract_tensors` moved out."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: insert_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [insert_tensors(item, tensors) for item in value]
    return value
