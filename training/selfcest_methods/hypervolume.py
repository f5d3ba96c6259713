"""`hypervolume` raises the weights of reward terms after a step that dominates more of the objectives' space, after
hypervolume-guided weights (Lu et al., arXiv 2509.11452). If it works, the front of accuracy and cost moves out in
both.

    weight = terms[name] · (0.5 + 1.5 tanh(scale · dHV)),   dHV = HV(front and the step's point) - HV(front)

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlainState, Stateful
from selfcest_env.record import EpisodeGroup, cost_measures
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Finite, NotEmpty, Positive
from selfcest_methods.measures import measured
from selfcest_training.stages.schedules import Weights

Point = tuple[float, ...]
_ROUNDING = 1e-12  # sums of slices differ by so much where volumes are equal


@stored_as(front="front", step="step", sums="sums", count="count")
@dataclass
class Front(PlainState):
    """Points that gained, and the sums over the episodes of the step that was observed last."""

    front: list[list[float]] = field(default_factory=list)
    step: int = -1
    sums: list[float] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True)
class HypervolumeOptions(Checked):
    """Attributes:
    terms: weights by term, which the factor multiplies.
    reference: by objective (a cost of `record.Cost`, or a reward term) the value that is worth nothing: the most
        that a cost may be, the least of a term.
    scale: of the gain in volume.
    """

    terms: Annotated[Weights, NotEmpty()]
    reference: Annotated[Mapping[str, Annotated[float, Finite()]], NotEmpty()]
    scale: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.reference.items():
            if name in cost_measures() and value <= 0:
                raise ConfigError(
                    f"reference.{name} is {value:g}; expected a number > 0, the most that the cost may be"
                )


class Hypervolume(Stateful[Front]):
    """Weights times a factor of the last gain in volume."""

    Options = HypervolumeOptions
    options: HypervolumeOptions

    def weights(self, step: int) -> Mapping[str, float]:
        factor = 0.5 + 1.5 * math.tanh(self.options.scale * self._gain()) if self.state.count else 1.0
        return {name: weight * factor for name, weight in self.options.terms.items()}

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """One point per step, the mean over its rounds; the one before joins the front if it gained."""
        state = self.state
        if state.step != step:
            if state.count and self._gain() > 0:
                state.front.append(list(self._point()))
            state.step, state.sums, state.count = step, [0.0] * len(self.options.reference), 0
        found = [measured(name, groups, "hypervolume") for name in self.options.reference]
        state.sums = [before + sum(values) for before, values in zip(state.sums, found, strict=True)]
        state.count += len(found[0])

    def _point(self) -> Point:
        """Gains of the step that was observed last."""
        means = [total / self.state.count for total in self.state.sums]
        pairs = zip(self.options.reference.items(), means, strict=True)
        gains = [(bound - mean) / bound if name in cost_measures() else mean - bound for (name, bound), mean in pairs]
        return tuple(max(0.0, gain) for gain in gains)

    def _gain(self) -> float:
        front = [tuple(point) for point in self.state.front]
        gain = volume([*front, self._point()]) - volume(front)
        return gain if gain > _ROUNDING else 0.0

    def initial_state(self) -> Front:
        return Front(sums=[0.0] * len(self.options.reference))


def volume(points: Sequence[Point]) -> float:
    """What points dominate above the origin: slices along the first objective, the volumes of the rest in each."""
    if not points:
        return 0.0
    if len(points[0]) == 1:
        return max(point[0] for point in points)
    edges = np.unique([0.0, *(point[0] for point in points)])
    slices = pairwise(edges.tolist())
    return float(
        sum((high - low) * volume([point[1:] for point in points if point[0] >= high]) for low, high in slices)
    )
