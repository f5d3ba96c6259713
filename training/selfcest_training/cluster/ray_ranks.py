"""Ranks of the learner as Ray actors, on whatever machines the cluster has."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterator
from typing import Any

import torch

from selfcest_env.errors import InfrastructureError, SelfcestError
from selfcest_env.local_modules import child_environment
from selfcest_training.cluster.answers import Answer
from selfcest_training.cluster.config import ClusterConfig
from selfcest_training.cluster.connection import actor_options, death_errors, import_ray, join, result_of, started_of
from selfcest_training.cluster.group import HostedRanks
from selfcest_training.cluster.rank import TIMEOUT, Place, Rank


class RankActor:
    """The actor: a rank, once all have started and the first has said where they meet."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._rank: Rank | None = None

    def start(self) -> tuple[int, str]:
        """Its process, and an address on its machine where a group could meet."""
        host = import_ray().util.get_node_ip_address()
        with socket.socket() as free:
            free.bind(("", 0))
            return os.getpid(), f"tcp://{host}:{free.getsockname()[1]}"

    def meet(self, place: Place) -> Answer:
        self._rank = Rank(place)
        return Answer(None, 0.0)

    def call(self, method: str, args: tuple[Any, ...]) -> Answer:
        assert self._rank is not None
        try:
            return self._rank.call(method, *args)
        except SelfcestError:
            raise
        except Exception:
            raise RuntimeError(
                f"rank {self._rank.place.rank} of the learner failed:\n{traceback.format_exc()}"
            ) from None


class RayRanks(HostedRanks):
    """`Ranks` in as many actors as `config.learner_ranks`; use it in a `with`. They end with the first that fails.

    Args:
        config: how many, on what, and how long they may take to start.
        threads: of each one's matrix products.
        timeout: see `Place`.

    Raises:
        ConfigError: Ray cannot be had.
        InfrastructureError: not all have started in time.
    """

    def __init__(self, config: ClusterConfig, threads: int, timeout: float = TIMEOUT) -> None:
        super().__init__(config.learner_ranks)
        join(config)
        ray, ranks = import_ray(), config.learner_ranks
        environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **child_environment()}
        actor = ray.remote(RankActor).options(
            **actor_options(config.learner_resources), max_restarts=0, runtime_env={"env_vars": environment}
        )
        self._actors = [actor.remote(threads) for _ in range(ranks)]
        self._asked: dict[Any, int] = {}  # which rank has not answered yet, by the reference to what it will
        try:
            starting = [one.start.remote() for one in self._actors]
            _, missing = ray.wait(starting, num_returns=ranks, timeout=config.start_seconds)
            if missing:
                raise InfrastructureError(
                    f"{len(missing)} of {ranks} ranks of the learner, which want {dict(config.learner_resources)} "
                    f"each, did not start in cluster.start_seconds = {config.start_seconds:g}; look at `ray status`"
                )
            started = [started_of(one, "rank of the learner") for one in starting]
            self.pids = [pid for pid, _ in started]
            places = [Place(rank, ranks, started[0][1], config.backend, timeout) for rank in range(ranks)]
            self._asked = {self._actors[place.rank].meet.remote(place): place.rank for place in places}
            self._answer()
        except BaseException:
            self.close()
            raise

    def _ask(self, method: str, args: tuple[Any, ...]) -> None:
        given = import_ray().put(args)  # once, however many read it
        self._asked = {actor.call.remote(method, given): rank for rank, actor in enumerate(self._actors)}

    def _hear(self, seconds: float | None) -> Iterator[tuple[int, Answer | Exception]]:
        done, _ = import_ray().wait(list(self._asked), num_returns=1, timeout=seconds)
        for one in done:
            rank = self._asked.pop(one)
            try:
                yield rank, result_of(one)
            except death_errors() as error:
                said = " ".join(str(error).split())[:300]
                yield rank, InfrastructureError(f"rank {rank} of {self._count} of the learner has died: {said}")
            except Exception as error:
                yield rank, error

    def _end(self) -> None:
        """The cluster stays."""
        ray = import_ray()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
