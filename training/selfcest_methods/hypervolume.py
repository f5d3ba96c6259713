"""`hypervolume` raises the weights of reward terms after a step whose mean results enlarge the dominated volume.

Source: hypervolume-guided weights (Lu et al., arXiv 2509.11452), by the released code. In the paper the points are of a
validation set. Here they are of the rollouts, and every objective is relative to its reference. The paper's second
method, weights by inner products of the objectives' gradients, is left out: it takes a backward pass for each objective
before the update, and a schedule sees records only. Details: docs/methods.md.

    weight = terms[name] * (0.5 + 1.5 tanh(scale * dHV)),   dHV = HV(front and the step's point) - HV(front)
    a point has per objective its gain over `reference`, the mean over the step's episodes, at least 0

Expected effect: after a step that moved the front, rewards weigh up to four times as much as after another one.
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
from selfcest_env.reward import Reward
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, NotEmpty, Number, Positive
from selfcest_methods.measures import check_measure, measure_episodes
from selfcest_training.stages.schedules import Weights

Point = tuple[float, ...]
_ROUNDING = 1e-12  # difference that rounding can cause between equal volumes, which are sums of slices


@stored_as(front="front", step="step", sums="sums", count="count")
@dataclass
class Front(PlainState):
    """State of `Hypervolume`.

    Attributes:
        front: points that gained volume; their coordinates are in the order of `reference`.
        step: the last observed step; -1 before any.
        sums: sum of each objective over the episodes of this step.
        count: number of these episodes.
    """

    front: list[list[float]] = field(default_factory=list)
    step: int = -1
    sums: list[float] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True)
class HypervolumeOptions(Checked):
    """Options of `Hypervolume`.

    Attributes:
        terms: weights of reward terms, which the factor multiplies.
        reference: value of each objective that counts as no gain: an upper bound of a cost in `record.Cost`, or a lower
            bound of a reward term.
        scale: factor of the gain in volume.
    """

    terms: Annotated[Weights, NotEmpty()]
    reference: Annotated[Mapping[str, Number], NotEmpty()]
    scale: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.reference.items():
            if name in cost_measures() and value <= 0:
                raise ConfigError(
                    f"reference.{name} is {value:g}; expected a number > 0, the most that the cost may be"
                )

    def check_reward(self, reward: Reward) -> None:
        for name in self.reference:
            check_measure(name, reward.terms)


class Hypervolume(Stateful[Front]):
    """A reward schedule by the last gain in volume."""

    Options = HypervolumeOptions
    options: HypervolumeOptions

    def weights(self, step: int) -> Mapping[str, float]:
        # The constants are those of the released code: 0.5 without a gain, below 2 for any gain.
        factor = 1.0
        if self.state.count:
            factor = 0.5 + 1.5 * math.tanh(self.options.scale * self._compute_gain())
        return {name: weight * factor for name, weight in self.options.terms.items()}

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        state = self.state
        # A step has one point, the mean over its rounds. It joins the front when the next step begins.
        if state.step != step:
            if state.count and self._compute_gain() > 0:
                state.front.append(list(self._compute_point()))
            state.step = step
            state.sums = [0.0] * len(self.options.reference)
            state.count = 0
        values_by_objective = [measure_episodes(name, groups) for name in self.options.reference]
        state.sums = [total + sum(values) for total, values in zip(state.sums, values_by_objective, strict=True)]
        state.count += len(values_by_objective[0])

    def _compute_point(self) -> Point:
        """Return the gain of the last observed step in each objective."""
        gains = []
        for (name, bound), total in zip(self.options.reference.items(), self.state.sums, strict=True):
            mean = total / self.state.count
            gain = (bound - mean) / bound if name in cost_measures() else mean - bound
            gains.append(max(0.0, gain))
        return tuple(gains)

    def _compute_gain(self) -> float:
        """Return the volume that the point of the last observed step adds to that of the front."""
        front = [tuple(point) for point in self.state.front]
        gain = compute_volume([*front, self._compute_point()]) - compute_volume(front)
        return gain if gain > _ROUNDING else 0.0

    def initial_state(self) -> Front:
        return Front(sums=[0.0] * len(self.options.reference))


def compute_volume(points: Sequence[Point]) -> float:
    """Return the volume that the points dominate, which is a union of boxes from the origin to each point.

    The space is cut into slices at the first coordinates of the points. The volume of a slice is its width times the
    volume of the other coordinates of the points that reach over it.
    """
    if not points:
        return 0.0
    if len(points[0]) == 1:
        return max(point[0] for point in points)
    edges = np.unique([0.0, *(point[0] for point in points)])
    volume = 0.0
    for low, high in pairwise(edges.tolist()):
        reaching = [point[1:] for point in points if point[0] >= high]
        volume += (high - low) * compute_volume(reaching)
    return volume
