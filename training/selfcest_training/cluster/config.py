"""The `cluster` block of a run's config: the machines on which it computes, which are not part of its identity."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    """Rollout workers and learner ranks on Ray. A run resumes with any other cluster block, or without one.

    Attributes:
        address: HOST:PORT of a cluster's head; `null`: Ray is started on this machine and ends with the run.
        rollout_workers: number of workers that share every rollout in equal, contiguous parts.
        rollout_resources: resources of each worker by Ray's names (`CPU`, `GPU`, `memory` in bytes, or custom ones).
        overlap: a second set of workers plays every other step, and starts it during the last episodes of the previous
            step.
        learner_ranks: number of processes that share the learner. 1: the job's own process, without resources of Ray.
        learner_resources: resources of each rank, if there are several.
        backend: backend of the ranks' collective operations.
        retries: number of times that a part is played again when its worker dies, before the run stops.
        start_seconds: time within which all workers must start.
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
                "client's ray://), or null to start Ray on this machine"
            )

    @property
    def requested(self) -> Mapping[str, tuple[int, Resources]]:
        """Number of actors and resources of each actor, by kind (`rollout`, `learner`)."""
        ranks = self.learner_ranks if self.learner_ranks > 1 else 0
        return {
            "rollout": (self.rollout_workers * (2 if self.overlap else 1), self.rollout_resources),
            "learner": (ranks, self.learner_resources),
        }

    def check_devices(self, *, cuda: bool, tensor_parallel: int, compiled: bool) -> None:
        """Raise `ConfigError` if resources, backend or ranks do not fit the options of model, sampler and learner.

        Args:
            cuda: whether the model is on a GPU.
            tensor_parallel: number of GPUs of the sampler.
            compiled: whether the learner compiles its model.
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
                f"model.options.device is {device} and cluster.backend is {self.backend}, so ranks would train "
                f"on {other}; set cluster.backend={backend}"
            )
        for kind, (count, resources) in self.requested.items():
            if cuda and count and not resources.get("GPU"):
                raise ConfigError(
                    f"model.options.device is cuda and cluster.{kind}_resources gives none; set "
                    f"cluster.{kind}_resources.GPU=1"
                )
        if self.learner_ranks > 1 and compiled:
            raise ConfigError(
                f"cluster.learner_ranks is {self.learner_ranks} and forward.compile is true, which has not been tried "
                "on ranks; set forward.compile=false"
            )

    def check_overlap(self, place: str, max_staleness: int, keys_with_state: Sequence[str]) -> None:
        """Raise `ConfigError` if `overlap` is set and a step cannot begin before the previous step has ended.

        Args:
            place: config key of RL's block.
            max_staleness: steps that rollouts run ahead of the learner.
            keys_with_state: keys of that block whose stages have a state that influences rollouts.
        """
        if not self.overlap:
            return
        if not max_staleness:
            raise ConfigError(
                f"cluster.overlap is true and {place}.max_staleness is 0, so that a step waits for the update "
                "before it; set max_staleness to 1 or more, or cluster.overlap=false"
            )
        if keys_with_state:
            raise ConfigError(
                f"cluster.overlap is true and the state of {place}.{keys_with_state[0]} depends on earlier steps, "
                "which have not ended when a step begins; set cluster.overlap=false"
            )


def check_resources(config: ClusterConfig, nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse actors that the cluster could never place, even if it were idle.

    Args:
        config: the requested actors.
        nodes: the total resources of each node by name.

    Raises:
        ConfigError: no set of nodes has room for the actors of one kind, or the nodes together lack a resource.
    """
    for kind, (count, resources) in config.requested.items():
        if not count or not resources:
            continue
        room = 0
        for node in nodes:
            room += min(int(node.get(name, 0.0) / amount) for name, amount in resources.items())
        if room < count:
            key = "learner_ranks" if kind == "learner" else "rollout_workers"
            twice = ", twice for cluster.overlap" if kind == "rollout" and config.overlap else ""
            raise ConfigError(
                f"cluster.{kind}_resources is {dict(resources)} and cluster.{key} is {getattr(config, key)}{twice}, "
                f"but the cluster has room for {room}: its nodes have {_describe(nodes)}; start nodes that have more, "
                "or ask for less"
            )
    totals: dict[str, float] = {}
    for count, resources in config.requested.values():
        for name, amount in resources.items():
            totals[name] = totals.get(name, 0.0) + count * amount
    for name, amount in totals.items():
        available = sum(node.get(name, 0.0) for node in nodes)
        if amount > available:
            raise ConfigError(
                f"cluster.rollout_resources and cluster.learner_resources ask for {amount:g} {name} together, but the "
                f"cluster has {available:g}: its nodes have {_describe(nodes)}; start nodes that have more, or ask for "
                "less"
            )


def _describe(nodes: Sequence[Mapping[str, float]]) -> str:
    """Describe the nodes' resources, equal nodes together, as `2 x (CPU 8, GPU 1)`."""
    descriptions = []
    for node in nodes:
        # Ray gives every node a resource of its own name, which no config requests.
        resources = sorted((name, amount) for name, amount in node.items() if not name.startswith("node:"))
        descriptions.append(", ".join(f"{name} {amount:g}" for name, amount in resources))
    counted = [f"{descriptions.count(text)} x ({text})" for text in dict.fromkeys(descriptions)]
    return "; ".join(counted) or "nothing"


def split_evenly(count: int, workers: int) -> list[slice]:
    """Split `count` items into contiguous, non-empty parts whose sizes differ by at most one.

    It depends on the two numbers only, so a resumed run plays the same parts.
    """
    ends = [count * (i + 1) // workers for i in range(workers)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False) if start < end]
