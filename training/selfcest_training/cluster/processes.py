"""Ranks in processes of this machine: several GPUs, or the cores of a CPU, without Ray."""

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
from selfcest_training.cluster.answers import Answer
from selfcest_training.cluster.group import HostedRanks
from selfcest_training.cluster.rank import TIMEOUT, Place, Rank


class ProcessRanks(HostedRanks):
    """`Ranks` in as many processes; use it in a `with`. They end with this process, and with the first that fails.

    Args:
        ranks: how many.
        backend, timeout: see `Place`.

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
            ours, theirs = context.Pipe()
            place = Place(rank, ranks, address, backend, timeout)
            process = context.Process(target=_serve, args=(place, theirs), daemon=True, name=f"rank {rank}")
            process.start()
            theirs.close()  # or its end would not be seen
            self._connections.append(ours)
            self.processes.append(process)
        self._asked = dict(zip(self._connections, range(ranks), strict=True))
        self._answer()

    def _ask(self, method: str, args: tuple[Any, ...]) -> None:
        message = _packed((method, args))
        for connection in self._connections:
            with suppress(OSError):  # it is gone, which its silence will say
                connection.send_bytes(message)
        self._asked = dict(zip(self._connections, range(self._count), strict=True))

    def _hear(self, seconds: float | None) -> Iterator[tuple[int, Answer | Exception]]:
        for connection in wait(list(self._asked), seconds):
            assert isinstance(connection, Connection)
            rank = self._asked.pop(connection)
            try:
                said: Answer | SelfcestError | str = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                process = self.processes[rank]
                process.join(1.0)  # its pipe may close a moment before it has ended
                said = InfrastructureError(
                    f"rank {rank} of {self._count} of the learner {exit_cause(process.exitcode)}, without a word"
                )
            if isinstance(said, str):
                yield rank, RuntimeError(f"rank {rank} of {self._count} of the learner failed:\n{said}")
            else:
                yield rank, said

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for connection in self._connections:
            connection.close()
        self._connections = []
        shutil.rmtree(self._folder, ignore_errors=True)


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
    """Answer calls, with an `Answer` or with what went wrong, until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    with suppress(EOFError, OSError):  # the driver is gone
        try:
            rank = Rank(place)
        except Exception:
            driver.send_bytes(_packed(traceback.format_exc()))
            return
        driver.send_bytes(_packed(Answer(None, 0.0)))
        while True:
            message = driver.recv_bytes()
            said: Answer | SelfcestError | str
            try:
                method, args = pickle.loads(message)
                said = rank.call(method, *args)
            except SelfcestError as error:
                said = error
            except Exception:  # it stays until it is ended: whoever waits for it would fail, and hide why
                said = traceback.format_exc()
            driver.send_bytes(_packed(said))
