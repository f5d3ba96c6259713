"""Reward schedules: `constant` has the same weights in every step, `linear` changes them over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, Count, Number

# Weights by reward term.
Weights = Mapping[str, Number]


@dataclass(frozen=True)
class Constant(Checked):
    """The default schedule: constant factors of the reward's terms.

    Attributes:
        terms: factors by term; all other terms have the factor 1.
    """

    terms: Weights = field(default_factory=dict)

    def weights(self, step: int) -> Mapping[str, float]:
        return self.terms

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        pass


@dataclass(frozen=True)
class Linear(Checked):
    """Weights that change linearly from `start` to `end` over the first `steps` steps, and then stay constant.

    Attributes:
        start: weights by term at step 0. A term that only `end` names has weight 1 here.
        end: weights by term from step `steps` on. A term that only `start` names has weight 1 here.
        steps: number of steps of the change.
    """

    start: Weights
    end: Weights
    steps: Count

    def weights(self, step: int) -> Mapping[str, float]:
        share = min(1.0, step / self.steps)
        weights: dict[str, float] = {}
        for name in {**self.start, **self.end}:
            weights[name] = (1 - share) * self.start.get(name, 1.0) + share * self.end.get(name, 1.0)
        return weights

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        pass
