"""Checkpoints: safetensors and JSON, written whole or not at all.

A checkpoint is a folder. It is written beside its final place and renamed, so a folder with the final name is complete
whatever killed the process that wrote it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_agents.lora import load_trainable_state, trainable_state
from selfcest_env.errors import RecordError, TrainingError

_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"
# What a trainer's stages remember: plain values, with tensors kept apart.
_MEMORY, _TENSORS = "trainer.json", "trainer.safetensors"


@dataclass(frozen=True)
class TrainState:
    """How far a job has come. All randomness is keyed by (seed, stage, step), so there is no generator state to keep.

    Attributes:
        stage: `warmstart` or `rl`.
        step: pools (warm start, those of attempts that were given up too) or steps (RL) that are done.
        attempt: how often the warm start was given up and begun again.
        num_updates: optimiser steps of this stage and attempt, for the learning-rate schedule.
        demonstration_tokens: of this attempt at the warm start so far, prompts included.
        sampled_tokens, read_tokens, trained_tokens: compute so far, over everything: generated, in forward passes for
            credit, and trained on; ids that samples share in a row count once.
        compute_at_rl, sampled_at_rl: compute and sampled tokens when RL began, so that its schedule and its
            `sampled_tokens` cover RL alone.
        cpu_seconds: process time so far.
    """

    stage: str = "warmstart"
    step: int = 0
    attempt: int = 0
    num_updates: int = 0
    demonstration_tokens: int = 0
    sampled_tokens: int = 0
    read_tokens: int = 0
    trained_tokens: int = 0
    compute_at_rl: int = 0
    sampled_at_rl: int = 0
    cpu_seconds: float = 0.0

    @property
    def compute_tokens(self) -> int:
        """Sampled + read + 3 x trained tokens: a forward pass each, and a forward and a backward one."""
        return self.sampled_tokens + self.read_tokens + 3 * self.trained_tokens

    @property
    def rl_sampled_tokens(self) -> int:
        """Those of RL alone: a warm start samples in its probes."""
        return self.sampled_tokens - self.sampled_at_rl


def save_checkpoint(
    folder: Path,
    name: str,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    memory: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Write `folder/name` atomically and delete all but the newest `keep` checkpoints.

    `memory` is what `Trainer.state_dict` gives. Raises `TrainingError` for a value in it that cannot be stored.
    """
    tensors: dict[str, Tensor] = {}
    plain = _plain(memory or {}, "", tensors)
    folder.mkdir(parents=True, exist_ok=True)
    final, partial = folder / name, folder / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    save_file({key: value.contiguous().clone() for key, value in trainable_state(model).items()}, partial / _MODEL)
    save_file(_flatten(optimizer), partial / _OPTIMIZER)
    save_file(tensors, partial / _TENSORS)
    (partial / _MEMORY).write_text(json.dumps(plain), encoding="utf-8")
    (partial / _STATE).write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    for file in partial.iterdir():
        _sync(file)
    _sync(partial)
    if final.exists():
        _remove(final)
    partial.rename(final)
    _sync(folder)
    for old in checkpoints(folder)[:-keep]:
        _remove(old)
    return final


def _remove(folder: Path) -> None:
    """Hide a checkpoint before deleting it, so that a half-deleted one is never taken for a whole one."""
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden)


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = [path for path in folder.glob("*") if (path / _STATE).is_file() and not path.name.startswith(".")]

    def progress(path: Path) -> tuple[bool, int]:
        state = read_state(path)
        return state.stage == "rl", state.step

    return sorted(found, key=progress)


def read_state(path: Path) -> TrainState:
    """The state of a checkpoint. Raises `RecordError` that names the file."""
    try:
        data: dict[str, Any] = json.loads((path / _STATE).read_text(encoding="utf-8"))
        return TrainState(**data)
    except (ValueError, TypeError, OSError) as error:
        raise RecordError(f"{path / _STATE} is no checkpoint state: {error}") from error


def load_checkpoint(path: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer | None) -> TrainState:
    """Put trained weights and, if asked for, the moments of the optimiser back. Raises `RecordError` on a mismatch."""
    state = read_state(path)
    try:
        load_trainable_state(model, load_file(path / _MODEL))
        if optimizer is not None:
            _restore(optimizer, load_file(path / _OPTIMIZER))
    except (RecordError, RuntimeError, OSError, SafetensorError) as error:
        raise RecordError(
            f"{path} is damaged or of another model ({error}); remove it and --resume from the checkpoint before it"
        ) from error
    return state


def read_memory(path: Path) -> dict[str, Any]:
    """The `memory` of a checkpoint. Raises `RecordError` that names the file."""
    try:
        plain = json.loads((path / _MEMORY).read_text(encoding="utf-8"))
        tensors = load_file(path / _TENSORS)
        found: dict[str, Any] = _restored(plain, tensors)
    except (ValueError, KeyError, OSError, SafetensorError) as error:
        raise RecordError(f"{path / _MEMORY} is no trainer's memory: {error}") from error
    return found


_TENSOR = "__tensor__"


def _plain(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """The value with every tensor moved to `tensors`, a number in its place."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().contiguous().clone()
        return {_TENSOR: name}
    if isinstance(value, Mapping) and all(isinstance(key, str) and key != _TENSOR for key in value):
        return {key: _plain(item, f"{place}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}/{i}", tensors) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TrainingError(
        f"a stage's state_dict holds {type(value).__name__} at {place}; expected dicts with text keys, lists, texts, "
        "numbers, booleans, None and tensors, which a checkpoint can hold"
    )


def _restored(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _restored(item, tensors) for key, item in value.items()}
    return [_restored(item, tensors) for item in value] if isinstance(value, list) else value


def _flatten(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"{index}/{name}": tensor.contiguous().clone()
        for index, moments in state.items()
        for name, tensor in moments.items()
    }


def _restore(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
