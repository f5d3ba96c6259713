"""`aligned` adapts the weights of heuristic reward terms to their effect on the primary one.

Source: behaviour alignment (Gupta et al., arXiv 2310.19007, from the abstract). In the paper the gradient of the outer
objective goes through the policy's optimiser. Here it is the closed form for a policy that may be any distribution near
pi_0, so a weight follows a correlation within groups. Details: docs/methods.md.

    max over w of E[r_p] under pi_w,   pi_w = argmax over pi of E[r_p + sum_i w_i r_i] - beta KL(pi || pi_0)
    d E[r_p] / d w_i = Cov(r_p, r_i) / beta                               under pi_w, per task
    w_i <- clip(w_i + rate * (corr_i - shrink * w_i), 0, most)            after every step

Expected effect: the weight of a misleading term falls to 0, and the primary reward rises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlainState, Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, NotEmpty, NotNegative, Positive
from selfcest_methods.buckets import Floats
from selfcest_methods.measures import measure_episodes


@stored_as(weights="weights", step="step", sums="sums")
@dataclass
class AlignmentState(PlainState):
    """State of `Aligned`.

    Attributes:
        weights: weights of the heuristic terms before the last observed step.
        step: the last observed step; -1 before any.
        sums: three sums for each heuristic term over the episodes of this step, of centred values: primary times term,
            primary squared, term squared.
    """

    weights: dict[str, float]
    step: int
    sums: dict[str, list[float]]


@dataclass(frozen=True)
class AlignedOptions(Checked):
    """Options of `Aligned`.

    Attributes:
        terms: first weights of the heuristic terms.
        primary: reward term that the heuristic terms are to raise; its weight is 1.
        rate: change of a weight per step and unit of correlation.
        shrink: pull towards 0, in units of correlation per unit of weight.
        most: largest weight.
    """

    terms: Annotated[Mapping[str, NotNegative], NotEmpty()]
    primary: str = "correct"
    rate: Positive = 0.1
    shrink: NotNegative = 0.0
    most: Positive = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.primary in self.terms:
            raise ConfigError(
                f"terms has '{self.primary}', the primary term, whose weight is fixed; remove it from terms"
            )
        for name, weight in self.terms.items():
            if weight > self.most:
                raise ConfigError(f"terms.{name} is {weight:g}, above most = {self.most:g}; lower it, or raise most")


class Aligned(Stateful[AlignmentState]):
    """A reward schedule by correlations with the primary term."""

    Options = AlignedOptions
    options: AlignedOptions

    def weights(self, step: int) -> Mapping[str, float]:
        # The primary term is named as well, so that a reward without it is refused before any work.
        return {self.options.primary: 1.0, **self._update_weights()}

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        state = self.state
        # Weights move once per step, by the episodes of all its rounds.
        if state.step != step:
            state.weights = self._update_weights()
            state.step = step
            state.sums = self._make_zero_sums()
        primary_by_group = _measure_by_group(self.options.primary, groups)
        # A group with equal primary values tells nothing about correlations. The spread of its heuristic values would
        # still lower them, so that weights would fall only because many tasks are solved or hopeless.
        is_informative = [bool(np.ptp(values) > 0) for values in primary_by_group]
        primary = _center(primary_by_group, is_informative)
        for name in self.options.terms:
            term = _center(_measure_by_group(name, groups), is_informative)
            products = (primary @ term, primary @ primary, term @ term)
            state.sums[name] = [total + float(new) for total, new in zip(state.sums[name], products, strict=True)]

    def _update_weights(self) -> dict[str, float]:
        """Return the weights after the last observed step."""
        weights = dict(self.state.weights)
        if self.state.step < 0:
            return weights
        for name, (covariance, primary_variance, term_variance) in self.state.sums.items():
            scale = np.sqrt(primary_variance * term_variance)
            # The formula has the covariance. The correlation has no unit, so that one rate serves all terms.
            correlation = covariance / scale if scale > 0 else 0.0
            weight = weights[name] + self.options.rate * (correlation - self.options.shrink * weights[name])
            weights[name] = float(np.clip(weight, 0.0, self.options.most))
        return weights

    def _make_zero_sums(self) -> dict[str, list[float]]:
        return {name: [0.0, 0.0, 0.0] for name in self.options.terms}

    def initial_state(self) -> AlignmentState:
        return AlignmentState(dict(self.options.terms), -1, self._make_zero_sums())


def _measure_by_group(term: str, groups: Sequence[EpisodeGroup]) -> list[Floats]:
    """Return the unweighted values of a term, an array [episodes] for each group."""
    return [np.array(measure_episodes(term, [group])) for group in groups]


def _center(values_by_group: Sequence[Floats], is_informative: Sequence[bool]) -> Floats:
    """Return the values of the informative groups, each less the mean of its group, [episodes of these groups]."""
    centred = [np.zeros(0)]
    for values, is_used in zip(values_by_group, is_informative, strict=True):
        if is_used:
            centred.append(values - values.mean())
    return np.concatenate(centred)
