"""Writes and reads checkpoints: folders of safetensors and JSON files, written atomically and verified by digests.

The manifest of a checkpoint has digests of its files, and of the other files of the job that it depends on. A job
resumes from the newest checkpoint that matches its manifest.
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

from selfcest_env.errors import RecordError
from selfcest_env.stored import by_field, stored_as, to_stored
from selfcest_env.structure import structure
from selfcest_training.files import FileOffset, atomic_write, check_offset, hash_files, hash_text, remove_folder
from selfcest_training.learner.state import LearnerState
from selfcest_training.plain_state import extract_tensors, insert_tensors

# torch and transformers take seconds to import, and a list of checkpoints needs neither.
if TYPE_CHECKING:
    from torch import Tensor

    from selfcest_training.learner.update import LearnerProtocol

_MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"
# The state of the trainer's stages: plain values in one file, their tensors in the other.
_TRAINER = "trainer.json"
_TRAINER_TENSORS = "trainer.safetensors"
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
    """The progress of a job. All randomness is keyed by (seed, stage, step), so there are no generator states.

    Attributes:
        stage: `warmstart` or `rl`.
        step: number of finished pools of the warm start, in all attempts, or of finished steps of RL.
        attempt: number of failed attempts at the warm start.
        num_updates: number of optimizer steps in this stage and attempt, for the learning-rate schedule.
        demonstration_tokens: number of demonstration tokens in this attempt, with prompts.
        sampled_tokens: number of generated tokens of the job.
        scored_tokens: number of tokens in forward passes for credit.
        trained_tokens: number of trained ids. Ids that samples share in a row count once.
        compute_at_rl: compute tokens at the beginning of RL, so that its schedule covers RL only.
        sampled_at_rl: sampled tokens at the beginning of RL, so that `rl.sampled_tokens` covers RL only.
        cpu_seconds: CPU seconds of training in this process, rollout workers and learner ranks. Processes of an engine
            are not counted, nor the last seconds of a worker that died.
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
        """Sampled + scored + 3 x trained tokens, as a backward pass costs two forward passes."""
        return self.sampled_tokens + self.scored_tokens + 3 * self.trained_tokens

    @property
    def rl_sampled_tokens(self) -> int:
        """The sampled tokens of RL, without those of the warm start's probes."""
        return self.sampled_tokens - self.sampled_at_rl


@stored_as(config="config", logs="logs", warm_start="warm_start", files="files")
@dataclass(frozen=True)
class CheckpointManifest:
    """The digests of a checkpoint and of the files that it depends on.

    Attributes:
        config: digest of the run's config.
        logs: offsets in the job's append-only files, by name.
        warm_start: digests of the files in the job's folder `warmstart_model`; empty before RL.
        files: digests of the checkpoint's own files.
    """

    config: str = ""
    logs: Mapping[str, FileOffset] = field(default_factory=dict)
    warm_start: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def save_checkpoint(
    folder: Path,
    learner: LearnerState,
    state: TrainState,
    trainer_state: Mapping[str, Any] | None = None,
    manifest: CheckpointManifest | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint and delete old ones.

    Args:
        folder: the job's folder of checkpoints.
        learner: weights and moments.
        state: the progress of the job, which names the checkpoint.
        trainer_state: the value of `Trainer.state_dict`.
        manifest: digests of the files that the checkpoint depends on.
        keep: number of checkpoints to keep, up to this one.

    Returns:
        The folder of the checkpoint.

    Raises:
        TrainingError: `trainer_state` has a value that cannot be stored.
    """
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    plain_state = extract_tensors(trainer_state or {}, "", tensors)
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{state.stage}_{state.step:06d}"
    with atomic_write(final) as partial:
        partial.mkdir()
        save_file(_copy_tensors(learner.weights), partial / _MODEL)
        save_file(_copy_tensors(learner.moments), partial / _OPTIMIZER)
        save_file(tensors, partial / _TRAINER_TENSORS)
        (partial / _TRAINER).write_text(json.dumps(plain_state), encoding="utf-8")
        (partial / _STATE).write_text(json.dumps(to_stored(state), indent=1), encoding="utf-8")
        contents = to_stored(replace(manifest or CheckpointManifest(), files=hash_files(partial)))
        signed = {"sha256": hash_text(json.dumps(contents)), "contents": contents}
        (partial / _MANIFEST).write_text(json.dumps(signed, indent=1), encoding="utf-8")
    paths = list_checkpoints(folder)
    # Later checkpoints are deleted too: the job has resumed from an older one, so it found them damaged.
    newest = paths[: paths.index(final) + 1][-keep:]
    for path in paths:
        if path not in newest:
            remove_folder(path)
    return final


def list_checkpoints(folder: Path) -> list[Path]:
    """List checkpoints by name, oldest first. Their contents are not verified; see `find_newest_checkpoint`."""

    def progress(path: Path) -> tuple[bool, int]:
        return is_rl_checkpoint(path), int(path.name.rpartition("_")[2])

    return sorted((path for path in folder.glob("*_*") if _NAME.fullmatch(path.name)), key=progress)


def is_rl_checkpoint(path: Path) -> bool:
    """Whether a checkpoint is of RL, and not of the warm start."""
    return path.name.startswith("rl_")


def find_newest_checkpoint(job: Path) -> tuple[Path, CheckpointManifest] | None:
    """Find the newest checkpoint in a job's folder that matches its manifest; `None` if there are no checkpoints.

    Damaged newer checkpoints give a warning.

    Raises:
        RecordError: all checkpoints are damaged, or one cannot be read.
    """
    damaged: list[str] = []
    for path in reversed(list_checkpoints(job / "checkpoints")):
        try:
            manifest = read_manifest(path)
            _check_digests(path, manifest.files)
            _check_digests(job / WARM_START, manifest.warm_start)
            for name, offset in manifest.logs.items():
                check_offset(job / name, offset)
        except PermissionError as error:
            # The checkpoint may be intact, and a job that resumed from an older one would overwrite it.
            raise RecordError(
                f"{error.filename or path} cannot be read ({error.strerror}): fix its permissions, or remove {path} to "
                "resume from the checkpoint before it"
            ) from error
        except (RecordError, OSError) as error:
            damaged.append(f"{path.name}: {error}")
            continue
        if damaged:
            warnings.warn(f"resuming from {path}, as newer checkpoints are damaged: {'; '.join(damaged)}", stacklevel=2)
        return path, manifest
    if damaged:
        raise RecordError(
            f"all checkpoints in {job / 'checkpoints'} are damaged ({'; '.join(damaged)}); restore the files, or "
            f"remove {job} to train this job from its beginning with the same result"
        )
    return None


def _check_digests(folder: Path, expected: Mapping[str, str]) -> None:
    if not expected:
        return
    actual = hash_files(folder)
    for name, sha256 in expected.items():
        if actual.get(name) != sha256:
            raise RecordError(f"{folder / name} is {'damaged' if name in actual else 'gone'}")


def read_manifest(path: Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint. Raises `RecordError` if it is missing or damaged."""
    file = path / _MANIFEST
    if not file.is_file():
        raise RecordError(f"{file} is gone")
    try:
        signed = json.loads(file.read_bytes())
        if hash_text(json.dumps(signed["contents"])) != signed["sha256"]:
            raise RecordError("its digest does not match")
        contents = by_field(CheckpointManifest, signed["contents"])
        return structure(contents, CheckpointManifest, place="manifest", error=RecordError)
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{file} is damaged") from error


def read_state(path: Path) -> TrainState:
    """Read the state of a checkpoint. Raises `RecordError` if the file is damaged."""
    try:
        data = json.loads((path / _STATE).read_bytes())
        return structure(by_field(TrainState, data), TrainState, place="state", error=RecordError)
    except (ValueError, OSError) as error:
        raise RecordError(f"{path / _STATE} is no checkpoint state: {error}") from error


def load_checkpoint(path: Path, learner: LearnerProtocol) -> TrainState:
    """Restore the weights and moments of a learner. Raises `RecordError` if they are damaged or of another model."""
    from safetensors.torch import load_file

    state = read_state(path)
    try:
        learner_state = LearnerState(load_file(path / _MODEL), load_file(path / _OPTIMIZER))
        learner.restore(learner_state, state.num_updates)
    except (RecordError, RuntimeError, OSError, SafetensorError) as error:
        raise RecordError(
            f"{path} is damaged or of another model ({error}); remove it and --resume from the checkpoint before it"
        ) from error
    return state


def read_trainer_state(path: Path) -> dict[str, Any]:
    """Read the `trainer_state` of a checkpoint. Raises `RecordError` if the file is damaged."""
    from safetensors.torch import load_file

    try:
        plain_state = json.loads((path / _TRAINER).read_text(encoding="utf-8"))
        trainer_state: dict[str, Any] = insert_tensors(plain_state, load_file(path / _TRAINER_TENSORS))
    except (ValueError, KeyError, OSError, SafetensorError) as error:
        raise RecordError(f"{path / _TRAINER} is no state of a trainer: {error}") from error
    return trainer_state


def _copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors so that none share memory, which safetensors does not allow."""
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
