"""Every error this project raises on purpose.

Each is a `SelfcestError` and also the builtin it specialises, so callers may catch either.
A message says what was found, what was expected, and what to do.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable
from numbers import Integral


class SelfcestError(Exception):
    """Base of all errors of this project."""


class ConfigError(SelfcestError, ValueError):
    """A configuration value that cannot be right."""


class BudgetError(SelfcestError, ValueError):
    """A ledger operation that would break a budget."""


class GameError(SelfcestError, ValueError):
    """A step the game cannot take: an unknown agent, an agent whose turn it is not."""


class RecordError(SelfcestError, ValueError):
    """A stored record that does not say what a record must say."""


class RewardError(SelfcestError, ValueError):
    """A reward term or grader that raised, or returned something that is no finite number."""


class CreditError(SelfcestError, ValueError):
    """Credit that leaves a turn out, names an unknown one, or is not finite."""


class PolicyError(SelfcestError, RuntimeError):
    """A policy or engine that answered something impossible."""


class InfrastructureError(SelfcestError, RuntimeError):
    """A fault of a server, a network or a machine: nobody's answer, and never a reward. Another try may go better."""


class TrainingError(SelfcestError, RuntimeError):
    """Training that cannot go on: a gradient that is not finite, or a sampler and a learner that disagree."""


class StoppedError(SelfcestError, RuntimeError):
    """Work that something outside it has stopped, as a full disk or a signal. The same command with `--resume` goes on.

    The command line ends with exit code 3, or 128 + the signal's number, and with 2 for every other `SelfcestError`.

    Attributes:
        signal_number: of the signal that this process was sent; `None`: it was none.
    """

    signal_number: int | None = None


class PlugInError(SelfcestError, ImportError):
    """A `package.module:Class` reference that does not lead to a usable class."""


class TaskError(SelfcestError, ValueError):
    """A task source that cannot draw what it was asked for."""


class DataError(TaskError):
    """A data file that is missing, broken, or not in the format that its source reads."""


class WorkerError(SelfcestError, RuntimeError):
    """A worker process that cannot be started, or lacks what it needs."""


def signal_name(number: int) -> str:
    """A signal in words, as "signal 15 (SIGTERM)"."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:  # real-time signals have no name
        return f"signal {number}"


def exit_cause(code: int | None) -> str:
    """How a process ended, by its exit code as Python has it: below 0 is minus the number of a signal."""
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


def install_hint(extra: str) -> str:
    """Return the commands that install an extra of this project from a checkout and from anywhere.

    The project is on no package index, so `pip install 'selfcest[...]'` finds nothing.
    """
    return (
        f"pip install -e '.[{extra}]' in a checkout of selfcest, or pip install 'selfcest[{extra}] @ git+URL' anywhere "
        "(URL is that of its repository)"
    )


def is_integer_within(value: object, low: int, high: int) -> bool:
    """Whether `value` is a whole number from `low` to `high`; a bool is none."""
    return not isinstance(value, bool) and isinstance(value, Integral) and low <= int(value) <= high


def check_integer(name: str, value: object, low: int, high: int, why: str = "") -> None:
    """Raise `ConfigError` unless `value` is a whole number from `low` to `high`; `why` says what `low` is."""
    if not is_integer_within(value, low, high):
        reason = f" ({low} is {why})" if why else ""
        raise ConfigError(f"{name} is {value!r}; expected a whole number from {low} to {high}{reason}")
