"""Work on hostile input in processes that can be killed: a wall clock, a bound on memory, a fresh start after a kill.

A worker is `python -m MODULE PARENT` whose main calls `serve`. Requests and results are JSON, one line each. It is a
new process rather than a fork, so neither threads nor open files nor a missing main guard of the caller matter to it.
It ends within a second of its parent's death, whatever it is doing; where there are no interval timers, when it is
done.
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
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from selfcest_env.errors import WorkerError, exit_cause

START_S = 60.0
MEMORY_BYTES = 4 << 30
_WATCH_S, _LONGEST_S = 0.25, 60.0
_CRASHES = {getattr(signal, name, None) for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")} - {None}


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """What a worker returned, or why there is nothing: "timeout", "crash", or the error it met.

    Attributes:
        seconds: wall clock from the request to a ready worker until the result; no waiting, no start.
    """

    value: Any = None
    failure: str = ""
    seconds: float = field(default=0.0, compare=False)


class Worker:
    """One process, started when first needed and again after a kill. For one caller at a time."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._ready = False

    def ask(self, request: Any, timeout_s: float) -> WorkerResult:
        """The result for a request. The clock starts when the worker is ready.

        A worker that dies is no result: a fresh one is asked once more. If that dies too, of a fault of its own as a
        segmentation fault, the request is to blame ("crash").

        Raises:
            WorkerError: no worker starts, or two of them were ended from outside.
        """
        line = json.dumps(request).encode() + b"\n"
        died = 0
        for _ in range(2):
            self._start()
            if self._becomes_ready():
                start = time.monotonic()
                found = self._exchange(line, timeout_s)
                seconds = time.monotonic() - start
                if found is None:
                    self.close()
                    self._start()  # the next caller need not wait for all of it
                    return WorkerResult(failure="timeout", seconds=seconds)
                if found.endswith(b"\n"):
                    answer = json.loads(found)
                    return WorkerResult(answer.get("value"), answer.get("error", ""), seconds)
            died = self.close()
        if -died in _CRASHES:
            return WorkerResult(failure="crash")
        raise WorkerError(
            f"worker {self.module}: ended twice on one request; the last one {exit_cause(died)}. It was not judged"
        )

    def close(self) -> int:
        """Kill the process, whatever it does; its exit code, that of an earlier end if it had ended."""
        if self._process is None:
            return 0
        self._process.kill()
        self._process.communicate()
        self._errors.close()
        code = self._process.returncode
        self._process = None
        return code

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the caller, who closes it
            )
        except OSError as error:
            raise WorkerError(f"worker {self.module}: cannot be started: {error}") from error

    def _becomes_ready(self) -> bool:
        """Wait until it is; false if it was killed on the way. Raises `WorkerError` if it can never be."""
        if self._ready:
            return True
        assert self._process is not None
        line = self._exchange(b"", START_S)
        self._ready = bool(line) and "ready" in json.loads(line or b"{}")
        if self._ready or (line == b"" and self._process.wait() < 0):
            return self._ready
        cause = f"not ready within {START_S:.0f} s" if line is None else "it ended"
        self._errors.seek(0)
        said = (line or self._errors.read()[-400:]).decode(errors="replace").strip()
        self.close()
        raise WorkerError(f"worker {self.module} did not start: {cause}, saying: {said or 'nothing'}")

    def _exchange(self, line: bytes, timeout_s: float) -> bytes | None:
        """The line that follows this one: cut short if the process ended, `None` if it had to be killed."""
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
            process.stdin.write(line)
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

    def ask(self, request: Any, timeout_s: float) -> WorkerResult:
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
    _end_with(int(sys.argv[1]))
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no result
    logging.disable()
    _limit_memory()

    def send(answer: dict[str, Any]) -> None:
        channel.write(json.dumps(answer) + "\n")
        channel.flush()

    try:
        work = load()
    except ImportError as error:
        send({"error": str(error)})
        return
    send({"ready": True})
    for line in sys.stdin.buffer:
        _end_after(_LONGEST_S)
        try:
            answer = {"value": work(json.loads(line))}
        except Exception as error:
            answer = {"error": type(error).__name__}
        _end_after(0)
        send(answer)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system; the wall clock remains
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _end_with(parent: int) -> None:
    """End this process soon after its parent.

    The end of the input would show that only to an idle worker, and not while another child of the parent holds the
    pipe. A timer reaches a busy one too: the handler runs between two steps of Python and inside its long arithmetic.
    """
    if not hasattr(signal, "setitimer"):
        return

    def look(signum: int, frame: object) -> None:
        if os.getppid() != parent:
            os._exit(1)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _WATCH_S, _WATCH_S)


def _end_after(cpu_seconds: float) -> None:
    """End this process even in a library's C code, where no handler runs; 0 calls it off."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
