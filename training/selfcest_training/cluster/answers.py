"""What another process answers, and the CPU time that it took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from selfcest_agents.server_counts import NO_COUNTS, Counts


@dataclass(frozen=True)
class Answer:
    """To one call.

    Attributes:
        found: what was asked for.
        cpu_seconds: of the process since its last answer, or since it could be asked. Those of one that dies are lost.
        servers: what servers, as those of judges, did for it.
    """

    found: Any
    cpu_seconds: float
    servers: Counts = field(default_factory=lambda: NO_COUNTS)


class CpuClock:
    """Of this process and all its threads; not of processes that it has started."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def answer(self, found: object, servers: Counts = NO_COUNTS) -> Answer:
        """What was found, and the seconds since the answer before."""
        last, self._last = self._last, time.process_time()
        return Answer(found, self._last - last, servers)
