"""A key-value cache whose rows are slots. Sequences of any length can join, leave and move at any step."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

# The capacity grows by these many positions and rows, so that a growing batch seldom copies its cache.
POSITION_BUCKET = 64
ROW_BUCKET = 16


def _round_up(count: int, bucket: int) -> int:
    return -(-count // bucket) * bucket


class SlotCache(Cache):
    """Keys and values of every layer, each [rows, kv_heads, positions, head_dim], which grow on demand.

    `prepare` sets the positions that the next forward pass writes, and the number of positions that attention reads.
    The cost of attention therefore depends on the longest live context, not on the model's maximum. Memory is reused
    between batches, because new pages are slow. Positions beyond a row's length hold old, finite numbers, which the
    caller's mask must hide.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._rows = slice(0, 0)
        self._length = 0
        self._row_index = torch.zeros(0, 0, dtype=torch.long)
        self._positions = torch.zeros(0, 0, dtype=torch.long)

    def prepare(self, rows: slice, row_index: torch.Tensor, positions: torch.Tensor, length: int) -> None:
        """Prepare one forward pass.

        Args:
            rows: slots that attention reads.
            row_index: slot in which each new token is written, in a shape that broadcasts to that of `positions`.
            positions: [rows, new tokens] positions at which the new tokens are written, all below `length`.
            length: number of positions that attention reads, from position 0.
        """
        self._rows = rows
        self._row_index = row_index
        self._positions = positions
        self._length = length
        for layer in range(len(self._keys)):
            self._grow(layer, rows.stop, length)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write states [1 or rows, kv_heads, new tokens, head_dim]; return all [rows, kv_heads, length, head_dim]."""
        if layer_idx == len(self._keys):
            empty = key_states.new_zeros(0, key_states.shape[1], 0, key_states.shape[3])
            self._keys.append(empty)
            self._values.append(empty)
            self._grow(layer_idx, self._rows.stop, self._length)
        keys = self._keys[layer_idx]
        values = self._values[layer_idx]
        keys[self._row_index, :, self._positions] = key_states.transpose(1, 2)
        values[self._row_index, :, self._positions] = value_states.transpose(1, 2)
        return keys[self._rows, :, : self._length], values[self._rows, :, : self._length]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` over slot `target`."""
        for layer in range(len(self._keys)):
            self._grow(layer, target + 1, length)
        for tensor in (*self._keys, *self._values):
            tensor[target, :, :length] = tensor[source, :, :length]

    def save(self, slot: int, length: int) -> torch.Tensor:
        """Return a copy of the first `length` positions of a slot, [2 * layers, kv_heads, length, head_dim]."""
        return torch.stack([tensor[slot, :, :length] for tensor in (*self._keys, *self._values)])

    def load(self, slot: int, saved: torch.Tensor, length: int) -> None:
        """Fill the first `length` positions of a slot with the result of `save`."""
        for layer in range(len(self._keys)):
            self._grow(layer, slot + 1, length)
        for tensor, source in zip((*self._keys, *self._values), saved, strict=True):
            tensor[slot, :, :length] = source[:, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0. Rows differ in length, so callers pass positions and masks themselves."""
        return 0

    def _grow(self, layer: int, num_rows: int, length: int) -> None:
        old = self._keys[layer]
        rows = max(old.shape[0], _round_up(num_rows, ROW_BUCKET))
        positions = max(old.shape[2], _round_up(length, POSITION_BUCKET))
        if (rows, positions) == (old.shape[0], old.shape[2]):
            return
        for store in (self._keys, self._values):
            # Zeros instead of empty memory, which may hold NaN: a masked position has weight 0, but 0 * NaN is NaN.
            grown = old.new_zeros(rows, old.shape[1], positions, old.shape[3])
            grown[: old.shape[0], :, : old.shape[2]] = store[layer]
            store[layer] = grown
