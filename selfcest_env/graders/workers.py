"""Process hostile input in worker processes with a time limit and a memory limit. A killed worker is restarted.

A worker is a process `python -m MODULE PARENT_ID` whose main calls `serve`. Each request and each result is one line of
JSON. Workers are new processes and no forks, so they inherit no threads and no open files, and the caller's script
needs no main guard. A worker ends within a second after its parent. On systems without interval timers it ends after
its current request.
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
_PARENT_CHECK_S = 0.25
_MAX_CPU_S = 60.0
_CRASH_SIGNALS = {getattr(signal, name, None) for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")} - {None}


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The result of a request.

    Attributes:
        value: value that the worker returned; `None` after a failure.
        failure: "timeout", "crash" or the name of the exception that the request raised; empty after success.
        seconds: wall clock from the request to the result. The start of the worker and the wait for it do not count.
    """

    value: Any = None
    failure: str = ""
    seconds: float = field(default=0.0, compare=False)


class Worker:
    """One worker process for one caller at a time, started for the first request and again after it was killed."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._ready = False

    def ask(self, request: Any, timeout_s: float) -> WorkerResult:
        """Send a request and return its result.

        The time limit starts when the worker is ready. If the worker dies, a second worker gets the same request. If
        that one dies of a fault of its own, such as a segmentation fault, the result is the failure "crash".

        Raises:
            WorkerError: no worker can start, or both workers were ended from outside.
        """
        line = json.dumps(request).encode() + b"\n"
        exit_code = 0
        for _ in range(2):
            self._start()
            if self._wait_until_ready():
                start = time.monotonic()
                response = self._exchange(line, timeout_s)
                seconds = time.monotonic() - start
                if response is None:
                    self.close()
                    self._start()  # in the background, so that the next request waits less
                    return WorkerResult(failure="timeout", seconds=seconds)
                # A response without a line end was cut off by the worker's death.
                if response.endswith(b"\n"):
                    result = json.loads(response)
                    return WorkerResult(result.get("value"), result.get("error", ""), seconds)
            exit_code = self.close()
        if -exit_code in _CRASH_SIGNALS:
            return WorkerResult(failure="crash")
        raise WorkerError(
            f"worker {self.module}: ended twice on one request; the last one {exit_cause(exit_code)}. Nothing was "
            "judged; look for a limit on memory or a tool that kills processes"
        )

    def close(self) -> int:
        """Kill the process and return its exit code. An earlier exit code is kept if the process had already ended."""
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
                start_new_session=True,  # Ctrl-C must reach only the caller, which closes the worker
            )
        except OSError as error:
            raise WorkerError(f"worker {self.module}: cannot be started: {error}") from error

    def _wait_until_ready(self) -> bool:
        """Wait for the worker's start. Return false if a signal ended it; raise `WorkerError` for any other failure."""
        if self._ready:
            return True
        assert self._process is not None
        line = self._exchange(b"", START_S)
        self._ready = bool(line) and "ready" in json.loads(line or b"{}")
        if self._ready or (line == b"" and self._process.wait() < 0):
            return self._ready
        cause = f"not ready within {START_S:.0f} s" if line is None else "it ended"
        self._errors.seek(0)
        output = (line or self._errors.read()[-400:]).decode(errors="replace").strip()
        self.close()
        raise WorkerError(f"worker {self.module} did not start: {cause}; its output: {output or 'none'}")

    def _exchange(self, line: bytes, timeout_s: float) -> bytes | None:
        """Send a line and return the response line.

        Returns:
            The line, cut short if the process ended; `None` if the process was killed after `timeout_s` seconds.
        """
        process = self._process
        timed_out = threading.Event()
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None

        def kill() -> None:
            timed_out.set()
            process.kill()

        timer = threading.Timer(timeout_s, kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            response = process.stdout.readline()
        except OSError:
            response = b""
        finally:
            timer.cancel()
            timer.join()
        return None if timed_out.is_set() else response


class WorkerPool:
    """Workers that the threads of one process share. A request waits until a worker is free."""

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
        """Kill all workers. In a fork this does nothing, because the workers belong to the parent process."""
        if os.getpid() == self._owner:
            for worker in self._workers:
                worker.close()


def shared_pool(module: str) -> WorkerPool:
    """Return the pool of this process for a module."""
    return _pool(module, os.getpid())


@cache
def _pool(module: str, process_id: int) -> WorkerPool:
    return WorkerPool(module)


# In the worker


def serve(load: Callable[[], Callable[[Any], Any]]) -> None:
    """Run a worker: the main function of its module.

    Args:
        load: imports the libraries of the worker and returns a function from a request to a JSON value.
    """
    _end_with_parent(int(sys.argv[1]))
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the output of libraries must not mix with the results
    logging.disable()
    _limit_memory()

    def send(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    try:
        process_request = load()
    except ImportError as error:
        send({"error": str(error)})
        return
    send({"ready": True})
    for line in sys.stdin.buffer:
        _limit_cpu_time(_MAX_CPU_S)
        try:
            result = {"value": process_request(json.loads(line))}
        except Exception as error:
            result = {"error": type(error).__name__}
        _limit_cpu_time(0)
        send(result)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:
        # Windows has no such limits; the time limit remains.
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _end_with_parent(parent_id: int) -> None:
    """End this process soon after its parent.

    The end of the input is not enough: a busy worker does not read, and another child of the parent can hold the pipe
    open. A timer also interrupts a busy worker, between two steps of Python and inside its long arithmetic.
    """
    if not hasattr(signal, "setitimer"):
        return

    def check_parent(signum: int, frame: object) -> None:
        if os.getppid() != parent_id:
            os._exit(1)

    signal.signal(signal.SIGALRM, check_parent)
    signal.setitimer(signal.ITIMER_REAL, _PARENT_CHECK_S, _PARENT_CHECK_S)


def _limit_cpu_time(cpu_seconds: float) -> None:
    """End this process after so many CPU seconds; 0 removes the limit.

    The signal ends the process even in a library's C code, in which no handler of Python runs.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
