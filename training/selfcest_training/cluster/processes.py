"""Ranks in processes of this machine, on several GPUs or the cores of a CPU, without Ray."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfcest_env.errors import InfrastructureError, SelfcestError, exit_cause
from selfcest_training.cluster.group import HostedRanks
from selfcest_training.cluster.rank import TIMEOUT, Rank, RankSpec
from selfcest_training.cluster.timed_result import TimedResult


class ProcessRanks(HostedRanks):
    """`Ranks` in processes of this machine; use it in a `with`. They end with this process or with the first failure.

    Args:
        ranks: number of ranks.
        backend, timeout: see `RankSpec`.

    Raises:
        InfrastructureError: a rank did not start.
    """

    def __init__(self, ranks: int, backend: str = "gloo", timeout: float = TIMEOUT) -> None:
        super().__init__(ranks)
        context = multiprocessing.get_context("spawn")
        self._folder = Path(tempfile.mkdtemp(prefix="selfcest-ranks-"))
        address = (self._folder / "store").as_uri()
        self._connections: list[Connection] = []
        self.processes = []
        for rank in range(ranks):
            driver_end, rank_end = context.Pipe()
            spec = RankSpec(rank, ranks, address, backend, timeout)
            process = context.Process(target=_serve, args=(spec, rank_end), daemon=True, name=f"rank {rank}")
            process.start()
            # With a copy of its end open here, the death of the rank would not close the pipe.
            rank_end.close()
            self._connections.append(driver_end)
            self.processes.append(process)
        # Ranks that have not answered yet, by connection.
        self._pending = dict(zip(self._connections, range(ranks), strict=True))
        self._wait_for_results()

    def _send(self, method: str, args: tuple[Any, ...]) -> None:
        message = _serialise((method, args))
        for connection in self._connections:
            # The pipe of a dead rank is broken. `_receive` reports the rank.
            with suppress(OSError):
                connection.send_bytes(message)
        self._pending = dict(zip(self._connections, range(self._count), strict=True))

    def _receive(self, seconds: float | None) -> Iterator[tuple[int, TimedResult | Exception]]:
        for connection in wait(list(self._pending), seconds):
            assert isinstance(connection, Connection)
            rank = self._pending.pop(connection)
            try:
                answer: TimedResult | SelfcestError | str = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                process = self.processes[rank]
                # The pipe may close a moment before the process has ended.
                process.join(1.0)
                answer = InfrastructureError(
                    f"rank {rank} of {self._count} of the learner {exit_cause(process.exitcode)} before it answered"
                )
            if isinstance(answer, str):
                yield rank, RuntimeError(f"rank {rank} of {self._count} of the learner failed:\n{answer}")
            else:
                yield rank, answer

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for connection in self._connections:
            connection.close()
        self._connections = []
        shutil.rmtree(self._folder, ignore_errors=True)


class _Pickler(pickle.Pickler):
    """Pickles tensors as bytes: torch's own way over a pipe needs more shared memory than containers have."""

    def reducer_override(self, value: object) -> Any:
        if type(value) is not Tensor:
            return NotImplemented
        return _tensor_of, (value.contiguous().view(-1).view(torch.uint8).numpy(), value.dtype, value.shape)


def _tensor_of(values: npt.NDArray[np.uint8], dtype: torch.dtype, shape: torch.Size) -> Tensor:
    return torch.from_numpy(values).view(dtype).view(shape)


def _serialise(message: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return file.getvalue()


def _serve(spec: RankSpec, driver: Connection) -> None:
    """Answer each call with a `TimedResult`, an error or a traceback, until the driver is gone."""
    # The driver handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The pipe ends when the driver has ended.
    with suppress(EOFError, OSError):
        try:
            rank = Rank(spec)
        except Exception:
            driver.send_bytes(_serialise(traceback.format_exc()))
            return
        driver.send_bytes(_serialise(TimedResult(None, 0.0)))
        while True:
            message = driver.recv_bytes()
            answer: TimedResult | SelfcestError | str
            try:
                method, args = pickle.loads(message)
                answer = rank.call(method, *args)
            except SelfcestError as error:
                answer = error
            except Exception:
                # The rank stays alive: if it ended, the ranks that wait for it would fail too and hide the cause.
                answer = traceback.format_exc()
            driver.send_bytes(_serialise(answer))
