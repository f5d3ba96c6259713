"""What becomes of an exception: one line for the terminal, an exit code, and its trace in the folder that it hit."""

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
# SIGINT is Python's KeyboardInterrupt. Batch systems send SIGUSR1, SIGUSR2 or SIGXCPU before the time of a job is up.
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
# Modules that commands import late, by the extra that installs them.
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


class Exit(IntEnum):
    """The exit codes of `selfcest`, as docs/faults.md has them."""

    DONE = 0
    CHECK = 1  # a command that checks something has found it wrong
    MISTAKE = 2  # in what was typed, configured or plugged in
    INFRASTRUCTURE = 3  # a server, an engine or the machine; another try may go better
    DEFECT = 4  # nobody has thought of it


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Append the trace of whatever ends the block to the folder's `errors.log`, with those of its causes.

    The exception gets a note that says where. `ConfigError` and `StoppedError` say all there is to say, and are not
    logged.
    """
    try:
        yield
    except (ConfigError, StoppedError):
        raise
    except Exception as error:
        trace, now = traceback.format_exc(), datetime.now().astimezone().isoformat(" ", "seconds")
        with suppress(OSError, ConfigError):  # a full disk must not hide what it has caused
            with open_for_append(folder / LOG) as file:
                file.write(f"{now}\n{trace}\n".encode(errors="backslashreplace"))
            error.add_note(f"the whole trace is in {folder / LOG}")
        raise


def line_of(error: Exception) -> str:
    """The exception with its notes, on one line if it is none of the project's own."""
    if extra := _missing_extra(error):
        return f"this command needs the extra {extra} ({error}); run: {install_hint(extra)}"
    own = isinstance(error, SelfcestError)
    said = str(error) if own else " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return "; ".join([said, *getattr(error, "__notes__", ())])


def exit_code(error: Exception) -> int:
    """An `Exit`, or 128 + the number of the signal that has stopped the work, as shells report it."""
    if isinstance(error, StoppedError) and error.signal_number is not None:
        return 128 + error.signal_number
    if isinstance(error, InfrastructureError | StoppedError):
        return Exit.INFRASTRUCTURE
    if isinstance(error, SelfcestError) or _missing_extra(error):
        return Exit.MISTAKE
    # By name: torch is slow to import, and may not be there.
    out_of_memory = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    machine = out_of_memory or isinstance(error, OSError | MemoryError | BrokenExecutor)
    return Exit.INFRASTRUCTURE if machine else Exit.DEFECT


class SignalExit(SystemExit):
    """A signal from outside ends this process; no `except Exception` on the way takes it for a fault.

    Attributes:
        signal_number: of the signal; the exit code is 128 + it, as shells report it.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(128 + signal_number)
        self.signal_number = signal_number


@contextmanager
def signals_raise() -> Iterator[None]:
    """Within the block `ENDING_SIGNALS` raise `SignalExit` in the main thread, so that files and locks are closed.

    Signals that are ignored stay so, as SIGHUP under `nohup`. A forked child is ended as it would be without this.
    """
    owner = os.getpid()

    def leave(number: int, _: object) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        raise SignalExit(number)

    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in before.items():
        if handler == signal.SIG_DFL:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler == signal.SIG_DFL:
                signal.signal(number, handler)


@contextmanager
def killed_worker_named(pool: ProcessPoolExecutor, advice: str) -> Iterator[None]:
    """Within the block, a worker process that ends before its work is done raises an error that says how it ended.

    Args:
        pool: started with the `spawn` method, with work submitted to it, so that all of its processes are there.
        advice: what to do then.

    Raises:
        StoppedError: in the place of `BrokenProcessPool`.
    """
    processes = list((pool._processes or {}).values())
    try:
        yield
    except BrokenProcessPool as error:
        raise StoppedError(f"a worker process {first_end(processes)}; {advice}") from error


def first_end(processes: Sequence[BaseProcess]) -> str:
    """How that process ended which broke a pool; the pool asks all others to end, by SIGTERM."""
    deadline = time.monotonic() + 1.0
    codes: list[int] = []
    while not codes and time.monotonic() < deadline:
        codes = [process.exitcode for process in processes if process.exitcode is not None]
        time.sleep(0.01)
    first = [code for code in codes if code != -signal.SIGTERM] or codes
    return exit_cause(first[0] if first else None)


def _missing_extra(error: Exception) -> str | None:
    """The extra whose absence an import has raised, `None` for any other error."""
    return EXTRA_OF_MODULE.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
