"""Counts of retries, of answers by another model, and of answers with an impossible usage, for each server.

The counts are not in an episode's record, because retries do not change an episode. Every client adds its counts to all
tallies that are open in its process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from selfcest_env.stored import stored_as

MAX_SHOWN_CHARS = 60  # of a server's text in a line


@dataclass(frozen=True)
class ServerModel:
    """A server and the model that is requested from it."""

    base_url: str
    model: str


@stored_as(
    answers="answers",
    retries="retries",
    failures="failures",
    other_model="other_model",
    false_usage="false_usage",
    first_model="first_model",
    first_usage="first_usage",
)
@dataclass(frozen=True)
class ServerCounts:
    """Counts over requests to one server.

    Attributes:
        answers: requests with a valid answer.
        retries: attempts after the first one, over all requests. A server may have charged for them.
        failures: requests that failed in all attempts.
        other_model: answers that name another model than the requested one.
        false_usage: answers whose `usage` cannot be true. Their whole grant is charged.
        first_model: excerpt of the model's name in the first of the `other_model` answers.
        first_usage: fault of the usage in the first of the `false_usage` answers.
    """

    answers: int = 0
    retries: int = 0
    failures: int = 0
    other_model: int = 0
    false_usage: int = 0
    first_model: str = ""
    first_usage: str = ""

    def __add__(self, later: ServerCounts) -> ServerCounts:
        return ServerCounts(
            self.answers + later.answers,
            self.retries + later.retries,
            self.failures + later.failures,
            self.other_model + later.other_model,
            self.false_usage + later.false_usage,
            self.first_model or later.first_model,
            self.first_usage or later.first_usage,
        )


CountsByServer = Mapping[ServerModel, ServerCounts]
NO_COUNTS: CountsByServer = {}


class ServerTally:
    """A sum of counts for each server. The lock is needed for asynchronous rollouts, which add from another thread."""

    def __init__(self) -> None:
        self._counts: dict[ServerModel, ServerCounts] = {}
        self._lock = threading.Lock()

    def add(self, server: ServerModel, counts: ServerCounts) -> None:
        with self._lock:
            self._counts[server] = self._counts.get(server, ServerCounts()) + counts

    def take(self) -> CountsByServer:
        """Return the counts that were added since the last call, and start again from zero."""
        with self._lock:
            counts = self._counts
            self._counts = {}
        return counts


_open_tallies: list[ServerTally] = []


@contextmanager
def tally_requests() -> Iterator[ServerTally]:
    """Count the requests of this process to servers within the block."""
    tally = ServerTally()
    _open_tallies.append(tally)
    try:
        yield tally
    finally:
        _open_tallies.remove(tally)


def add_to_tallies(counts: CountsByServer) -> None:
    """Add counts to every open tally."""
    for server, server_counts in counts.items():
        for tally in list(_open_tallies):
            tally.add(server, server_counts)


def compute_server_metrics(counts: CountsByServer) -> dict[str, float]:
    """Return the sums over all servers by metric name; empty if there was no request to a server."""
    if not counts:
        return {}
    total = sum(counts.values(), ServerCounts())
    return {
        "server/answers": total.answers,
        "server/retries": total.retries,
        "server/failed_requests": total.failures,
        "server/other_model": total.other_model,
        "server/false_usage": total.false_usage,
    }


def format_server_counts(counts: CountsByServer) -> Sequence[str]:
    """Return one line for each server with retries, failures, answers of another model or an impossible usage."""
    lines = []
    for server, server_counts in counts.items():
        parts = []
        if server_counts.retries or server_counts.failures:
            failures = f", {server_counts.failures} failed requests" if server_counts.failures else ""
            parts.append(f"{server_counts.retries} retries{failures}")
        if server_counts.other_model:
            first_model = _shorten(server_counts.first_model)
            parts.append(f"{server_counts.other_model} answers name another model, the first {first_model}")
        if server_counts.false_usage:
            parts.append(
                f"{server_counts.false_usage} answers report a usage that cannot be true, the first because "
                f"{_shorten(server_counts.first_usage)}; their whole grant is charged"
            )
        if parts:
            lines.append(
                f"server {server.base_url}, model {server.model}: {'; '.join(parts)} ({server_counts.answers} answers)"
            )
    return lines


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
