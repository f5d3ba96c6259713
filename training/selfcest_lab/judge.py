"""One verdict per run: do the schemes that promise an unbiased gradient have one?

Where the expectation is exact there is nothing to test: it is the gradient or it is not. All sampled cells together
make one test at level `ALPHA`: Hotelling's T² on a few fixed contrasts per cell, and Bonferroni over the cells, so the
number of games, schemes and parameters cannot raise the rate of false alarms; an alarm must be confirmed on groups of
its own. A scheme fails only if its bias is also
large enough to matter, so more samples do not turn rounding into a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfcest_env.seeding import stream_seed
from selfcest_lab.exact import Solved
from selfcest_lab.tabular import Floats
from selfcest_training.credit import Promise

ALPHA = 1e-4
MIN_SAMPLED_EFFECT = 0.02  # relative bias of a sampled cell, its own noise taken off
MIN_EXACT_EFFECT = 1e-6  # of an exact one; rounding is about 1e-15
_MAX_RANDOM = 4  # contrasts besides the two along the gradient, an even number
_JITTER = 1e-9  # of the gradient's length: a spread below it is rounding


@dataclass(frozen=True)
class Evidence:
    """What speaks against one promise in one game.

    Attributes:
        effect: length of what the promise forbids, over that of the exact gradient; never negative.
        p_value: of the observed contrasts if the promise holds; `None` where the effect is exact.
    """

    effect: float
    p_value: float | None = None


def forbidden(promise: Promise, gradients: Floats, gradient: Floats) -> Floats:
    """[..., D] the part of estimates whose expectation a promise says is zero.

    Unbiased: the difference to the gradient. Up to scale: what is not along it.
    """
    if promise is Promise.UNBIASED:
        return np.asarray(gradients - gradient)
    scale = gradients @ gradient / (gradient @ gradient)
    return np.asarray(gradients - scale[..., None] * gradient)


def exact_evidence(promise: Promise, mean: Floats, gradient: Floats) -> Evidence:
    """Evidence from an exact expectation; a scale that is not positive breaks the promise wholly."""
    effect = float(np.linalg.norm(forbidden(promise, mean, gradient)) / np.linalg.norm(gradient))
    return Evidence(1.0 if promise is Promise.UNBIASED_UP_TO_SCALE and mean @ gradient <= 0 else effect)


def sampled_evidence(promise: Promise, gradients: Floats, solved: Solved, reference: Floats | None = None) -> Evidence:
    """Evidence from [G, D] independent estimates.

    Args:
        reference: [G, D] estimates of `rloo`, whose expectation is the gradient, for the same groups: a control
            variate. Without it, what a sample happens not to visit would look like a bias without variance.
    """
    gradient, count = solved.gradient, len(gradients)
    if reference is not None:
        mean = gradients.mean(axis=0)
        scale = 1.0 if promise is Promise.UNBIASED else float(mean @ gradient) / float(gradient @ gradient)
        gradients = gradients - scale * (reference - gradient)
    errors = forbidden(promise, gradients, gradient)
    length = float(np.linalg.norm(gradient))
    mean = errors.mean(axis=0)
    noise = float(errors.var(axis=0, ddof=1).sum()) / count
    effect = math.sqrt(max(0.0, float(mean @ mean) - noise)) / length
    p_value = hotelling(errors @ contrasts(solved), floor=(_JITTER * length) ** 2)
    if promise is Promise.UNBIASED:
        return Evidence(effect, p_value)
    # Two questions, hence twice the p-value: is all of it along the gradient, and is it not against it?
    along = gradients @ gradient / length
    error = max(float(along.std(ddof=1)), _JITTER * length) / math.sqrt(count)
    p_against = 0.5 * math.erfc(-float(along.mean()) / error / math.sqrt(2))
    return Evidence(effect, min(1.0, 2 * p_value)) if p_value <= p_against else Evidence(1.0, min(1.0, 2 * p_against))


def is_alarm(evidence: Evidence) -> bool:
    """Whether a sampled cell would break its promise if it were the only one."""
    return evidence.p_value is not None and _is_large(evidence.effect, evidence.p_value)


def weaker(one: Evidence, other: Evidence) -> Evidence:
    """What two independent samples say together, at the level of either."""
    assert one.p_value is not None
    assert other.p_value is not None
    return Evidence(min(one.effect, other.effect), max(one.p_value, other.p_value))


def contrasts(solved: Solved) -> Floats:
    """[D, d] directions to look in: the gradient's root part and clone part, and random signs, fixed by the game."""
    is_clone = solved.parameters.is_clone
    rng = np.random.default_rng(stream_seed("contrasts", solved.game.name))
    # Estimates add up to zero within a row, so there are no more directions than free parameters.
    free = len(is_clone) - int((solved.parameters.place >= 0).any(dim=1).sum())
    signs = rng.choice([-1.0, 1.0], size=(min(_MAX_RANDOM, (free - 2) // 2 * 2), len(is_clone)))
    along = [np.where(is_clone == part, solved.gradient, 0.0) for part in (False, True)]
    return np.asarray(np.array([*along, *signs]).T)


def hotelling(samples: Floats, floor: float = 0.0) -> float:
    """P-value of Hotelling's one-sample T² for mean zero.

    Args:
        samples: [n, d] independent rows, d even, n > d.
        floor: variance that every direction is given at least.
    """
    count, size = samples.shape
    covariance = np.cov(samples, rowvar=False) + floor * np.eye(size)
    mean = samples.mean(axis=0)
    t_squared = count * float(mean @ np.linalg.pinv(covariance, hermitian=True) @ mean)
    return f_survival(t_squared * (count - size) / (size * (count - 1)), size, count - size)


def f_survival(value: float, numerator: int, denominator: int) -> float:
    """P(F > value) for an even number of numerator degrees of freedom: then the incomplete beta is a finite sum.

    I_y(b, a) = y^b sum_{j<a} (1 - y)^j Gamma(b + j) / (Gamma(b) j!) with a = numerator / 2, b = denominator / 2 and
    y = denominator / (denominator + numerator value).
    """
    assert numerator % 2 == 0, "contrasts come in an even number"
    b = denominator / 2
    y = denominator / (denominator + numerator * max(value, 0.0))
    if y == 1:  # also by rounding, as of estimates that are those of the reference
        return 1.0
    terms = (
        math.exp(b * math.log(y) + j * math.log1p(-y) + math.lgamma(b + j) - math.lgamma(b) - math.lgamma(j + 1))
        for j in range(numerator // 2)
    )
    return min(1.0, sum(terms))


def joint_p_value(evidence: Sequence[Evidence]) -> float:
    """P-value of the one test over all sampled cells; 1 where there are none."""
    p_values = [cell.p_value for cell in evidence if cell.p_value is not None]
    return min(1.0, len(p_values) * min(p_values)) if p_values else 1.0


def broken(evidence: Sequence[Evidence]) -> list[int]:
    """Positions of the cells whose promise is broken."""
    tests = max(1, sum(cell.p_value is not None for cell in evidence))
    return [
        index
        for index, cell in enumerate(evidence)
        if (cell.effect > MIN_EXACT_EFFECT if cell.p_value is None else _is_large(cell.effect, cell.p_value * tests))
    ]


def _is_large(effect: float, p_value: float) -> bool:
    return p_value < ALPHA and effect > MIN_SAMPLED_EFFECT
