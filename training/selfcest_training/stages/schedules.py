"""Reward schedules: `constant` leaves the terms as the reward weighs them, `linear` moves weights over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeGroup


@dataclass(frozen=True)
class Constant:
    """The default schedule. `terms` are weights by term, on top of the reward's own prices; others stay at 1."""

    terms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_weights("terms", self.terms)

    def weights(self, step: int) -> Mapping[str, float]:
        return self.terms

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        pass


@dataclass(frozen=True)
class Linear:
    """Weights that move in a straight line from one value to another over the first `steps` steps, and stay there.

    Attributes:
        start, end: weights by term; a term that only one of them names is at 1 in the other.
        steps: from step 0 on.
    """

    start: Mapping[str, float]
    end: Mapping[str, float]
    steps: int

    def __post_init__(self) -> None:
        check_weights("start", self.start)
        check_weights("end", self.end)
        if self.steps < 1:
            raise ConfigError(f"steps is {self.steps!r}; expected a whole number >= 1")

    def weights(self, step: int) -> Mapping[str, float]:
        share = min(1.0, step / self.steps)
        pairs = {name: (self.start.get(name, 1.0), self.end.get(name, 1.0)) for name in {**self.start, **self.end}}
        return {name: (1 - share) * first + share * last for name, (first, last) in pairs.items()}

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        pass


def check_weights(place: str, weights: Mapping[str, float]) -> None:
    """Raise `ConfigError` for a weight that is not finite."""
    for name, weight in weights.items():
        if not math.isfinite(weight):
            raise ConfigError(f"{place}.{name} is {weight!r}; expected a finite number (0 leaves the term out)")
