"""`aligned` adapts the weights of heuristic reward terms to their effect on the primary one, after behaviour alignment
(Gupta et al., arXiv 2310.19007). If it works, the weight of a misleading term falls to 0 and the primary reward
rises.

    max over w of E[r_p] under pi_w,   pi_w = argmax over pi of E[r_p + sum_i w_i r_i] - beta KL(pi || pi_0)
    d E[r_p] / d w_i = Cov(r_p, r_i) / beta                               under pi_w, per task
    w_i <- clip(w_i + rate * (corr_i - shrink * w_i), 0, most)            after every step

docs/methods.md has what the paper leaves open and what was chosen here.
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
from selfcest_methods.measures import measured


@stored_as(weights="weights", step="step", sums="sums")
@dataclass
class Weighing(PlainState):
    """The weights before the step that was observed last, that step, and its sums.

    Attributes:
        sums: of each term the products with the primary term, of the primary term and of its own.
    """

    weights: dict[str, float]
    step: int
    sums: dict[str, list[float]]


@dataclass(frozen=True)
class AlignedOptions(Checked):
    """Attributes:
    terms: heuristic terms, with the weights that they begin with.
    primary: the term that counts.
    rate: of a weight, per step and unit of correlation.
    shrink: pull towards 0, in units of correlation per unit of weight.
    most: upper bound of a weight.
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
                f"terms has '{self.primary}', the primary term, whose weight stays; name heuristics alone"
            )
        for name, weight in self.terms.items():
            if weight > self.most:
                raise ConfigError(f"terms.{name} is {weight:g}, above most = {self.most:g}; lower it, or raise most")


class Aligned(Stateful[Weighing]):
    """Weights that follow the correlation of terms with the primary one."""

    Options = AlignedOptions
    options: AlignedOptions

    def weights(self, step: int) -> Mapping[str, float]:
        """The primary term is named as well, so that a reward without it is refused before any work."""
        return {self.options.primary: 1.0, **self._moved()}

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """Weights move once per step, by all its rounds."""
        state = self.state
        if state.step != step:
            state.weights, state.step = self._moved(), step
            state.sums = self._no_sums()
        values = {name: _by_group(name, groups) for name in (self.options.primary, *self.options.terms)}
        telling = [i for i, of_group in enumerate(values[self.options.primary]) if np.ptp(of_group) > 0]
        centred = {name: _centred([found[i] for i in telling]) for name, found in values.items()}
        primary = centred[self.options.primary]
        for name, before in state.sums.items():
            term = centred[name]
            found = (primary @ term, primary @ primary, term @ term)
            state.sums = {**state.sums, name: [a + float(b) for a, b in zip(before, found, strict=True)]}

    def _moved(self) -> dict[str, float]:
        """The weights after the step that was observed last."""
        weights = dict(self.state.weights)
        if self.state.step < 0:
            return weights
        for name, (both, primary, term) in self.state.sums.items():
            scale = np.sqrt(primary * term)
            correlation = both / scale if scale > 0 else 0.0
            moved = weights[name] + self.options.rate * (correlation - self.options.shrink * weights[name])
            weights[name] = float(np.clip(moved, 0.0, self.options.most))
        return weights

    def _no_sums(self) -> dict[str, list[float]]:
        return {name: [0.0, 0.0, 0.0] for name in self.options.terms}

    def initial_state(self) -> Weighing:
        return Weighing(dict(self.options.terms), -1, self._no_sums())


def _by_group(term: str, groups: Sequence[EpisodeGroup]) -> list[Floats]:
    """[episodes] of each group, unweighted."""
    return [np.array(measured(term, [group], "aligned")) for group in groups]


def _centred(values: Sequence[Floats]) -> Floats:
    """[episodes] of all groups, less the mean of their group."""
    return np.concatenate([np.zeros(0), *(of_group - of_group.mean() for of_group in values)])
