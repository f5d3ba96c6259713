"""Statistics: a paired bootstrap for values per instance; Student's t and a sign test for one value per seed."""

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
ROUNDING = 1e-9  # differences below it are rounding errors


@dataclass(frozen=True)
class Estimate:
    """A mean and the two ends of its interval. They are `nan` where there is no value, or no interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return self._format(".2f")

    @property
    def signed(self) -> str:
        return self._format("+.2f")

    def _format(self, spec: str) -> str:
        if math.isnan(self.mean):
            return "–"
        return f"{self.mean:{spec}}" + ("" if math.isnan(self.low) else f" [{self.low:{spec}}, {self.high:{spec}}]")


MISSING = Estimate(math.nan, math.nan, math.nan)


class Resampler:
    """A paired bootstrap over instances, and over seeds where these are crossed with instances.

    All means of one resampler use the same resamples, so differences and ratios of two means are paired.

    - Seeds of one policy's sampling are nested in instances. An instance is resampled with all its seeds, and an
      interval is given by the percentiles of the resampled statistic.
    - Seeds of training, with weights of their own, are crossed with instances. Both are resampled independently (Owen,
      The pigeonhole bootstrap, 2007). A few seeds have no useful percentiles, and their resamples are too narrow by
      (seeds - 1) / seeds. So an interval is Student's t with seeds - 1 degrees of freedom around the statistic, with
      the corrected standard deviation of its resamples. If only seeds differ, it is the t interval of the means of the
      seeds; if only instances differ, it is too wide. One seed tells nothing of others, so its intervals are those over
      instances.

    A value may be `nan`, where an instance has none. Means are over the other instances.

    Args:
        instances: number of instances.
        seeds: number of seeds.
        crossed: whether seeds are crossed with instances.
        resamples: number of resamples.
        confidence: confidence of the intervals.

    Raises:
        ConfigError: there is no instance or no seed.
    """

    def __init__(self, instances: int, seeds: int, *, crossed: bool, resamples: int, confidence: float) -> None:
        if instances < 1 or seeds < 1:
            raise ConfigError(f"nothing to resample: {instances} instances and {seeds} seeds")
        rng = np.random.default_rng(stream_seed("bootstrap", instances, seeds))
        # Each row holds the weights of one resample.
        self._instance_weights = (
            rng.multinomial(instances, np.full(instances, 1 / instances), size=resamples) / instances
        )
        self._seed_weights = np.full((resamples, seeds), 1 / seeds)
        self._tail = (1 - confidence) / 2
        # Half width of an interval in standard deviations of the resamples; `None`: by percentiles.
        self._half_width: float | None = None
        if crossed and seeds > 1:
            self._seed_weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
            self._half_width = student_t(1 - self._tail, seeds - 1) * math.sqrt(seeds / (seeds - 1))

    def resampled_means(self, values: Values) -> Values:
        """Return the mean of each resample, [resamples], of values [instances, seeds].

        It is `nan` for a resample without any value.
        """
        has_value = ~np.isnan(values)
        means = self._weighted_sums(np.where(has_value, values, 0.0))
        if has_value.all():
            return means
        weights = self._weighted_sums(has_value.astype(float))
        return np.divide(means, weights, out=np.full_like(means, math.nan), where=weights > 0)

    def _weighted_sums(self, values: Values) -> Values:
        return np.asarray(np.einsum("rs,rs->r", self._instance_weights @ values, self._seed_weights))

    def estimate(self, values: Values) -> Estimate:
        """Return the mean of values, [instances, seeds], with its interval."""
        present = values[~np.isnan(values)]
        if not present.size:
            return MISSING
        return self.estimate_from(float(present.mean()), self.resampled_means(values))

    def share(self, values: Values) -> Estimate:
        """Return the share of ones among values 0 and 1, [instances, seeds], with its interval: see `rule_of_three`."""
        return rule_of_three(self.estimate(values), int((~np.isnan(values)).any(axis=1).sum()))

    def estimate_from(self, statistic: float, resampled: Values) -> Estimate:
        """Return a statistic with the interval of its resampled values, [resamples]."""
        resampled = resampled[~np.isnan(resampled)]
        if self._half_width is not None:
            half_width = self._half_width * float(resampled.std())
            return Estimate(statistic, statistic - half_width, statistic + half_width)
        # "nearest" takes values of resamples and does not interpolate between them.
        low, high = np.quantile(resampled, [self._tail, 1 - self._tail], method="nearest")
        return Estimate(statistic, float(low), float(high))

    def band(self, curve: Values, resampled: Values) -> tuple[Estimate, ...]:
        """Return a curve with a simultaneous band: at the confidence, it holds the whole true curve.

        The half width at each position is a multiple of the standard deviation there. The multiple is the quantile,
        over resamples, of the largest deviation at any position. For crossed seeds it is wider by the ratio of their
        t interval to a normal interval.

        Args:
            curve: values of the curve, [grid].
            resampled: values of the curve in each resample, [resamples, grid].
        """
        deviation = resampled.std(axis=0)
        # A position where all resamples agree has no interval, and must not be divided by 0.
        scale = np.where(deviation < ROUNDING, np.inf, deviation)
        largest = (np.abs(resampled - curve) / scale).max(axis=1)
        half_widths = np.quantile(largest, 1 - 2 * self._tail) * deviation
        if self._half_width is not None:
            half_widths *= self._half_width / NormalDist().inv_cdf(1 - self._tail)
        estimates = []
        for value, half_width in zip(curve, half_widths, strict=True):
            estimates.append(Estimate(float(value), float(value - half_width), float(value + half_width)))
        return tuple(estimates)


def rule_of_three(estimate: Estimate, instances: int) -> Estimate:
    """Return the estimate of a share, with an interval for a share of 0 or 1 too.

    If all instances are right or all are wrong, a bootstrap has nothing to vary. Then the interval is 3 / instances
    wide: a share above it would have shown in 95 of 100 samples (Hanley and Lippman-Hand, If nothing goes wrong, is
    everything all right?, 1983).

    Args:
        estimate: share with the interval of a bootstrap.
        instances: number of instances with a value.
    """
    width = min(1.0, 3 / max(instances, 1))
    if estimate.mean == 1:
        return Estimate(1.0, 1 - width, 1.0)
    return Estimate(0.0, 0.0, width) if estimate.mean == 0 else estimate


def with_equal_differences(estimate: Estimate, differences: Values) -> Estimate:
    """Return the estimate of a mean paired difference, with an interval also if all pairs differ by the same.

    Then a bootstrap has nothing to vary, however few the instances are. As in `rule_of_three`, a kind of pair with a
    share of 3 / instances or more would have shown in 95 of 100 samples. The ends are the means if that share of pairs
    differs by -1, or by 1.

    Args:
        estimate: mean difference of values from 0 to 1, with the interval of a bootstrap.
        differences: [instances, seeds] differences; nan where a pair is missing.
    """
    known = differences[~np.isnan(differences)]
    if not known.size or np.ptp(known) > 0:
        return estimate
    share = min(1.0, 3 / int((~np.isnan(differences)).any(axis=1).sum()))
    middle = estimate.mean
    return Estimate(middle, middle - share * (1 + middle), middle + share * (1 - middle))


def over_seeds(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean and the t interval of independent values, one per seed. One seed has no interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, math.nan, math.nan)
    quantile = student_t((1 + confidence) / 2, len(values) - 1)
    half_width = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - half_width, mean + half_width)


def sign_test(gaps: Sequence[float]) -> float:
    """Return the two-sided p value of the number of gaps above 0, if either sign is equally likely.

    Args:
        gaps: independent differences, for example one per seed. Gaps of 0 are left out; without others p is 1.
    """
    above = sum(gap > 0 for gap in gaps)
    below = sum(gap < 0 for gap in gaps)
    number = above + below
    tail = sum(math.comb(number, count) for count in range(max(above, below), number + 1))
    return min(1.0, 2 * tail / 2.0**number)


def student_t(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution, by bisection.

    Args:
        probability: at least 0.5.
        degrees: degrees of freedom, a whole number.
    """
    low = 0.0
    high = 1.0
    while _compute_student_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _compute_student_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _compute_student_cdf(t: float, degrees: int) -> float:
    """Return the distribution function, which is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cos = math.cos(angle)
    sin = math.sin(angle)
    is_odd = degrees % 2
    total = 0.0
    term = cos if is_odd else 1.0
    for k in range(is_odd + 1, degrees, 2):
        total += term
        term *= cos * cos * k / (k + 1)
    # The probability of values from -t to t.
    central = 2 / math.pi * (angle + sin * total) if is_odd else sin * total
    return (1 + central) / 2
