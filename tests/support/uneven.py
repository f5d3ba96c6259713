"""Languages that a rank loads and that change what happens in its process: for tests of ranks that are not alike."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import LlamaForCausalLM, PreTrainedModel

from selfcest_agents.tiny import TinyLanguage
from selfcest_training.cluster import sharded
from selfcest_training.cluster.partition import partition
from selfcest_training.learner.losses import LossInputs

LOADED: list[tuple[str, int]] = []  # devices and bytes


@dataclass(frozen=True)
class Uneven(TinyLanguage):
    """The first rank computes all micro-batches, the other dummies beside it."""

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        sharded.partition = lambda sizes, ranks: [[*range(len(sizes))], *[[None] * len(sizes)] * (ranks - 1)]
        return super().load(seed, folder, dtype)


@dataclass(frozen=True)
class Even(TinyLanguage):
    """As it is."""

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        sharded.partition = partition
        return super().load(seed, folder, dtype)


@dataclass(frozen=True)
class Placed(TinyLanguage):
    """As one with a device, which says where it was asked to be and is whole there."""

    device: str = "cpu"

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        model = super().load(seed, folder, dtype)
        LOADED.append((self.device, sum(weight.nbytes for weight in model.parameters())))
        return model


class Scaled(LlamaForCausalLM):
    """Its logits are twice what its output layer gives."""

    def forward(self, *args: Any, **options: Any) -> Any:
        found = super().forward(*args, **options)
        return replace(found, logits=2 * found.logits)


@dataclass(frozen=True)
class Scales(TinyLanguage):
    """Loads that."""

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        model = super().load(seed, folder, dtype)
        model.__class__ = Scaled
        return model


@dataclass(frozen=True)
class Elsewhere(TinyLanguage):
    """The last rank finds other initial weights than all others, as on another machine."""

    folders: str = ""

    @property
    def checkpoint(self) -> str:  # type: ignore[override]
        # Not in a group of one, which other tests leave open in the process of the driver.
        last = dist.is_initialized() and 0 < dist.get_rank() == dist.get_world_size() - 1
        return str(Path(self.folders) / ("last" if last else "others"))

    def load(self, seed: int, folder: Path | None = None, dtype: str | None = None) -> PreTrainedModel:
        return super().load(seed, folder or Path(self.checkpoint), dtype)


class Fails:
    """A loss that raises on the last rank alone, where the others have begun to wait for it."""

    def __call__(self, inputs: LossInputs) -> torch.Tensor:
        if dist.get_rank() == dist.get_world_size() - 1:
            raise ZeroDivisionError("on purpose")
        return inputs.logprobs


class Hangs:
    """A loss that stops the last rank."""

    def __call__(self, inputs: LossInputs) -> torch.Tensor:
        if dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(300)
        return inputs.logprobs


class Dies:
    """A loss that kills the last rank."""

    def __call__(self, inputs: LossInputs) -> torch.Tensor:
        if dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return inputs.logprobs
