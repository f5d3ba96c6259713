"""Intervals: a paired bootstrap for what is measured on instances, Student's t for what is measured once a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.seeding import stream_seed

Values = NDArray[np.float64]
ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A mean and the two ends of its interval, which are `nan` where nothing can be said."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        return f"{self.mean:.2f}" + ("" if math.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]")

    @property
    def signed(self) -> str:
        if math.isnan(self.mean):
            return "–"
        return f"{self.mean:+.2f}" + ("" if math.isnan(self.low) else f" [{self.low:+.2f}, {self.high:+.2f}]")


MISSING = Estimate(math.nan, math.nan, math.nan)


class Resampler:
    """Resamples of instances, and of seeds where these are crossed with them.

    Whatever is averaged by one resampler uses the same resamples, so differences and ratios of two means are paired.

    - Seeds that are other samples of one policy are nested in instances: an instance is resampled with all its seeds,
      and an interval has the percentiles of the resampled statistic.
    - Seeds that are other weights are crossed with instances: both are resampled, independently of each other (Owen,
      The pigeonhole bootstrap, 2007). So few seeds have no percentiles to speak of, and their resamples are too narrow
      by (seeds - 1) / seeds; hence an interval of Student's t with seeds - 1 degrees of freedom around the statistic,
      by the standard deviation of its resamples, corrected. Where seeds make all the difference that is the t interval
      of the seeds' means; where instances do, it is too wide. One seed of crossed ones says nothing of others, and its
      intervals are those over instances.

    Values may be `nan`, for what an instance does not have; means are over those that have it.

    Args:
        instances, seeds: how many.
        crossed: see above.
        resamples: of the bootstrap.
        confidence: of its intervals.
    """

    def __init__(self, instances: int, seeds: int, *, crossed: bool, resamples: int, confidence: float) -> None:
        if instances < 1 or seeds < 1:
            raise ConfigError(f"nothing to resample: {instances} instances and {seeds} seeds")
        rng = np.random.default_rng(stream_seed("bootstrap", instances, seeds))
        self._instances = rng.multinomial(instances, np.full(instances, 1 / instances), size=resamples) / instances
        self._seeds = np.full((resamples, seeds), 1 / seeds)
        self._tail = (1 - confidence) / 2
        self._wider: float | None = None  # than 1 standard deviation of the resamples
        if crossed and seeds > 1:
            self._seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
            self._wider = student_t(1 - self._tail, seeds - 1) * math.sqrt(seeds / (seeds - 1))

    def means(self, values: Values) -> Values:
        """The mean of each resample, [resamples], of values [instances, seeds]; `nan` where it has none of them."""
        there = ~np.isnan(values)
        drawn: Values = self._weighted(np.where(there, values, 0.0))
        if there.all():
            return drawn
        share = self._weighted(there.astype(float))
        return np.divide(drawn, share, out=np.full_like(drawn, math.nan), where=share > 0)

    def _weighted(self, values: Values) -> Values:
        found: Values = np.einsum("rs,rs->r", self._instances @ values, self._seeds)
        return found

    def estimate(self, values: Values) -> Estimate:
        """The mean of values [instances, seeds] with its interval."""
        there = values[~np.isnan(values)]
        return self.around(float(there.mean()), self.means(values)) if there.size else MISSING

    def share(self, values: Values) -> Estimate:
        """The share of ones among values 0 and 1, [instances, seeds], with its interval: see `rule_of_three`."""
        return rule_of_three(self.estimate(values), int((~np.isnan(values)).any(axis=1).sum()))

    def around(self, value: float, drawn: Values) -> Estimate:
        """A statistic with the interval that its resampled values, [resamples], give."""
        drawn = drawn[~np.isnan(drawn)]
        if self._wider is not None:
            half = self._wider * float(drawn.std())
            return Estimate(value, value - half, value + half)
        # Resamples themselves, with nothing between them.
        low, high = np.quantile(drawn, [self._tail, 1 - self._tail], method="nearest")
        return Estimate(value, float(low), float(high))

    def band(self, values: Values, drawn: Values) -> tuple[Estimate, ...]:
        """A curve, [grid], with a band that the whole true curve lies in at the confidence.

        The half width at each place is one multiple of the standard deviation there: the quantile, over resamples, of
        the largest deviation anywhere; for crossed seeds wider by what their t interval is wider than a normal one.

        Args:
            values: the curve.
            drawn: the curve of each resample, [resamples, grid].
        """
        spread = drawn.std(axis=0)
        certain = spread < ROUNDING
        deviations = np.abs(drawn - values) / np.where(certain, np.inf, spread)
        width = np.quantile(deviations.max(axis=1), 1 - 2 * self._tail) * spread
        if self._wider is not None:
            width *= self._wider / NormalDist().inv_cdf(1 - self._tail)
        return tuple(Estimate(float(v), float(v - w), float(v + w)) for v, w in zip(values, width, strict=True))


def rule_of_three(estimate: Estimate, instances: int) -> Estimate:
    """The interval of a share. All right or all wrong leaves a bootstrap nothing to vary: then to 3 over the number of
    instances with a value, which bounds what 95 of 100 samples would hide (Hanley and Lippman-Hand, If nothing goes
    wrong, is everything all right?, 1983)."""
    least = min(1.0, 3 / max(instances, 1))
    if estimate.mean == 1:
        return Estimate(1.0, 1 - least, 1.0)
    return Estimate(0.0, 0.0, least) if estimate.mean == 0 else estimate


def over_seeds(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean and Student's t interval of independent values, one a seed; of one seed the mean alone."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, math.nan, math.nan)
    quantile = student_t((1 + confidence) / 2, len(values) - 1)
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def student_t(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution, by bisection; from 0.5 on.

    The distribution function for whole degrees of freedom is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, 1.0
    while _student_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, degrees: int) -> float:
    angle = math.atan(t / math.sqrt(degrees))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    total, term = 0.0, cos if odd else 1.0
    for k in range(odd + 1, degrees, 2):
        total += term
        term *= cos * cos * k / (k + 1)
    inside = 2 / math.pi * (angle + sin * total) if odd else sin * total
    return (1 + inside) / 2
