"""One rank of the sharded learner: what lives in a process of its own, whoever started that.

A rank joins the group once and is told what to do by a driver: the same call on every rank, at about the same time. It
knows no files of a run and no transport; an actor, a plain process or `torchrun` can hold it.
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
from selfcest_training.cluster.answers import Answer, CpuClock
from selfcest_training.cluster.sharded import ShardedLearner
from selfcest_training.files import digests
from selfcest_training.learner.options import ForwardOptions, OptimizerConfig, Rows
from selfcest_training.learner.update import Learner

# CPU tensors and plain objects always travel by gloo.
BACKENDS = {"gloo": ("cpu", "gloo"), "nccl": ("cuda", "cpu:gloo,cuda:nccl")}
TIMEOUT = 600.0  # seconds; longer than the slowest rank takes to load its model


@dataclass(frozen=True)
class Place:
    """A rank's place in the group.

    Attributes:
        rank, ranks: which of how many.
        address: where they meet: `tcp://HOST:PORT` on the first rank's machine, or `file:///PATH` that all can reach.
        backend: `gloo` (CPU) or `nccl` (GPU).
        timeout: seconds that a rank waits for the others within a call, before it gives up with an error.
    """

    rank: int
    ranks: int
    address: str
    backend: str = "gloo"
    timeout: float = TIMEOUT


@dataclass(frozen=True)
class LearnerSpec:
    """What a rank builds its learner from.

    Attributes:
        model: its language, as in a config.
        optimizer, micro_batch_tokens, rows, forward, pad_id: see `Learner`.
        seed: draws initial weights.
        folder: written by `Language.save`, of other initial weights.
        lora, lora_seed: an adapter put into them.
        reference: such a folder, of the frozen model for terms that need it. With `lora` it must be `folder`: the
            reference then is what the adapter is put into.
        files: what `sent` found, for ranks to compare; empty: nothing is compared.
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

    def sent(self) -> LearnerSpec:
        """With absolute paths, and SHA-256 of what lies in the folders that ranks are to load."""
        folder, reference = (path and path.resolve() for path in (self.folder, self.reference))
        found = replace(self, model=_absolute(self.model), folder=folder, reference=reference)
        folders = found.folders(language_of(found.model))
        files = {what: digests(path, hidden=False) for what, path in folders.items() if path.is_dir()}
        return replace(found, files=files)

    def folders(self, language: Language) -> dict[str, Path]:
        """What this machine would load from where, each folder once; a model of the hub is in none that is known."""
        found = {"weights": self.folder or (language.checkpoint and Path(language.checkpoint))}
        if self.reference != self.folder:
            found["reference"] = self.reference
        return {what: path for what, path in found.items() if path}


class Rank:
    """Joins the group, which waits until all have come.

    Raises:
        RuntimeError: some did not come within the timeout.
    """

    def __init__(self, place: Place) -> None:
        self.place, self._clock = place, CpuClock()
        device, backend = BACKENDS[place.backend]
        if device == "cuda":  # one GPU is visible to each, or all of the machine to all
            torch.cuda.set_device(place.rank % torch.cuda.device_count())
        dist.init_process_group(
            backend,
            init_method=place.address,
            rank=place.rank,
            world_size=place.ranks,
            timeout=timedelta(seconds=place.timeout),
        )
        self._mesh = init_device_mesh(device, (place.ranks,))
        self._learner: ShardedLearner | None = None

    def call(self, method: str, *args: Any) -> Answer:
        """`build`, `weights`, `held` (see there), or a method of `ShardedLearner`.

        Those are `policy_step`, `imitation_step`, `read`, `state` and `restore`.

        Only the first rank's answer has what was found. After an error the group is of no more use, and all
        ranks must be ended by whoever hosts them: some may wait for this one.
        """
        if method in ("build", "weights", "held"):
            found = getattr(self, method)(*args)
        else:
            found = getattr(self.learner, method)(*args)
        return self._clock.answer(found if self.place.rank == 0 else None)

    @property
    def learner(self) -> ShardedLearner:
        assert self._learner is not None, "`build` comes first"
        return self._learner

    def build(self, spec: LearnerSpec) -> bool:
        """A new learner in the place of any before it; whether it is `exact`.

        Models are loaded into the machine's memory, and come to the mesh's device layer by layer as they are sharded.

        Raises:
            ConfigError: a folder does not hold here what it held where the spec was sent, or the model is not here.
        """
        self._learner = None  # before there are two
        try:
            language = language_of(_on_cpu(spec.model))
        except ConfigError as error:
            raise ConfigError(f"{error}: {self._where}") from error
        folders = spec.folders(language)
        for what, files in spec.files.items():
            self._check_folder(folders[what], files)
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
        found = digests(folder, hidden=False)
        for name in sorted(expected.keys() | found.keys()):
            if found.get(name) != expected.get(name):
                wrong = "is not the one" if name in found else "is not there, but is"
                wrong = wrong if name in expected else "is one too many, and is not"
                raise ConfigError(f"{folder / name} {wrong} where the run was started: {self._where}")

    @property
    def _where(self) -> str:
        return (
            f"rank {self.place.rank} of {self.place.ranks} of the learner is on {socket.gethostname()}; share the "
            "folder between the machines, or copy it to the same path on each"
        )

    def weights(self, dtype: str | None = None) -> dict[str, Tensor]:
        """Those that a sampler is given, in its dtype (as `bfloat16`) or the model's own; on the first rank's CPU."""
        whole = self.learner.weights(None if dtype is None else getattr(torch, dtype))
        return {name: tensor.cpu() for name, tensor in whole if self.place.rank == 0}

    def held(self) -> list[int]:
        """Bytes of weights and moments that each rank has, those of all others not counted."""
        state = Learner.state(self.learner)
        parts = [t.to_local() if isinstance(t, DTensor) else t for own in vars(state).values() for t in own.values()]
        found = [0] * self.place.ranks
        dist.all_gather_object(found, sum(part.nbytes for part in parts), group=self._mesh.get_group())
        return found

    def close(self) -> None:
        """Leave the group."""
        self._learner = None
        dist.destroy_process_group()


def _absolute(model: PlugIn) -> PlugIn:
    """Ranks have other working directories: a `source` that is a folder or a file here is named whole."""
    source = model.options.get("source")
    if not isinstance(source, str) or source == "smollm2" or not Path(source).exists():
        return model
    return replace(model, options={**model.options, "source": str(Path(source).resolve())})


def _on_cpu(model: PlugIn) -> PlugIn:
    """Before it is sharded a whole model may be more than a GPU has."""
    return replace(model, options={**model.options, "device": "cpu"}) if "device" in model.options else model
