"""Turns an exception into one line for the terminal, an exit code, and a trace in the folder of the run."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import IntEnum
from multiprocessing.process import BaseProcess
from pathlib import Path

from selfcest_env.errors import ConfigError, InfrastructureError, SelfcestError, StoppedError, exit_cause, install_hint
from selfcest_training.files import open_for_append

LOG = "errors.log"
# SIGINT is Python's KeyboardInterrupt. Batch systems send SIGUSR1, SIGUSR2 or SIGXCPU before the end of a job's time.
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
# The extra that installs each of the modules that commands import late.
EXTRA_OF_MODULE = {
    "httpx2": "openai",
    "jinja2": "train",
    "matplotlib": "train",
    "PIL": "train",
    "safetensors": "train",
    "tensorboard": "train",
    "tokenizers": "train",
    "torch": "train",
    "transformers": "train",
}


class ExitCode(IntEnum):
    """The exit codes of `selfcest`. docs/faults.md describes them."""

    DONE = 0
    # A command that checks something found it wrong.
    CHECK = 1
    # A mistake in the arguments, the config or a plug-in.
    MISTAKE = 2
    # A fault of a server, an engine or the machine. A retry may succeed.
    INFRASTRUCTURE = 3
    # Any other exception: a defect of this project.
    DEFECT = 4


@contextmanager
def log_faults(folder: Path) -> Iterator[None]:
    """Append the trace of an exception that ends the block, with its causes, to the folder's `errors.log`.

    The exception gets a note with the path of the log. `ConfigError` and `StoppedError` are not logged, because their
    messages are complete.
    """
    try:
        yield
    except (ConfigError, StoppedError):
        raise
    except Exception as error:
        trace = traceback.format_exc()
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        # An error while writing the log, as on a full disk, must not hide the exception.
        with suppress(OSError, ConfigError):
            with open_for_append(folder / LOG) as file:
                file.write(f"{now}\n{trace}\n".encode(errors="backslashreplace"))
            error.add_note(f"the whole trace is in {folder / LOG}")
        raise


def format_error_line(error: Exception) -> str:
    """Format an exception with its notes. Exceptions of other packages are shortened to one line."""
    extra = _find_missing_extra(error)
    if extra is not None:
        return f"this command needs the extra {extra} ({error}); run: {install_hint(extra)}"
    if isinstance(error, SelfcestError):
        message = str(error)
    else:
        message = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return "; ".join([message, *getattr(error, "__notes__", ())])


def get_exit_code(error: Exception) -> int:
    """Get the exit code of an exception: an `ExitCode`, or 128 + the number of the signal that stopped the work."""
    if isinstance(error, StoppedError) and error.signal_number is not None:
        return 128 + error.signal_number
    if isinstance(error, InfrastructureError | StoppedError):
        return ExitCode.INFRASTRUCTURE
    if isinstance(error, SelfcestError) or _find_missing_extra(error) is not None:
        return ExitCode.MISTAKE
    # The class is compared by name, because torch is slow to import and may not be installed.
    out_of_memory = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    is_machine_fault = out_of_memory or isinstance(error, OSError | MemoryError | BrokenExecutor)
    return ExitCode.INFRASTRUCTURE if is_machine_fault else ExitCode.DEFECT


class SignalExit(SystemExit):
    """A signal ends this process. It is no `Exception`, so that no handler treats it as a fault.

    Attributes:
        signal_number: number of the signal. The exit code is 128 + this number, as in shells.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(128 + signal_number)
        self.signal_number = signal_number


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Let `ENDING_SIGNALS` raise `SignalExit` in the main thread inside the block, so that files and locks are closed.

    Ignored signals stay ignored, as SIGHUP under `nohup`. In a forked child the signals have their default effect.
    """
    parent = os.getpid()

    def raise_exit(number: int, _: object) -> None:
        if os.getpid() != parent:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        raise SignalExit(number)

    handlers_before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in handlers_before.items():
        if handler == signal.SIG_DFL:
            signal.signal(number, raise_exit)
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            if handler == signal.SIG_DFL:
                signal.signal(number, handler)


@contextmanager
def report_killed_worker(pool: ProcessPoolExecutor, advice: str) -> Iterator[None]:
    """Raise an error with the cause if a worker process ends too early inside the block.

    Args:
        pool: a pool with the `spawn` method and with submitted work, so that all of its processes exist.
        advice: the last part of the message, which tells the user what to do.

    Raises:
        StoppedError: instead of `BrokenProcessPool`.
    """
    processes = list((pool._processes or {}).values())
    try:
        yield
    except BrokenProcessPool as error:
        raise StoppedError(f"a worker process {describe_first_end(processes)}; {advice}") from error


def describe_first_end(processes: Sequence[BaseProcess]) -> str:
    """Describe how the process ended that broke a pool."""
    deadline = time.monotonic() + 1.0
    exit_codes: list[int] = []
    while not exit_codes and time.monotonic() < deadline:
        exit_codes = [process.exitcode for process in processes if process.exitcode is not None]
        time.sleep(0.01)
    # A broken pool ends its other processes with SIGTERM, so another code is that of the first process.
    for code in exit_codes:
        if code != -signal.SIGTERM:
            return exit_cause(code)
    return exit_cause(exit_codes[0] if exit_codes else None)


def _find_missing_extra(error: Exception) -> str | None:
    """Find the extra that installs the module of a failed import; `None` for any other error."""
    return EXTRA_OF_MODULE.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
