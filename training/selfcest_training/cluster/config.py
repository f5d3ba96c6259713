"""The `cluster` block of a run's config: what it runs on, which is no part of what it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Checked, Count, Positive, Size

Resources = Mapping[str, Positive]
_ADDRESS = re.compile(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


def _one_core() -> Resources:
    return {"CPU": 1.0}


@dataclass(frozen=True)
class ClusterConfig(Checked):
    """Rollout workers on Ray; a run resumes with any other of these, or with none.

    Attributes:
        address: HOST:PORT of a cluster's head; `None`: Ray is started on this machine, and ends with the run.
        rollout_workers: that share every rollout in equal, contiguous parts.
        rollout_resources: of each, by Ray's names (`CPU`, `GPU`, `memory` in bytes, or one's own).
        overlap: as many workers again, which have every other step and begin it while the last episodes of the one
            before are played.
        learner_ranks: processes that share the learner; with 1 it is in the job's own, and takes no resources of Ray.
        learner_resources: of each rank, if there are several.
        backend: of their collective operations.
        retries: how often a part is played again when its worker dies, before the run stops.
        start_seconds: within which all workers must have started.
    """

    address: Annotated[str, "HOST:PORT"] | None = None
    rollout_workers: Count = 1
    rollout_resources: Resources = field(default_factory=_one_core)
    overlap: bool = False
    learner_ranks: Count = 1
    learner_resources: Resources = field(default_factory=_one_core)
    backend: Literal["gloo", "nccl"] = "gloo"
    retries: Size = 2
    start_seconds: Positive = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.address is not None and not _ADDRESS.fullmatch(self.address):
            raise ConfigError(
                f"address is {self.address!r}; expected HOST:PORT as `ray start --head` prints it (port 6379, not the "
                "client's ray://), or null for Ray on this machine alone"
            )

    @property
    def asked(self) -> Mapping[str, tuple[int, Resources]]:
        """How many actors want which resources each, by their place in the config."""
        ranks = self.learner_ranks if self.learner_ranks > 1 else 0
        return {
            "rollout": (self.rollout_workers * (2 if self.overlap else 1), self.rollout_resources),
            "learner": (ranks, self.learner_resources),
        }

    def check_devices(self, *, cuda: bool, tensor_parallel: int, compiled: bool) -> None:
        """Raise `ConfigError` for resources that could not play or learn as the rest of the config says.

        Args:
            cuda: the model is on a GPU.
            tensor_parallel: GPUs that the sampler takes.
            compiled: the learner compiles its model.
        """
        gpus = self.rollout_resources.get("GPU", 0)
        if tensor_parallel > max(gpus, 1):
            raise ConfigError(
                f"sampler.options.tensor_parallel is {tensor_parallel}, and cluster.rollout_resources gives a worker "
                f"{gpus:g} GPU; set cluster.rollout_resources.GPU={tensor_parallel}"
            )
        if self.learner_ranks > 1 and cuda != (self.backend == "nccl"):
            device, other, backend = ("cuda", "the CPU", "nccl") if cuda else ("cpu", "GPUs", "gloo")
            raise ConfigError(
                f"model.options.device is {device} and cluster.backend is {self.backend}, by which ranks would train "
                f"on {other}; set cluster.backend={backend}"
            )
        for kind, (count, each) in self.asked.items():
            if cuda and count and not each.get("GPU"):
                raise ConfigError(
                    f"model.options.device is cuda and cluster.{kind}_resources gives none; set "
                    f"cluster.{kind}_resources.GPU=1"
                )
        if self.learner_ranks > 1 and compiled:
            raise ConfigError(
                f"cluster.learner_ranks is {self.learner_ranks} and forward.compile is true, which has not been tried "
                "on ranks; set forward.compile=false"
            )

    def check_overlap(self, place: str, max_staleness: int, remembering: Iterable[str]) -> None:
        """Raise `ConfigError` where no step of RL could begin before the one in front of it has ended.

        Args:
            place: of RL's block in the config.
            max_staleness: steps that rollouts run ahead of the learner.
            remembering: keys of that block whose stages remember earlier steps and decide what is played.
        """
        if not self.overlap:
            return
        if not max_staleness:
            raise ConfigError(
                f"cluster.overlap is true and {place}.max_staleness is 0, so that a step waits for the update "
                "before it; set max_staleness to 1 or more, or cluster.overlap=false"
            )
        for key in remembering:
            raise ConfigError(
                f"cluster.overlap is true and {place}.{key} remembers what it has seen, which at the "
                "beginning of a step would depend on how far the one before it has come; set cluster.overlap=false"
            )


def check_resources(config: ClusterConfig, nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse what can never be placed, whoever else uses the cluster.

    Args:
        config: what is wanted.
        nodes: the resources of each node as a whole, by name.

    Raises:
        ConfigError: names the resource that the nodes lack together, or what no node has together.
    """
    for kind, (count, each) in config.asked.items():
        if not count:
            continue
        what = f"cluster.{kind}_resources is {dict(each)}"
        room = sum(min(int(node.get(name, 0.0) / wanted) for name, wanted in each.items()) for node in nodes if each)
        if each and room < count:
            number = "learner_ranks" if kind == "learner" else "rollout_workers"
            twice = ", twice for cluster.overlap" if kind == "rollout" and config.overlap else ""
            raise ConfigError(
                f"{what} and cluster.{number} is {getattr(config, number)}{twice}, but the cluster has room for "
                f"{room}: its nodes have {_listed(nodes)}; start nodes that have more, or ask for less"
            )
    totals: dict[str, float] = {}
    for count, each in config.asked.values():
        for name, wanted in each.items():
            totals[name] = totals.get(name, 0.0) + count * wanted
    for name, wanted in totals.items():
        there = sum(node.get(name, 0.0) for node in nodes)
        if wanted > there:
            raise ConfigError(
                f"cluster.rollout_resources and cluster.learner_resources ask for {wanted:g} {name} together, but the "
                f"cluster has {there:g}: its nodes have {_listed(nodes)}; start nodes that have more, or ask for less"
            )


def _listed(nodes: Sequence[Mapping[str, float]]) -> str:
    """Their resources but those that Ray makes up for each node."""
    shown = [{name: value for name, value in node.items() if not name.startswith("node:")} for node in nodes]
    found = [", ".join(f"{name} {value:g}" for name, value in sorted(node.items())) for node in shown]
    return "; ".join(f"{found.count(one)} x ({one})" for one in dict.fromkeys(found)) or "nothing"


def shares(count: int, workers: int) -> list[slice]:
    """Contiguous parts, not empty, whose sizes differ by one at most: a function of the two numbers alone."""
    ends = [count * (i + 1) // workers for i in range(workers)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False) if start < end]
