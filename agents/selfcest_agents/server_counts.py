"""What servers do that no text of theirs shows: retries, answers of another model, a usage that cannot be true.

Such counts are no part of an episode's record, which is the same however often a server had to be asked. Clients add
theirs to every tally that is open in their process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from selfcest_env.stored import stored_as

SHOWN = 60  # characters of a server's own words in a line


@dataclass(frozen=True)
class ServerModel:
    """A server and the model that it is asked for."""

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
        answers: requests that were answered.
        retries: tries beyond the first of all requests; a server may have charged for them.
        failures: requests that were given up.
        other_model: answers that name another model than the one that was asked for.
        false_usage: answers whose `usage` cannot be true; their whole grant is charged.
        first_model: name of the first such model, as excerpt.
        first_usage: what cannot be true of the first such usage.
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


Counts = Mapping[ServerModel, ServerCounts]
NO_COUNTS: Counts = {}


class ServerTally:
    """Adds up counts by server; rollouts that run ahead add theirs from another thread."""

    def __init__(self) -> None:
        self._counts: dict[ServerModel, ServerCounts] = {}
        self._lock = threading.Lock()

    def add(self, server: ServerModel, counts: ServerCounts) -> None:
        with self._lock:
            self._counts[server] = self._counts.get(server, ServerCounts()) + counts

    def take(self) -> Counts:
        """What was added since the last call; empty if no server was asked."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts


_open_tallies: list[ServerTally] = []


@contextmanager
def tallied() -> Iterator[ServerTally]:
    """A tally of what this process asks of servers as long as the block lasts."""
    tally = ServerTally()
    _open_tallies.append(tally)
    try:
        yield tally
    finally:
        _open_tallies.remove(tally)


def count(counts: Counts) -> None:
    """Add counts to every tally that is open."""
    for server, of_server in counts.items():
        for tally in list(_open_tallies):
            tally.add(server, of_server)


def server_metrics(counts: Counts) -> dict[str, float]:
    """Numbers for a row of metrics, over all servers; none where no server was asked."""
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


def server_lines(counts: Counts) -> Sequence[str]:
    """One line for each server that had to be asked again, or whose answers are not what they seem."""
    lines = []
    for server, of_server in counts.items():
        parts = []
        if of_server.retries or of_server.failures:
            given_up = f", {of_server.failures} requests given up" if of_server.failures else ""
            parts.append(f"{of_server.retries} retries{given_up}")
        if of_server.other_model:
            parts.append(
                f"{of_server.other_model} answers name another model, the first {_shown(of_server.first_model)}"
            )
        if of_server.false_usage:
            parts.append(
                f"{of_server.false_usage} answers report a usage that cannot be true, the first because "
                f"{_shown(of_server.first_usage)}; their whole grant is charged"
            )
        if parts:
            lines.append(
                f"server {server.base_url}, model {server.model}: {'; '.join(parts)} ({of_server.answers} answers)"
            )
    return lines


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
