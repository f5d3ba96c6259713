"""Work on hostile input in processes that can be killed: a wall clock, a bound on memory, a fresh start after a kill.

A worker is `python -m MODULE` whose main calls `serve`. Requests and results are JSON, one line each. It is a new
process rather than a fork, so neither threads nor open files nor a missing main guard of the caller matter to it.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from selfcest_env.errors import WorkerError

START_S = 60.0
MEMORY_BYTES = 4 << 30
_ORPHAN_S = 60  # a worker whose parent is gone ends itself, should it be busy


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker returned, or why there is nothing: "timeout", "died", or the error it met."""

    value: Any = None
    failure: str = ""


class Worker:
    """One process, started when first needed and again after a kill. For one caller at a time."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._ready = False

    def ask(self, request: Any, timeout_s: float) -> Result:
        """The result for a request. The clock starts when the worker is ready. Raises `WorkerError` if none starts."""
        self._start()
        self._wait_until_ready()
        line = self._exchange(json.dumps(request), timeout_s)
        if line is None or not line:
            self.close()
            self._start()  # the next caller need not wait for all of it
            return Result(failure="timeout" if line is None else "died")
        answer = json.loads(line)
        return Result(answer.get("value"), answer.get("error", ""))

    def close(self) -> None:
        """Kill the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._errors.close()
        self._process = None

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the caller, who closes it
            )
        except OSError as error:
            raise WorkerError(f"worker {self.module}: cannot be started: {error}") from error

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        line = self._exchange("", START_S)
        self._ready = bool(line) and "ready" in json.loads(line or b"{}")
        if not self._ready:
            cause = f"not ready within {START_S:.0f} s" if line is None else "it ended"
            self._errors.seek(0)
            said = (line or self._errors.read()[-400:]).decode(errors="replace").strip()
            self.close()
            raise WorkerError(f"worker {self.module} did not start: {cause}, saying: {said or 'nothing'}")

    def _exchange(self, line: str, timeout_s: float) -> bytes | None:
        """The line that follows this one: empty if the process ended, `None` if it had to be killed."""
        process, late = self._process, threading.Event()
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(timeout_s, kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            found = process.stdout.readline()
        except OSError:
            found = b""
        finally:
            timer.cancel()
            timer.join()
        return None if late.is_set() else found


class WorkerPool:
    """Workers shared by the threads of one process; a caller waits until one is free."""

    def __init__(self, module: str, size: int = 1) -> None:
        self._workers = [Worker(module) for _ in range(size)]
        self._free: queue.LifoQueue[Worker] = queue.LifoQueue()
        self._owner = os.getpid()
        for worker in self._workers:
            self._free.put(worker)
        atexit.register(self.close)

    def ask(self, request: Any, timeout_s: float) -> Result:
        worker = self._free.get()
        try:
            return worker.ask(request, timeout_s)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """Kill all workers; those of a parent process, inherited in a fork, are not ours to kill."""
        if os.getpid() == self._owner:
            for worker in self._workers:
                worker.close()


def shared_pool(module: str) -> WorkerPool:
    """The pool of this process for a module."""
    return _pool(module, os.getpid())


@cache
def _pool(module: str, process_id: int) -> WorkerPool:
    return WorkerPool(module)


# In the worker


def serve(load: Callable[[], Callable[[Any], Any]]) -> None:
    """The main of a worker: `load` imports what it needs and gives the function from request to JSON value."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no result
    logging.disable()
    _limit_memory()

    def send(answer: dict[str, Any]) -> None:
        channel.write(json.dumps(answer) + "\n")
        channel.flush()

    sys.stdin.buffer.readline()
    try:
        work = load()
    except ImportError as error:
        send({"error": str(error)})
        return
    send({"ready": True})
    for line in sys.stdin.buffer:
        _end_if_busy_for(_ORPHAN_S)
        try:
            answer = {"value": work(json.loads(line))}
        except Exception as error:
            answer = {"error": type(error).__name__}
        _end_if_busy_for(0)
        send(answer)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system; the wall clock remains
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _end_if_busy_for(seconds: int) -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)
