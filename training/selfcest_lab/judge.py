"""The verdict of a run: do the schemes that promise an unbiased gradient have one?

An exact expectation is the gradient or it is not. All sampled cells together make one test at level `ALPHA`:
Hotelling's T² on a few fixed contrasts per cell, and Bonferroni over the cells. So the number of games, schemes and
parameters cannot raise the rate of false alarms, and an alarm must be confirmed on new groups. A scheme fails only if
its bias is also large enough to matter, so more samples do not turn rounding into a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfcest_env.seeding import stream_seed
from selfcest_lab.exact import SolvedGame
from selfcest_lab.tabular import Floats
from selfcest_training.credit import Promise

ALPHA = 1e-4  # level of the joint test over the sampled cells
MIN_SAMPLED_EFFECT = 0.02  # smallest relative bias of a sampled cell that counts, after its noise is subtracted
MIN_EXACT_EFFECT = 1e-6  # smallest relative bias of an exact cell that counts; rounding is about 1e-15
_MAX_RANDOM_CONTRASTS = 4  # besides the two along the gradient; must be even
_JITTER = 1e-9  # spread, relative to the gradient's length, below which a difference is rounding


@dataclass(frozen=True)
class Evidence:
    """The evidence against one promise in one game.

    Attributes:
        effect: length of the forbidden part of the expectation over the length of the exact gradient; never negative.
        p_value: probability of contrasts at least as large if the promise holds; `None` where the effect is exact.
    """

    effect: float
    p_value: float | None = None


def forbidden_part(promise: Promise, gradients: Floats, gradient: Floats) -> Floats:
    """Return the part of gradient estimates whose expectation is zero if the promise holds.

    It is the difference to the gradient for an unbiased scheme, and the component orthogonal to the gradient for one
    that is unbiased up to scale.

    Args:
        promise: the scheme's promise.
        gradients: [..., D] the estimates.
        gradient: [D] the exact gradient.

    Returns:
        [..., D]
    """
    if promise is Promise.UNBIASED:
        return np.asarray(gradients - gradient)
    scale = gradients @ gradient / (gradient @ gradient)
    return np.asarray(gradients - scale[..., None] * gradient)


def judge_exact(promise: Promise, mean: Floats, gradient: Floats) -> Evidence:
    """Return the evidence of an exact expectation, `mean` [D], against the exact `gradient` [D]."""
    # A negative or zero scale would train in the wrong direction, so it breaks the promise completely.
    if promise is Promise.UNBIASED_UP_TO_SCALE and mean @ gradient <= 0:
        return Evidence(1.0)
    return Evidence(float(np.linalg.norm(forbidden_part(promise, mean, gradient)) / np.linalg.norm(gradient)))


def judge_samples(promise: Promise, gradients: Floats, solved: SolvedGame, reference: Floats | None = None) -> Evidence:
    """Return the evidence of independent gradient estimates.

    Args:
        promise: the scheme's promise.
        gradients: [G, D] the estimates of G groups.
        solved: the game.
        reference: [G, D] estimates of `rloo` for the same groups, whose expectation is the gradient. They are a control
            variate. Without it, a branch that the sample never visits would look like a bias without variance.
    """
    gradient = solved.gradient
    count = len(gradients)
    if reference is not None:
        mean = gradients.mean(axis=0)
        scale = 1.0 if promise is Promise.UNBIASED else float(mean @ gradient) / float(gradient @ gradient)
        gradients = gradients - scale * (reference - gradient)
    errors = forbidden_part(promise, gradients, gradient)
    length = float(np.linalg.norm(gradient))
    mean = errors.mean(axis=0)
    # The squared length of a sample mean exceeds that of the expectation by its noise, on average.
    noise = float(errors.var(axis=0, ddof=1).sum()) / count
    effect = math.sqrt(max(0.0, float(mean @ mean) - noise)) / length
    p_value = hotelling_p_value(errors @ contrast_directions(solved), floor=(_JITTER * length) ** 2)
    if promise is Promise.UNBIASED:
        return Evidence(effect, p_value)
    # Two tests, so each p-value is doubled: is something orthogonal to the gradient, and is the scale negative?
    along = gradients @ gradient / length
    standard_error = max(float(along.std(ddof=1)), _JITTER * length) / math.sqrt(count)
    p_negative = 0.5 * math.erfc(-float(along.mean()) / standard_error / math.sqrt(2))
    if p_value <= p_negative:
        return Evidence(effect, min(1.0, 2 * p_value))
    return Evidence(1.0, min(1.0, 2 * p_negative))


def is_alarm(evidence: Evidence) -> bool:
    """Return whether a sampled cell would break its promise if it were the only one."""
    return evidence.p_value is not None and _is_significant(evidence.effect, evidence.p_value)


def combine_evidence(first: Evidence, second: Evidence) -> Evidence:
    """Return the evidence that two independent samples agree on, at the level of one sample."""
    assert first.p_value is not None
    assert second.p_value is not None
    return Evidence(min(first.effect, second.effect), max(first.p_value, second.p_value))


def contrast_directions(solved: SolvedGame) -> Floats:
    """Return the d directions to test, [D, d], with d even.

    They are the root's part of the gradient, the clones' part, and random signs that depend on the game only.
    """
    is_clone = solved.parameters.is_clone
    rng = np.random.default_rng(stream_seed("contrasts", solved.game.name))
    # Estimates add up to zero within a row, so each row has one free parameter less than it has ids.
    num_free = len(is_clone) - int((solved.parameters.index >= 0).any(dim=1).sum())
    num_random = min(_MAX_RANDOM_CONTRASTS, (num_free - 2) // 2 * 2)
    signs = rng.choice([-1.0, 1.0], size=(num_random, len(is_clone)))
    root_part = np.where(is_clone, 0.0, solved.gradient)
    clone_part = np.where(is_clone, solved.gradient, 0.0)
    return np.asarray(np.array([root_part, clone_part, *signs]).T)


def hotelling_p_value(samples: Floats, floor: float = 0.0) -> float:
    """Return the p-value of Hotelling's one-sample T² test for mean zero.

    Args:
        samples: [n, d] independent rows, d even, n > d.
        floor: variance that is added to every direction.
    """
    count, size = samples.shape
    covariance = np.cov(samples, rowvar=False) + floor * np.eye(size)
    mean = samples.mean(axis=0)
    t_squared = count * float(mean @ np.linalg.pinv(covariance, hermitian=True) @ mean)
    # T² (n - d) / (d (n - 1)) has an F distribution with d and n - d degrees of freedom.
    return f_survival(t_squared * (count - size) / (size * (count - 1)), size, count - size)


def f_survival(value: float, numerator: int, denominator: int) -> float:
    """Return P(F > value) for an even number of numerator degrees of freedom.

    The incomplete beta function is then a finite sum (Abramowitz and Stegun 1964, 26.6.4):

    I_y(b, a) = y^b sum_{j<a} (1 - y)^j Gamma(b + j) / (Gamma(b) j!) with a = numerator / 2, b = denominator / 2 and
    y = denominator / (denominator + numerator value).
    """
    assert numerator % 2 == 0, "the finite sum needs an even number of numerator degrees of freedom"
    b = denominator / 2
    y = denominator / (denominator + numerator * max(value, 0.0))
    # Rounding can give 1 too, for example if the estimates equal those of the reference. log1p(-1) would raise.
    if y == 1:
        return 1.0
    # Logarithms keep the factorials of many degrees of freedom in range.
    terms = (
        math.exp(b * math.log(y) + j * math.log1p(-y) + math.lgamma(b + j) - math.lgamma(b) - math.lgamma(j + 1))
        for j in range(numerator // 2)
    )
    return min(1.0, sum(terms))


def joint_p_value(evidence: Sequence[Evidence]) -> float:
    """Return the p-value of the joint test over all sampled cells, 1 if there are none."""
    p_values = [cell.p_value for cell in evidence if cell.p_value is not None]
    return min(1.0, len(p_values) * min(p_values)) if p_values else 1.0


def find_broken(evidence: Sequence[Evidence]) -> list[int]:
    """Return the positions of the cells in which a credit scheme breaks a promise of its class, such as `unbiased`.

    An exact cell has no p-value and breaks it by an effect above rounding. For the others, p-values are multiplied by
    the number of tests (Bonferroni).
    """
    num_tests = max(1, sum(cell.p_value is not None for cell in evidence))
    positions = []
    for position, cell in enumerate(evidence):
        if cell.p_value is None:
            is_broken = cell.effect > MIN_EXACT_EFFECT
        else:
            is_broken = _is_significant(cell.effect, cell.p_value * num_tests)
        if is_broken:
            positions.append(position)
    return positions


def _is_significant(effect: float, p_value: float) -> bool:
    return p_value < ALPHA and effect > MIN_SAMPLED_EFFECT
