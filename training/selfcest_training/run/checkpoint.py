"""Checkpoints: safetensors and JSON, written whole or not at all, and known to be what was written.

A checkpoint is a folder. Its manifest has digests of all that it consists of and counts on. One that is damaged is no
checkpoint: the one before it is taken.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from selfcest_env.errors import RecordError, TrainingError
from selfcest_env.stored import by_field, stored_as, to_stored
from selfcest_env.structure import structure
from selfcest_training.files import FileOffset, atomic_write, check_offset, digest, digests, remove
from selfcest_training.learner.state import LearnerState

# torch and transformers take seconds to import, and a list of checkpoints needs neither.
if TYPE_CHECKING:
    from torch import Tensor

    from selfcest_training.learner.update import LearnerProtocol

_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"
# What a trainer's stages remember: plain values, with tensors kept apart.
_MEMORY, _TENSORS = "trainer.json", "trainer.safetensors"
_MANIFEST = "manifest.json"
_NAME = re.compile(r"(warmstart|rl)_(\d+)")
WARM_START = "warmstart_model"


@stored_as(
    stage="stage",
    step="step",
    attempt="attempt",
    num_updates="num_updates",
    demonstration_tokens="demonstration_tokens",
    sampled_tokens="sampled_tokens",
    scored_tokens="read_tokens",
    trained_tokens="trained_tokens",
    compute_at_rl="compute_at_rl",
    sampled_at_rl="sampled_at_rl",
    cpu_seconds="cpu_seconds",
)
@dataclass(frozen=True)
class TrainState:
    """How far a job has come. All randomness is keyed by (seed, stage, step), so there is no generator state to keep.

    Attributes:
        stage: `warmstart` or `rl`.
        step: pools (warm start, those of attempts that were given up too) or steps (RL) that are done.
        attempt: how often the warm start was given up and begun again.
        num_updates: optimiser steps of this stage and attempt, for the learning-rate schedule.
        demonstration_tokens: of this attempt at the warm start so far, prompts included.
        sampled_tokens, scored_tokens, trained_tokens: compute so far, over everything: generated, in forward passes for
            credit, and trained on; ids that samples share in a row count once.
        compute_at_rl, sampled_at_rl: compute and sampled tokens when RL began, so that its schedule and its
            `sampled_tokens` cover RL alone.
        cpu_seconds: of training so far, of this process, rollout workers and the learner's ranks together. Not of
            processes that an engine starts; what a worker that died had not yet reported is lost.
    """

    stage: str = "warmstart"
    step: int = 0
    attempt: int = 0
    num_updates: int = 0
    demonstration_tokens: int = 0
    sampled_tokens: int = 0
    scored_tokens: int = 0
    trained_tokens: int = 0
    compute_at_rl: int = 0
    sampled_at_rl: int = 0
    cpu_seconds: float = 0.0

    @property
    def compute_tokens(self) -> int:
        """Sampled + scored + 3 x trained tokens: a forward pass each, and a forward and a backward one."""
        return self.sampled_tokens + self.scored_tokens + 3 * self.trained_tokens

    @property
    def rl_sampled_tokens(self) -> int:
        """Those of RL alone: a warm start samples in its probes."""
        return self.sampled_tokens - self.sampled_at_rl


@stored_as(config="config", logs="logs", warm_start="warm_start", files="files")
@dataclass(frozen=True)
class Manifest:
    """What a checkpoint counts on, all by SHA-256.

    Attributes:
        config: of the run, as its `config.yaml` has it.
        logs: files of the job that only grow, by name: how far they had come.
        warm_start: files of the job's folder `warmstart_model`; none before RL.
        files: of the checkpoint itself.
    """

    config: str = ""
    logs: Mapping[str, FileOffset] = field(default_factory=dict)
    warm_start: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def save_checkpoint(
    folder: Path,
    learner: LearnerState,
    state: TrainState,
    memory: Mapping[str, Any] | None = None,
    manifest: Manifest | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint named after the state into `folder`, and delete all but the newest `keep` up to it.

    Later ones are deleted too: a run that has come here again found them damaged. `memory` is what `Trainer.state_dict`
    gives. Raises `TrainingError` for a value in it that cannot be stored.
    """
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    plain = _plain(memory or {}, "", tensors)
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{state.stage}_{state.step:06d}"
    with atomic_write(final) as partial:
        partial.mkdir()
        save_file(_apart(learner.weights), partial / _MODEL)
        save_file(_apart(learner.moments), partial / _OPTIMIZER)
        save_file(tensors, partial / _TENSORS)
        (partial / _MEMORY).write_text(json.dumps(plain), encoding="utf-8")
        (partial / _STATE).write_text(json.dumps(to_stored(state), indent=1), encoding="utf-8")
        contents = to_stored(replace(manifest or Manifest(), files=digests(partial)))
        signed = {"sha256": digest(json.dumps(contents)), "contents": contents}
        (partial / _MANIFEST).write_text(json.dumps(signed, indent=1), encoding="utf-8")
    found = checkpoints(folder)
    kept = found[: found.index(final) + 1][-keep:]
    for path in found:
        if path not in kept:
            remove(path)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints by name, oldest first; `newest_whole` looks inside."""

    def progress(path: Path) -> tuple[bool, int]:
        return in_rl(path), int(path.name.rpartition("_")[2])

    return sorted((path for path in folder.glob("*_*") if _NAME.fullmatch(path.name)), key=progress)


def in_rl(path: Path) -> bool:
    """Whether a checkpoint is of RL, and not of the warm start."""
    return path.name.startswith("rl_")


def newest_whole(job: Path) -> tuple[Path, Manifest] | None:
    """The newest checkpoint of a job's folder that is what was written, and on which the job's files still build.

    Warns of newer ones that are not. Raises `RecordError` if there are checkpoints and none is whole.
    """
    damaged: list[str] = []
    for path in reversed(checkpoints(job / "checkpoints")):
        try:
            manifest = read_manifest(path)
            _check_digests(path, manifest.files)
            _check_digests(job / WARM_START, manifest.warm_start)
            for name, offset in manifest.logs.items():
                check_offset(job / name, offset)
        except PermissionError as error:  # it may be whole, and work after an older one would overwrite it
            raise RecordError(
                f"{error.filename or path} cannot be read ({error.strerror}): fix its permissions, or remove {path} to "
                "resume from the checkpoint before it"
            ) from error
        except (RecordError, OSError) as error:
            damaged.append(f"{path.name}: {error}")
            continue
        if damaged:
            warnings.warn(
                f"going on from {path}, for newer checkpoints are not whole: {'; '.join(damaged)}", stacklevel=2
            )
        return path, manifest
    if damaged:
        raise RecordError(
            f"no checkpoint in {job / 'checkpoints'} is whole ({'; '.join(damaged)}); put back what is missing, or "
            f"remove {job} to train this job from its beginning, to the same end"
        )
    return None


def _check_digests(folder: Path, expected: Mapping[str, str]) -> None:
    found = digests(folder) if expected else {}
    for name, known in expected.items():
        if found.get(name) != known:
            raise RecordError(f"{folder / name} is {'damaged' if name in found else 'gone'}")


def read_manifest(path: Path) -> Manifest:
    """What a checkpoint counts on. Raises `RecordError` that names the file."""
    file = path / _MANIFEST
    if not file.is_file():
        raise RecordError(f"{file} is gone")
    try:
        signed = json.loads(file.read_bytes())
        if digest(json.dumps(signed["contents"])) != signed["sha256"]:
            raise RecordError("its digest is another")
        return structure(by_field(Manifest, signed["contents"]), Manifest, place="manifest", error=RecordError)
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{file} is damaged") from error


def read_state(path: Path) -> TrainState:
    """The state of a checkpoint. Raises `RecordError` that names the file."""
    try:
        data = json.loads((path / _STATE).read_bytes())
        return structure(by_field(TrainState, data), TrainState, place="state", error=RecordError)
    except (ValueError, OSError) as error:
        raise RecordError(f"{path / _STATE} is no checkpoint state: {error}") from error


def load_checkpoint(path: Path, learner: LearnerProtocol) -> TrainState:
    """Put trained weights and the moments of the optimiser back. Raises `RecordError` on a mismatch."""
    from safetensors.torch import load_file

    state = read_state(path)
    try:
        held = LearnerState(load_file(path / _MODEL), load_file(path / _OPTIMIZER))
        learner.restore(held, state.num_updates)
    except (RecordError, RuntimeError, OSError, SafetensorError) as error:
        raise RecordError(
            f"{path} is damaged or of another model ({error}); remove it and --resume from the checkpoint before it"
        ) from error
    return state


def read_memory(path: Path) -> dict[str, Any]:
    """The `memory` of a checkpoint. Raises `RecordError` that names the file."""
    from safetensors.torch import load_file

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
    from torch import Tensor

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


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies, none of which shares memory with another, as the format wants them."""
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
