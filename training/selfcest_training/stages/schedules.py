"""Reward schedules: `constant` leaves the terms as the reward weighs them, `linear` moves weights over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, Count, Finite

Weights = Mapping[str, Annotated[float, Finite()]]  # by term


@dataclass(frozen=True)
class Constant(Checked):
    """The default schedule. `terms` are weights by term, on top of the reward's own prices; others stay at 1."""

    terms: Weights = field(default_factory=dict)

    def weights(self, step: int) -> Mapping[str, float]:
        return self.terms

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        pass


@dataclass(frozen=True)
class Linear(Checked):
    """Weights that move in a straight line from one value to another over the first `steps` steps, and stay there.

    Attributes:
        start, end: weights by term; a term that only one of them names is at 1 in the other.
        steps: from step 0 on.
    """

    start: Weights
    end: Weights
    steps: Count

    def weights(self, step: int) -> Mapping[str, float]:
        share = min(1.0, step / self.steps)
        pairs = {name: (self.start.get(name, 1.0), self.end.get(name, 1.0)) for name in {**self.start, **self.end}}
        return {name: (1 - share) * first + share * last for name, (first, last) in pairs.items()}

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        pass
