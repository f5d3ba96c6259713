"""Memory that a process no longer uses goes back to the system."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

LARGE = 2 << 30  # bytes


def resident_bytes() -> int | None:
    """What this process holds in memory, `None` where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def release_memory(above: int = LARGE) -> None:
    """Give freed pages back to the system, if this process holds more than `above` bytes.

    Rows of ever other lengths leave the C library's heap full of holes, which it keeps. A smaller process would lose
    more time getting pages again than they are worth. Nothing happens on systems without glibc.
    """
    held = resident_bytes()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if held is not None else None
    if held is not None and held > above and trim is not None:
        trim(0)
