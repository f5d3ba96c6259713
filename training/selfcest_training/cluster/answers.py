"""What another process answers, and the CPU time that it took."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """To one call.

    Attributes:
        found: what was asked for.
        cpu_seconds: of the process since its last answer, or since it could be asked. Those of one that dies are lost.
    """

    found: Any
    cpu_seconds: float


class CpuClock:
    """Of this process and all its threads; not of processes that it has started."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def answer(self, found: object) -> Answer:
        """What was found, and the seconds since the answer before."""
        last, self._last = self._last, time.process_time()
        return Answer(found, self._last - last)
