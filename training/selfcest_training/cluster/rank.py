"""One rank of the sharded learner, in a process of its own.

A rank joins its group once. Then a driver makes the same call on every rank at about the same time. A rank knows no
files of a run and no transport, so an actor, a plain process or `torchrun` can host it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from selfcest_agents.language import Language, language_of
from selfcest_agents.lora import add_lora
from selfcest_agents.lora_options import LoraOptions
from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_training.cluster.sharded import ShardedLearner
from selfcest_training.cluster.timed_result import CpuClock, TimedResult
from selfcest_training.files import hash_files
from selfcest_training.learner.options import ForwardOptions, OptimizerConfig, Rows
from selfcest_training.learner.update import Learner

# Device and process-group backend by name. CPU tensors and plain objects always travel over gloo.
BACKENDS = {"gloo": ("cpu", "gloo"), "nccl": ("cuda", "cpu:gloo,cuda:nccl")}
# Seconds. Longer than the slowest rank needs to load its model.
TIMEOUT = 600.0


@dataclass(frozen=True)
class RankSpec:
    """The position of a rank in its group, and how it joins.

    Attributes:
        rank, ranks: index of the rank, and number of ranks.
        address: rendezvous of the ranks, `tcp://HOST:PORT` on the first rank's machine, or a shared `file:///PATH`.
        backend: `gloo` (CPU) or `nccl` (GPU).
        timeout: seconds that a rank waits for the others in a call before it raises.
    """

    rank: int
    ranks: int
    address: str
    backend: str = "gloo"
    timeout: float = TIMEOUT


@dataclass(frozen=True)
class LearnerSpec:
    """The options from which a rank builds its learner.

    Attributes:
        model: the language, as in a config.
        optimizer, micro_batch_tokens, rows, forward, pad_id: see `Learner`.
        seed: of the initial weights.
        folder: initial weights, written by `Language.save`; `None`: drawn from `seed`.
        lora, lora_seed: an adapter that is added to the initial weights.
        reference: folder of the frozen model for loss terms that need one. With `lora` it must be `folder`, since the
            reference is then the model without its adapter.
        files: SHA-256 by folder and file that `resolve` computed, for ranks to compare; empty: nothing is compared.
    """

    model: PlugIn
    optimizer: OptimizerConfig
    micro_batch_tokens: int
    seed: int = 0
    folder: Path | None = None
    lora: LoraOptions | None = None
    lora_seed: int = 0
    reference: Path | None = None
    rows: Rows = Rows.BUCKETED
    forward: ForwardOptions = ForwardOptions()
    pad_id: int = 0
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def resolve(self) -> LearnerSpec:
        """Return the spec with absolute paths and the SHA-256 of all files in the folders that ranks load."""
        absolute = replace(
            self,
            model=_absolute(self.model),
            folder=self.folder and self.folder.resolve(),
            reference=self.reference and self.reference.resolve(),
        )
        folders = absolute.folders(language_of(absolute.model))
        files = {name: hash_files(path, hidden=False) for name, path in folders.items() if path.is_dir()}
        return replace(absolute, files=files)

    def folders(self, language: Language) -> dict[str, Path]:
        """Return the folders that this machine loads from, each once; a model of a hub has none."""
        folders = {"weights": self.folder or (language.checkpoint and Path(language.checkpoint))}
        if self.reference != self.folder:
            folders["reference"] = self.reference
        return {name: path for name, path in folders.items() if path}


class Rank:
    """A rank that joins its group; the constructor waits for all ranks.

    Args:
        spec: position and rendezvous.

    Raises:
        RuntimeError: a rank did not join within the timeout.
    """

    def __init__(self, spec: RankSpec) -> None:
        self.spec = spec
        self._clock = CpuClock()
        device, backend = BACKENDS[spec.backend]
        if device == "cuda":
            # Each rank sees either one GPU or all GPUs of its machine.
            torch.cuda.set_device(spec.rank % torch.cuda.device_count())
        dist.init_process_group(
            backend,
            init_method=spec.address,
            rank=spec.rank,
            world_size=spec.ranks,
            timeout=timedelta(seconds=spec.timeout),
        )
        self._mesh = init_device_mesh(device, (spec.ranks,))
        self._learner: ShardedLearner | None = None

    def call(self, method: str, *args: Any) -> TimedResult:
        """Call a method of the rank or of its learner.

        After an error the group is unusable, and its host must end all ranks, since some may wait for this one.

        Args:
            method: `build`, `weights` or `local_bytes` of this class, or `policy_step`, `imitation_step`, `compute`,
                `state` or `restore` of `ShardedLearner`.
            args: of the method.

        Returns:
            The result on the first rank, `None` on the others, and the CPU time.
        """
        if method in ("build", "weights", "local_bytes"):
            value = getattr(self, method)(*args)
        else:
            value = getattr(self.learner, method)(*args)
        return self._clock.measure(value if self.spec.rank == 0 else None)

    @property
    def learner(self) -> ShardedLearner:
        assert self._learner is not None, "call `build` first"
        return self._learner

    def build(self, spec: LearnerSpec) -> bool:
        """Build a learner that replaces any earlier one, and return whether it is `exact`.

        Models are loaded into the machine's memory and moved to the mesh's device layer by layer as they are sharded.

        Raises:
            ConfigError: a folder has other files here than on the driver's machine, or the model is missing.
        """
        # The memory of the earlier learner is freed before the new one is built.
        self._learner = None
        try:
            language = language_of(_on_cpu(spec.model))
        except ConfigError as error:
            raise ConfigError(f"{error}: {self._location}") from error
        folders = spec.folders(language)
        for name, files in spec.files.items():
            self._check_folder(folders[name], files)
        model = language.load(spec.seed, spec.folder)
        if spec.lora is not None:
            add_lora(model, spec.lora, spec.lora_seed)
        reference = None
        if spec.reference is not None:
            reference = model if spec.lora is not None else language.load(0, spec.reference)
        self._learner = ShardedLearner(
            model,
            spec.optimizer,
            mesh=self._mesh,
            pad_id=spec.pad_id,
            micro_batch_tokens=spec.micro_batch_tokens,
            reference=reference,
            rows=spec.rows,
            forward=spec.forward,
        )
        return self._learner.exact

    def _check_folder(self, folder: Path, expected: Mapping[str, str]) -> None:
        actual = hash_files(folder, hidden=False)
        for name in sorted(expected.keys() | actual.keys()):
            if actual.get(name) == expected.get(name):
                continue
            if name not in expected:
                difference = "exists here but not"
            elif name not in actual:
                difference = "is missing here but exists"
            else:
                difference = "differs from the file"
            raise ConfigError(f"{folder / name} {difference} where the run was started: {self._location}")

    @property
    def _location(self) -> str:
        return (
            f"rank {self.spec.rank} of {self.spec.ranks} of the learner is on {socket.gethostname()}; share the "
            "folder between the machines, or copy it to the same path on each"
        )

    def weights(self, dtype: str | None = None) -> dict[str, Tensor]:
        """Return full weights for a sampler on the first rank's CPU, and nothing on the other ranks.

        Args:
            dtype: of the sampler, such as `bfloat16`; `None`: the model's own.
        """
        full = self.learner.weights(None if dtype is None else getattr(torch, dtype))
        # A collective: every rank consumes all weights, and the first one stores them.
        return {name: tensor.cpu() for name, tensor in full if self.spec.rank == 0}

    def local_bytes(self) -> list[int]:
        """Return, for each rank, the bytes of its shards of weights and moments."""
        state = Learner.state(self.learner)
        num_bytes = 0
        for tensor in (*state.weights.values(), *state.moments.values()):
            num_bytes += (tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes
        bytes_by_rank = [0] * self.spec.ranks
        dist.all_gather_object(bytes_by_rank, num_bytes, group=self._mesh.get_group())
        return bytes_by_rank

    def close(self) -> None:
        """Leave the group."""
        self._learner = None
        dist.destroy_process_group()


def _absolute(model: PlugIn) -> PlugIn:
    """Make a `source` that exists here an absolute path, since ranks have other working directories."""
    source = model.options.get("source")
    if not isinstance(source, str) or source == "smollm2" or not Path(source).exists():
        return model
    return replace(model, options={**model.options, "source": str(Path(source).resolve())})


def _on_cpu(model: PlugIn) -> PlugIn:
    """Load the model on the CPU, since the full model may not fit on one GPU before it is sharded."""
    return replace(model, options={**model.options, "device": "cpu"}) if "device" in model.options else model
