"""Freed memory goes back to the system, and small processes keep theirs."""

from __future__ import annotations

import ctypes

import pytest
import torch

from selfcest_training.learner.memory import release_memory, resident_bytes

BLOCK = 64 * 1024  # bytes: below what the C library maps apart from its heap
MEBIBYTE = 1 << 20

pytestmark = pytest.mark.skipif(
    resident_bytes() is None or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs Linux with glibc"
)


def holes() -> list[torch.Tensor]:
    """A heap of 128 MiB of which every 16th block is still in use."""
    return [torch.ones(BLOCK, dtype=torch.uint8) for _ in range(128 * MEBIBYTE // BLOCK)][::16]


def held() -> int:
    found = resident_bytes()
    assert found is not None
    return found


def test_holes_of_the_heap_go_back_to_the_system_and_what_is_used_stays() -> None:
    kept, before = holes(), held()
    release_memory(above=0)
    assert before - held() > 64 * MEBIBYTE
    assert all(bool(block.all()) for block in kept)


def test_a_process_below_the_threshold_keeps_its_pages() -> None:
    kept, before = holes(), held()
    release_memory(above=before + 64 * MEBIBYTE)
    assert abs(before - held()) < 16 * MEBIBYTE
    del kept
