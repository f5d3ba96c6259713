"""Return freed memory of this process to the operating system."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

# Bytes of memory from which on freed pages are returned.
LARGE = 2 << 30


def resident_bytes() -> int | None:
    """Return the resident memory of this process, or `None` where the system has no `/proc`."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def release_memory(above: int = LARGE) -> None:
    """Give freed pages back to the system if this process holds more than `above` bytes.

    Rows of varying lengths fragment the heap of the C library, which keeps the holes. A small process would lose more
    time by requesting pages again. The function does nothing on systems without glibc.
    """
    resident = resident_bytes()
    if resident is None or resident <= above:
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
