"""How the cost of some work grows with its size: a ratio of CPU times, which holds on machines of any speed."""

import time


def growth(work, size):
    """CPU time of `work(4 * size)` over that of `work(size)`: 4 if it is linear, 16 if it is quadratic.

    The least of ten, unless one is near 4: a busy machine may slow down either.
    """
    found = []
    while len(found) < 10 and min(found, default=16) > 6:
        found.append(_cost(work, 4 * size) / _cost(work, size))
    return min(found)


def _cost(work, size):
    """Seconds of one call, the least of three measurements that are long enough for the clock."""
    best, repeats = float("inf"), 1
    for _ in range(3):
        while True:
            started = time.process_time()
            for _ in range(repeats):
                work(size)
            seconds = time.process_time() - started
            if seconds > 0.004:
                break
            repeats *= 4
        best = min(best, seconds / repeats)
    return best
