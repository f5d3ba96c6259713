"""`lagrangian` sets the weight of a reward term by dual ascent on a bound of a mean.

Source: RCPO (Tessler et al., arXiv 1805.11074), and the proportional term of PID Lagrangian methods (arXiv 2007.03964).
Here the error is relative to the bound, and there is no derivative term. Details: docs/methods.md.

    error = (mean x - at_most) / |at_most|   or   (at_least - mean x) / |at_least|     (over the step's episodes)
    integral <- clip(integral + rate * error, 0, most);   weight = clip(integral + proportional * error, 0, most)

Expected effect: the bounded mean settles at its bound, and the return is the highest that the bound allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlainState, Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.reward import Reward
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, NotNegative, Number, Positive
from selfcest_methods.measures import check_measure, measure_episodes
from selfcest_training.stages.schedules import Weights

_Bound = Number | None


@stored_as(integral="integral", step="step", sum="sum", count="count")
@dataclass
class Multiplier(PlainState):
    """State of `Lagrangian`.

    Attributes:
        integral: integral before the last observed step.
        step: the last observed step; -1 before any.
        sum: sum of the measure over the episodes of this step.
        count: number of these episodes.
    """

    integral: float
    step: int = -1
    sum: float = 0.0
    count: int = 0


@dataclass(frozen=True)
class LagrangianOptions(Checked):
    """Options of `Lagrangian`.

    Attributes:
        term: reward term whose weight is the multiplier.
        measure: cost of `record.Cost`, or reward term, whose mean is bounded.
        at_most, at_least: the bound; exactly one of the two must be set.
        rate: change of the integral per step and unit of relative error.
        proportional: weight of the error itself; 0 is dual ascent only.
        start: integral at step 0.
        most: largest weight.
        terms: fixed weights of other terms.
    """

    term: str
    measure: str
    at_most: _Bound = None
    at_least: _Bound = None
    rate: Positive = 0.1
    proportional: NotNegative = 0.0
    start: NotNegative = 1.0
    most: Positive = 10.0
    terms: Weights = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.at_most is None) == (self.at_least is None):
            raise ConfigError(f"at_most is {self.at_most} and at_least is {self.at_least}; set one of the two")
        if self.start > self.most:
            raise ConfigError(f"start is {self.start:g}, above most = {self.most:g}; lower it, or raise most")
        if self.term in self.terms:
            raise ConfigError(f"terms has '{self.term}', whose weight is the multiplier; remove it from terms")

    def check_reward(self, reward: Reward) -> None:
        check_measure(self.measure, reward.terms)


class Lagrangian(Stateful[Multiplier]):
    """A reward schedule with the multiplier of a bound."""

    Options = LagrangianOptions
    options: LagrangianOptions

    def weights(self, step: int) -> Mapping[str, float]:
        error = self._compute_error()
        weight = self._clip(self._update_integral(error) + self.options.proportional * error)
        return {**self.options.terms, self.options.term: weight}

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        state = self.state
        # The integral moves once per step, by the mean over all rounds of the step.
        if state.step != step:
            state.integral = self._update_integral(self._compute_error())
            state.step = step
            state.sum = 0.0
            state.count = 0
        values = measure_episodes(self.options.measure, groups)
        state.sum += sum(values)
        state.count += len(values)

    def _compute_error(self) -> float:
        """Return the relative error of the last observed step, positive where the bound is broken; 0 before any."""
        if not self.state.count:
            return 0.0
        # Relative to the bound, so that the same rate serves bounds on tokens and on shares.
        mean = self.state.sum / self.state.count
        if self.options.at_most is not None:
            return (mean - self.options.at_most) / (abs(self.options.at_most) or 1.0)
        assert self.options.at_least is not None
        return (self.options.at_least - mean) / (abs(self.options.at_least) or 1.0)

    def _update_integral(self, error: float) -> float:
        """Return the integral after the last observed step."""
        return self._clip(self.state.integral + self.options.rate * error)

    def _clip(self, weight: float) -> float:
        return float(np.clip(weight, 0.0, self.options.most))

    def initial_state(self) -> Multiplier:
        return Multiplier(self.options.start)
