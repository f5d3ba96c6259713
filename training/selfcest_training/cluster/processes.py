"""Ranks in processes of this machine: several GPUs, or the cores of a CPU, without Ray."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import shutil
import signal
import tempfile
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfcest_env.errors import InfrastructureError, SelfcestError
from selfcest_training.cluster.rank import TIMEOUT, Place, Rank

_GRACE = 2.0  # seconds in which another rank may turn out to be the cause


class ProcessRanks:
    """`Ranks` in as many processes; use it in a `with`. They end with this process, and with the first that fails.

    Args:
        ranks: how many.
        backend, timeout: see `Place`.

    Raises:
        InfrastructureError: a rank did not start.
    """

    def __init__(self, ranks: int, backend: str = "gloo", timeout: float = TIMEOUT) -> None:
        self.built: object = None
        context = multiprocessing.get_context("spawn")
        self._folder = Path(tempfile.mkdtemp(prefix="selfcest-ranks-"))
        address = (self._folder / "store").as_uri()
        self._connections: list[Connection] = []
        self.processes = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            place = Place(rank, ranks, address, backend, timeout)
            process = context.Process(target=_serve, args=(place, theirs), daemon=True, name=f"rank {rank}")
            process.start()
            theirs.close()  # or its end would not be seen
            self._connections.append(ours)
            self.processes.append(process)
        self._answers()

    def call(self, method: str, *args: Any) -> Any:
        """See `Ranks`."""
        if not self._connections:
            raise InfrastructureError("the ranks of the learner have ended; start them anew and resume")
        message = _packed((method, args))
        for connection in self._connections:
            with suppress(OSError):  # it is gone, which its silence will say
                connection.send_bytes(message)
        return self._answers()

    def _answers(self) -> Any:
        """What the first rank says, once all have."""
        open_ends = {connection: rank for rank, connection in enumerate(self._connections)}
        found: dict[int, Any] = {}
        failed: list[tuple[int, int, Exception]] = []  # how telling, and by which rank
        count = len(open_ends)
        while open_ends:
            ready = wait(list(open_ends), _GRACE if failed else None)
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = open_ends.pop(connection)
                try:
                    error, found[rank] = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    gone = InfrastructureError(f"rank {rank} of {count} of the learner has ended without a word")
                    failed.append((0, rank, gone))
                    continue
                if isinstance(error, SelfcestError):
                    failed.append((1, rank, error))
                elif error is not None:
                    failed.append((2, rank, RuntimeError(f"rank {rank} of {count} of the learner failed:\n{error}")))
        if failed:
            self.close()
            raise min(failed, key=lambda one: one[:2])[2]
        return found[0]

    def close(self) -> None:
        """End all ranks, whatever they are at."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for connection in self._connections:
            connection.close()
        self._connections = []
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Pickler(pickle.Pickler):
    """Tensors as bytes. What a pipe does with them by itself needs more shared memory than containers have."""

    def reducer_override(self, value: object) -> Any:
        if type(value) is not Tensor:
            return NotImplemented
        return _tensor, (value.contiguous().view(-1).view(torch.uint8).numpy(), value.dtype, value.shape)


def _tensor(values: npt.NDArray[np.uint8], dtype: torch.dtype, shape: torch.Size) -> Tensor:
    return torch.from_numpy(values).view(dtype).view(shape)


def _packed(message: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return file.getvalue()


def _serve(place: Place, driver: Connection) -> None:
    """Answer calls with a pair of error and result, until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    with suppress(EOFError, OSError):  # the driver is gone
        try:
            rank = Rank(place)
        except Exception:
            driver.send_bytes(_packed((traceback.format_exc(), None)))
            return
        driver.send_bytes(_packed((None, None)))
        while True:
            message = driver.recv_bytes()
            answer: tuple[SelfcestError | str | None, Any]
            try:
                method, args = pickle.loads(message)
                answer = None, rank.call(method, *args)
            except Exception as error:  # it stays until it is ended: whoever waits for it would fail, and hide why
                answer = error if isinstance(error, SelfcestError) else traceback.format_exc(), None
            driver.send_bytes(_packed(answer))
