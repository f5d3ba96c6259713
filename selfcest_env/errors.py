"""The errors of this project, and functions that write messages.

Each error is a `SelfcestError` and also the builtin that it specialises, so callers can catch either. A message names
the value that was found, the expected one, and a remedy.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable
from numbers import Integral


class SelfcestError(Exception):
    """Base of all errors of this project."""


class ConfigError(SelfcestError, ValueError):
    """A configuration value that is impossible."""


class BudgetError(SelfcestError, ValueError):
    """A ledger operation that would break a budget."""


class GameError(SelfcestError, ValueError):
    """A step that the game cannot take, for example of an unknown agent or of one that cannot act."""


class RecordError(SelfcestError, ValueError):
    """A record that is incomplete, inconsistent or of an unknown format."""


class RewardError(SelfcestError, ValueError):
    """A reward term or grader that raised, or whose result is no finite number."""


class CreditError(SelfcestError, ValueError):
    """Credit that leaves a turn out, names an unknown one, or is not finite."""


class PolicyError(SelfcestError, RuntimeError):
    """A policy or engine that returned an impossible result."""


class InfrastructureError(SelfcestError, RuntimeError):
    """A fault of a server, a network or a machine. It is no answer and gives no reward; a retry may succeed."""


class TrainingError(SelfcestError, RuntimeError):
    """Training that cannot continue: a gradient is not finite, or a sampler and a learner disagree."""


class StoppedError(SelfcestError, RuntimeError):
    """Work that was stopped from outside, by a full disk or a signal. The same command with `--resume` continues it.

    The command line ends with exit code 3, or 128 + the signal's number, and with 2 for every other `SelfcestError`.

    Attributes:
        signal_number: number of the signal that this process received; `None` for any other cause.
    """

    signal_number: int | None = None


class PlugInError(SelfcestError, ImportError):
    """A `package.module:Class` reference that does not lead to a usable class."""


class TaskError(SelfcestError, ValueError):
    """A task source that cannot draw a task with its options."""


class DataError(TaskError):
    """A data file that is missing, broken, or in a format that its source does not read."""


class WorkerError(SelfcestError, RuntimeError):
    """A worker process that cannot start or work."""


def signal_name(number: int) -> str:
    """Return a signal as text, for example "signal 15 (SIGTERM)"."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


def exit_cause(code: int | None) -> str:
    """Describe the end of a process from its exit code, which is minus the number of the signal that killed it."""
    if code is None:
        return "ended, and its exit code is unknown"
    if code >= 0:
        return f"ended with exit code {code}"
    often = ", often the out-of-memory killer" if code == -signal.SIGKILL else ""
    return f"was killed by {signal_name(-code)}{often}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" when a known name is close to `name`, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def refuse_name(problem: str, name: str, known: Iterable[str], expected: str) -> str:
    """Return an error about an unknown name: the problem, the nearest known name if one is close, what was expected."""
    hint = did_you_mean(name, known)
    return f"{problem}.{hint} Expected {expected}" if hint else f"{problem}; expected {expected}"


def install_hint(extra: str) -> str:
    """Return the commands that install an extra of this project from a checkout and from anywhere.

    The project is on no package index, so `pip install 'selfcest[...]'` finds nothing.
    """
    return (
        f"pip install -e '.[{extra}]' in a checkout of selfcest, or pip install 'selfcest[{extra}] @ git+URL' anywhere "
        "(URL is that of its repository)"
    )


def is_integer_within(value: object, low: int, high: int) -> bool:
    """Return whether a value is a whole number from `low` to `high`. A bool is none."""
    return not isinstance(value, bool) and isinstance(value, Integral) and low <= int(value) <= high


def check_integer(name: str, value: object, low: int, high: int, why: str = "") -> None:
    """Raise `ConfigError` unless a value is a whole number from `low` to `high`; `why` explains `low`."""
    if not is_integer_within(value, low, high):
        reason = f" ({low} is {why})" if why else ""
        raise ConfigError(f"{name} is {value!r}; expected a whole number from {low} to {high}{reason}")
