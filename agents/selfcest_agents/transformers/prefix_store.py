"""Keys and values of contexts already computed, found again by the ids they begin with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import torch

BLOCK = 16  # prefixes are found at multiples of so many ids


@dataclass(frozen=True, eq=False, slots=True)
class _Entry:
    ids: tuple[int, ...]
    saved: torch.Tensor


class PrefixStore:
    """The most recently used contexts, as long as their ids together stay within a bound.

    Args:
        max_tokens: ids held at most; 0 switches the store off.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
        self._owners: dict[int, dict[_Entry, None]] = {}  # entries that hold a block, by its name, oldest first
        self._num_tokens = 0

    @property
    def enabled(self) -> bool:
        return self._max_tokens > 0

    def clear(self) -> None:
        """Forget everything, as after a change of the weights."""
        self._entries.clear()
        self._owners.clear()
        self._num_tokens = 0

    def wants(self, ids: tuple[int, ...]) -> bool:
        """Whether these ids are of a length that can be found and kept, and not there yet."""
        return BLOCK <= len(ids) <= self._max_tokens and ids not in self._entries

    def put(self, ids: tuple[int, ...], saved: torch.Tensor) -> None:
        """Keep what `SlotCache.save` gave for `ids`, if wanted; the least recently used entries make room."""
        if not self.wants(ids):
            return
        entry = self._entries[ids] = _Entry(ids, saved)
        self._num_tokens += len(ids)
        for _, key in _chain(ids):
            self._owners.setdefault(key, {})[entry] = None
        while self._num_tokens > self._max_tokens:
            self._drop(next(iter(self._entries.values())))

    def find(self, ids: tuple[int, ...]) -> tuple[int, torch.Tensor | None]:
        """Length of the longest stored prefix of `ids`, in whole blocks, and what was saved for it or for more."""
        length, found = 0, None
        for end, key in _chain(ids):
            if key not in self._owners:
                break
            length, found = end, next(reversed(self._owners[key]))
        if found is None or found.ids[:length] != ids[:length]:  # equal names of different blocks: improbable
            return 0, None
        self._entries.move_to_end(found.ids)
        return length, found.saved

    def first_missing(self, ids: tuple[int, ...]) -> int | None:
        """Name of the first block of `ids` that is not stored, equal for contexts equal up to its end."""
        return next((key for _, key in _chain(ids) if key not in self._owners), None)

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.ids]
        self._num_tokens -= len(entry.ids)
        for _, key in _chain(entry.ids):
            del self._owners[key][entry]
            if not self._owners[key]:
                del self._owners[key]


def _chain(ids: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(end, name) of every whole block; a name stands for the block and all before it."""
    key = 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        key = hash((key, ids[end - BLOCK : end]))
        yield end, key
