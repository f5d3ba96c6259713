"""Ranks of the learner as Ray actors, on whatever machines the cluster has."""

from __future__ import annotations

import os
import socket
import traceback
from types import TracebackType
from typing import Any, Self

import torch

from selfcest_env.errors import InfrastructureError, SelfcestError
from selfcest_training.cluster.config import ClusterConfig
from selfcest_training.cluster.connection import actor_options, death_errors, import_ray, join, result_of, started_of
from selfcest_training.cluster.rank import TIMEOUT, Place, Rank

_GRACE = 2.0  # seconds in which another rank may turn out to be the cause


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

    def meet(self, place: Place) -> None:
        self._rank = Rank(place)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        assert self._rank is not None
        try:
            return self._rank.call(method, *args)
        except SelfcestError:
            raise
        except Exception:
            raise RuntimeError(
                f"rank {self._rank.place.rank} of the learner failed:\n{traceback.format_exc()}"
            ) from None


class RayRanks:
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
        self.built: object = None
        join(config)
        ray, ranks = import_ray(), config.learner_ranks
        environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
        actor = ray.remote(RankActor).options(
            **actor_options(config.learner_resources), max_restarts=0, runtime_env={"env_vars": environment}
        )
        self._actors = [actor.remote(threads) for _ in range(ranks)]
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
            self._answers([one.meet.remote(place) for one, place in zip(self._actors, places, strict=True)])
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any) -> Any:
        """See `Ranks`."""
        if not self._actors:
            raise InfrastructureError("the ranks of the learner have ended; start them anew and resume")
        given = import_ray().put(args)  # once, however many read it
        return self._answers([actor.call.remote(method, given) for actor in self._actors])

    def _answers(self, asked: list[Any]) -> Any:
        """What the first rank says, once all have."""
        ray, waiting = import_ray(), list(asked)
        failed: list[tuple[int, int, Exception]] = []  # how telling, and by which rank
        found: dict[int, Any] = {}
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=_GRACE if failed else None)
            if not done:
                break
            rank = asked.index(done[0])
            try:
                found[rank] = result_of(done[0])
            except death_errors() as error:
                said = " ".join(str(error).split())[:300]
                gone = InfrastructureError(f"rank {rank} of {len(asked)} of the learner has died: {said}")
                failed.append((0, rank, gone))
            except SelfcestError as error:
                failed.append((1, rank, error))
            except Exception as error:
                failed.append((2, rank, error))
        if failed:
            self.close()
            raise min(failed, key=lambda one: one[:2])[2]
        return found[0]

    def close(self) -> None:
        """End all ranks, whatever they are at; the cluster stays."""
        ray = import_ray()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
        self._actors = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
