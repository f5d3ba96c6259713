"""`lagrangian` sets the weight of a reward term by dual ascent on a bound, after RCPO (Tessler et al., arXiv
1805.11074) and PID Lagrangian methods (arXiv 2007.03964). If it works, the bounded mean settles at its bound, and
the return is the highest that the bound allows.

    error = (mean x - at_most) / |at_most|   or   (at_least - mean x) / |at_least|     (over the step's episodes)
    integral <- clip(integral + rate · error, 0, most);   weight = clip(integral + proportional · error, 0, most)

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlainState, Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Finite, NotNegative, Positive
from selfcest_methods.measures import measured
from selfcest_training.stages.schedules import Weights

_Bound = Annotated[float, Finite()] | None


@stored_as(integral="integral", step="step", sum="sum", count="count")
@dataclass
class Multiplier(PlainState):
    """The integral before the step that was observed last, that step, and the measure's sum over its episodes."""

    integral: float
    step: int = -1
    sum: float = 0.0
    count: int = 0

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None


@dataclass(frozen=True)
class LagrangianOptions(Checked):
    """Attributes:
    term: whose weight is the multiplier.
    measure: what is bounded, a cost of `record.Cost` or a reward term.
    at_most, at_least: the bound on its mean; one of the two.
    rate: of the integral, per step and unit of relative error.
    proportional: of the error itself; 0: dual ascent alone.
    start: the multiplier at step 0.
    most: its upper bound.
    terms: weights of other terms, which stay.
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
            raise ConfigError(f"terms names '{self.term}', whose weight is the multiplier; leave it out")


class Lagrangian(Stateful[Multiplier]):
    """The multiplier of a bound as the weight of a term."""

    Options = LagrangianOptions
    options: LagrangianOptions

    def weights(self, step: int) -> Mapping[str, float]:
        integral, error = self._moved(self.state.integral, self.state.mean)
        return {
            **self.options.terms,
            self.options.term: float(np.clip(integral + self.options.proportional * error, 0.0, self.options.most)),
        }

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """The multiplier moves once per step: by the mean over all rounds of the step before."""
        state = self.state
        if state.step != step:
            state.integral, _ = self._moved(state.integral, state.mean)
            state.step, state.sum, state.count = step, 0.0, 0
        found = measured(self.options.measure, groups, "lagrangian")
        state.sum += sum(found)
        state.count += len(found)

    def _moved(self, integral: float, mean: float | None) -> tuple[float, float]:
        """The integral after a step of this mean, and its error."""
        if mean is None:
            return integral, 0.0
        bound = self.options.at_most if self.options.at_most is not None else self.options.at_least
        assert bound is not None
        error = (mean - bound if self.options.at_most is not None else bound - mean) / (abs(bound) or 1.0)
        return float(np.clip(integral + self.options.rate * error, 0.0, self.options.most)), error

    def initial_state(self) -> Multiplier:
        return Multiplier(self.options.start)
