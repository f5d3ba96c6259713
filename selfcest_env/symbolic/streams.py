"""Counter-based random numbers: every draw is a hash of its purpose, so it depends neither on the batch nor on order.

The hash is the finaliser of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

# Arrays without axes: NumPy uses them as they are, but it converts numbers and its own scalars at every operation.
_GOLDEN = np.array(0x9E3779B97F4A7C15, np.uint64)
_FIRST_MULTIPLIER = np.array(0xBF58476D1CE4E5B9, np.uint64)
_SECOND_MULTIPLIER = np.array(0x94D049BB133111EB, np.uint64)
_ONE = np.array(1, np.uint64)
_SHIFTS = [np.array(bits, np.uint64) for bits in (30, 27, 31)]
_HALF_BITS = np.array(32, np.uint64)
_LOW_HALF = np.array(0xFFFFFFFF, np.uint64)


def fold_in(keys: Keys, *data: NDArray[np.integer] | int) -> Keys:
    """Derive new keys from keys and whole numbers, as `jax.random.fold_in` does.

    Args:
        keys: the parent keys.
        data: numbers that name the purpose of the new keys; each broadcasts against the keys.

    Returns:
        One key for each entry of the broadcast shape, which has at least one axis.
    """
    for number in data:
        # At least one axis: NumPy wraps around silently in arrays, but it warns about an overflow of scalars.
        steps = np.atleast_1d(number).astype(np.uint64)
        steps += _ONE
        steps *= _GOLDEN
        keys = keys + steps
        _mix(keys)
    return keys


def make_keys(seed: int, count: int) -> Keys:
    """Make one key per environment of a batch; the first `k` keys do not depend on `count`."""
    root = np.full(count, seed % (1 << 64), np.uint64)
    return fold_in(root, np.arange(count))


def draw_integers(keys: Keys, count: int, high: int) -> NDArray[np.int64]:
    """Draw `count` numbers in [0, high) per key, shape (count, len(keys)); `high` is at most 2**31."""
    words = fold_in(keys, np.arange((count + 1) // 2)[:, None])
    halves = np.concatenate([words >> _HALF_BITS, words & _LOW_HALF])[:count]
    # The high half of a product needs no division; its bias is below high / 2**32.
    halves *= np.uint64(high)
    halves >>= _HALF_BITS
    return halves.view(np.int64)


def draw_uniforms(keys: Keys) -> NDArray[np.float64]:
    """Draw one number in [0, 1) per key."""
    # A float64 has 53 bits of precision, so the low 11 of the 64 bits are dropped.
    return (fold_in(keys, 0) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(keys: Keys) -> None:
    """Hash keys in place."""
    first_shift, second_shift, last_shift = _SHIFTS
    shifted = keys >> first_shift
    keys ^= shifted
    keys *= _FIRST_MULTIPLIER
    np.right_shift(keys, second_shift, out=shifted)
    keys ^= shifted
    keys *= _SECOND_MULTIPLIER
    np.right_shift(keys, last_shift, out=shifted)
    keys ^= shifted
