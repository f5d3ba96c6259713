"""A cache of keys and values of computed contexts, which are found by their first ids."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import torch

BLOCK = 16  # number of ids of a block; a prefix consists of complete blocks


@dataclass(frozen=True, eq=False, slots=True)
class _Entry:
    ids: tuple[int, ...]
    saved: torch.Tensor


class PrefixStore:
    """The most recently used contexts, with a bound on the sum of their ids.

    Args:
        max_tokens: maximum number of stored ids; 0 switches the store off.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
        # The entries that hold a block, oldest first, by the hash of the block and all blocks before it.
        self._entries_by_hash: dict[int, dict[_Entry, None]] = {}
        self._num_tokens = 0

    @property
    def enabled(self) -> bool:
        return self._max_tokens > 0

    def clear(self) -> None:
        """Drop all entries, as after a change of the weights."""
        self._entries.clear()
        self._entries_by_hash.clear()
        self._num_tokens = 0

    def wants(self, ids: tuple[int, ...]) -> bool:
        """Whether these ids are not stored yet, are at least one block long, and fit into the store."""
        return BLOCK <= len(ids) <= self._max_tokens and ids not in self._entries

    def put(self, ids: tuple[int, ...], saved: torch.Tensor) -> None:
        """Store the keys and values of `ids` from `SlotCache.save`, and drop the least recently used entries."""
        if not self.wants(ids):
            return
        entry = _Entry(ids, saved)
        self._entries[ids] = entry
        self._num_tokens += len(ids)
        for _, prefix_hash in _hash_prefixes(ids):
            self._entries_by_hash.setdefault(prefix_hash, {})[entry] = None
        while self._num_tokens > self._max_tokens:
            self._drop(next(iter(self._entries.values())))

    def find(self, ids: tuple[int, ...]) -> tuple[int, torch.Tensor | None]:
        """Return the length of the longest stored prefix of `ids`, and the keys and values of a context that has it.

        The length is a multiple of `BLOCK`. Without a stored prefix the result is `(0, None)`.
        """
        length = 0
        entry: _Entry | None = None
        for end, prefix_hash in _hash_prefixes(ids):
            if prefix_hash not in self._entries_by_hash:
                break
            length = end
            entry = next(reversed(self._entries_by_hash[prefix_hash]))
        if entry is None or entry.ids[:length] != ids[:length]:  # different ids with the same hash are improbable
            return 0, None
        self._entries.move_to_end(entry.ids)
        return length, entry.saved

    def find_first_missing(self, ids: tuple[int, ...]) -> int | None:
        """Return the hash of the shortest prefix of `ids` that is not stored; `None` if all complete blocks are stored.

        Contexts with the same ids up to the end of this prefix have the same hash.
        """
        for _, prefix_hash in _hash_prefixes(ids):
            if prefix_hash not in self._entries_by_hash:
                return prefix_hash
        return None

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.ids]
        self._num_tokens -= len(entry.ids)
        for _, prefix_hash in _hash_prefixes(entry.ids):
            del self._entries_by_hash[prefix_hash][entry]
            if not self._entries_by_hash[prefix_hash]:
                del self._entries_by_hash[prefix_hash]


def _hash_prefixes(ids: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the length and the hash of every prefix of complete blocks, shortest first."""
    prefix_hash = 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        prefix_hash = hash((prefix_hash, ids[end - BLOCK : end]))
        yield end, prefix_hash
