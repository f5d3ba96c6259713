"""The result of a call in another process, with the CPU time that the process used."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from selfcest_agents.server_counts import NO_COUNTS, CountsByServer


@dataclass(frozen=True)
class TimedResult:
    """The result of one call.

    Attributes:
        value: the result.
        cpu_seconds: CPU time of the process since its last result, or since its start. The time of a process that dies
            before it answers is lost.
        servers: counts of requests to servers, such as those of judges, during the call.
    """

    value: Any
    cpu_seconds: float
    servers: CountsByServer = field(default_factory=lambda: NO_COUNTS)


class CpuClock:
    """Measures the CPU time of this process and its threads, without the processes that it has started."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def measure(self, value: object, servers: CountsByServer = NO_COUNTS) -> TimedResult:
        """Return the value with the CPU time since the previous call."""
        previous = self._last
        self._last = time.process_time()
        return TimedResult(value, self._last - previous, servers)
