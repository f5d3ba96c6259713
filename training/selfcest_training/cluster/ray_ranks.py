"""Ranks of the learner as Ray actors on the machines of a cluster."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterator
from typing import Any

import torch

from selfcest_env.errors import InfrastructureError, SelfcestError
from selfcest_env.local_modules import child_environment
from selfcest_training.cluster.config import ClusterConfig
from selfcest_training.cluster.connection import (
    actor_options,
    death_errors,
    get_result,
    import_ray,
    join,
    start_actors,
    to_one_line,
)
from selfcest_training.cluster.group import HostedRanks
from selfcest_training.cluster.rank import TIMEOUT, Rank, RankSpec
from selfcest_training.cluster.timed_result import TimedResult


class RankActor:
    """The actor of a rank. The rank joins its group when all actors have started and the rendezvous is known."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._rank: Rank | None = None

    def start(self) -> tuple[int, str]:
        """Return the process id, and an address on this machine that a group can use as rendezvous."""
        host = import_ray().util.get_node_ip_address()
        with socket.socket() as free:
            free.bind(("", 0))
            return os.getpid(), f"tcp://{host}:{free.getsockname()[1]}"

    def join_group(self, spec: RankSpec) -> TimedResult:
        self._rank = Rank(spec)
        return TimedResult(None, 0.0)

    def call(self, method: str, args: tuple[Any, ...]) -> TimedResult:
        assert self._rank is not None
        try:
            return self._rank.call(method, *args)
        except SelfcestError:
            raise
        except Exception:
            raise RuntimeError(
                f"rank {self._rank.spec.rank} of the learner failed:\n{traceback.format_exc()}"
            ) from None


class RayRanks(HostedRanks):
    """`Ranks` in `config.learner_ranks` actors; use it in a `with`. They end with the first failure.

    Args:
        config: number of ranks, their resources and the time that they may take to start.
        threads: of each rank's matrix products.
        timeout: see `RankSpec`.

    Raises:
        ConfigError: Ray is not installed or the cluster cannot be joined.
        InfrastructureError: not all ranks started in time.
    """

    def __init__(self, config: ClusterConfig, threads: int, timeout: float = TIMEOUT) -> None:
        super().__init__(config.learner_ranks)
        join(config)
        ray = import_ray()
        ranks = config.learner_ranks
        environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **child_environment()}
        actor = ray.remote(RankActor).options(
            **actor_options(config.learner_resources), max_restarts=0, runtime_env={"env_vars": environment}
        )
        self._actors = [actor.remote(threads) for _ in range(ranks)]
        # Ranks that have not answered yet, by the reference of their pending result.
        self._pending: dict[Any, int] = {}
        try:
            started = start_actors(self._actors, "learner rank", config.learner_resources, config.start_seconds)
            self.pids = [pid for pid, _ in started]
            _, rendezvous = started[0]
            for rank, rank_actor in enumerate(self._actors):
                spec = RankSpec(rank, ranks, rendezvous, config.backend, timeout)
                self._pending[rank_actor.join_group.remote(spec)] = rank
            self._wait_for_results()
        except BaseException:
            self.close()
            raise

    def _send(self, method: str, args: tuple[Any, ...]) -> None:
        # The arguments are stored once for all ranks.
        shared_args = import_ray().put(args)
        self._pending = {actor.call.remote(method, shared_args): rank for rank, actor in enumerate(self._actors)}

    def _receive(self, seconds: float | None) -> Iterator[tuple[int, TimedResult | Exception]]:
        done, _ = import_ray().wait(list(self._pending), num_returns=1, timeout=seconds)
        for reference in done:
            rank = self._pending.pop(reference)
            try:
                yield rank, get_result(reference)
            except death_errors() as error:
                reason = to_one_line(error)
                yield rank, InfrastructureError(f"rank {rank} of {self._count} of the learner has died: {reason}")
            except Exception as error:
                yield rank, error

    def _kill(self) -> None:
        """End the actors; the cluster stays."""
        ray = import_ray()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
