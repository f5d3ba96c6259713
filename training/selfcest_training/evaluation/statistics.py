"""Paired bootstrap: one set of resamples for everything that was measured on the same instances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.seeding import stream_seed

Values = NDArray[np.float64]
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A mean and the two ends of its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def signed(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


class Resampler:
    """Resamples of instances, and of seeds where these are crossed with them.

    Whatever is averaged by one resampler uses the same resamples, so differences and ratios of two means are paired.

    - Seeds that are other samples of one policy are nested in instances: an instance is resampled with all its seeds.
    - Seeds that are other weights are crossed with instances: both are resampled, independently of each other (Owen,
      The pigeonhole bootstrap, 2007). With few seeds such an interval is rough; with one it says nothing of others.

    Args:
        instances, seeds: how many.
        crossed: see above.
        resamples: of the bootstrap.
        confidence: of its percentile intervals.
    """

    def __init__(self, instances: int, seeds: int, *, crossed: bool, resamples: int, confidence: float) -> None:
        if instances < 1 or seeds < 1:
            raise ConfigError(f"nothing to resample: {instances} instances and {seeds} seeds")
        rng = np.random.default_rng(stream_seed("bootstrap", instances, seeds))
        self._instances = rng.multinomial(instances, np.full(instances, 1 / instances), size=resamples) / instances
        self._seeds = np.full((resamples, seeds), 1 / seeds)
        if crossed:
            self._seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
        self._tail = (1 - confidence) / 2

    def means(self, values: Values) -> Values:
        """The mean of each resample, [resamples], of values [instances, seeds]."""
        drawn: Values = np.einsum("rs,rs->r", self._instances @ values, self._seeds)
        return drawn

    def estimate(self, values: Values) -> Estimate:
        """The mean of values [instances, seeds] with its interval."""
        return self.around(float(values.mean()), self.means(values))

    def around(self, value: float, drawn: Values) -> Estimate:
        """A statistic with the interval that its resampled values, [resamples], give."""
        # Resamples themselves, with nothing between them: a ratio to a cost of 0 is infinite.
        low, high = np.quantile(drawn, [self._tail, 1 - self._tail], method="nearest")
        return Estimate(value, float(low), float(high))

    def band(self, values: Values, drawn: Values) -> tuple[Estimate, ...]:
        """A curve, [grid], with a band that the whole true curve lies in at the confidence.

        The half width at each place is one multiple of the standard deviation there: the quantile, over resamples, of
        the largest deviation anywhere.

        Args:
            values: the curve.
            drawn: the curve of each resample, [resamples, grid].
        """
        spread = drawn.std(axis=0)
        certain = spread < _ROUNDING
        deviations = np.abs(drawn - values) / np.where(certain, np.inf, spread)
        width = np.quantile(deviations.max(axis=1), 1 - 2 * self._tail) * spread
        return tuple(Estimate(float(v), float(v - w), float(v + w)) for v, w in zip(values, width, strict=True))
