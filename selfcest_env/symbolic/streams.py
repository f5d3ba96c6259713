"""Counter-based random numbers: every draw is a hash of what it is for, so no draw depends on the batch or its order.

The hash is the finaliser of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF, _LOW_HALF = np.uint64(32), np.uint64(0xFFFFFFFF)


def fold_in(keys: Keys, *names: NDArray[np.integer] | int) -> Keys:
    """New keys, one per entry, from keys and whole numbers that name what they are for."""
    for name in names:
        # At least one axis: NumPy wraps around in arrays without a word, and warns of it in scalars.
        keys = _mix(keys + _GOLDEN * (np.atleast_1d(name).astype(np.uint64) + np.uint64(1)))
    return keys


def make_keys(seed: int, count: int) -> Keys:
    """One key per environment of a batch; the first `k` do not depend on `count`."""
    root = np.full(count, seed % (1 << 64), np.uint64)
    return fold_in(root, np.arange(count))


def draw_integers(keys: Keys, count: int, high: int) -> NDArray[np.int64]:
    """`count` numbers in [0, high) per key, shape (count, len(keys)). `high` is at most 2**31."""
    words = fold_in(keys, np.arange((count + 1) // 2)[:, None])
    halves = np.concatenate([words >> _HALF, words & _LOW_HALF])[:count]
    # The high half of a product: no division, and a bias below high / 2**32.
    return ((halves * np.uint64(high)) >> _HALF).astype(np.int64)


def draw_uniforms(keys: Keys) -> NDArray[np.float64]:
    """One number in [0, 1) per key."""
    return (fold_in(keys, 0) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(keys: Keys) -> Keys:
    keys = (keys ^ (keys >> np.uint64(30))) * _FIRST
    keys = (keys ^ (keys >> np.uint64(27))) * _SECOND
    return keys ^ (keys >> np.uint64(31))
