"""Group filters: `all` learns from every group, `varied` drops groups without variance and refills the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, Count, NotNegative
from selfcest_training.stages.base import FilterResult, FixedSize


@dataclass(frozen=True)
class KeepAll(FixedSize):
    """The default group filter."""

    def filter(self, step: int, groups: Sequence[EpisodeGroup], wanted: int, rounds: int) -> FilterResult:
        return FilterResult(tuple(groups))


@dataclass(frozen=True)
class KeepVaried(FixedSize, Checked):
    """Dynamic sampling: a group whose returns are all equal teaches a group baseline nothing.

    Source: DAPO (arXiv 2503.14476), section 3.2, which keeps prompts whose accuracy is neither 0 nor 1 and samples
    until the batch is full. Here the returns decide, of which accuracy is one term; and rounds are bounded, because a
    policy that has learned its tasks would sample without end. A step that stays short keeps the denominators of a full
    one.

    Attributes:
        tolerance: returns that are no further apart than this are equal.
        max_rounds: of rollouts in a step, the first included.
    """

    tolerance: NotNegative = 0.0
    max_rounds: Annotated[Count, "1: no refill"] = 4

    def filter(self, step: int, groups: Sequence[EpisodeGroup], wanted: int, rounds: int) -> FilterResult:
        kept = [group for group in groups if self._varied(group)][:wanted]
        return FilterResult(tuple(kept), wanted - len(kept) if rounds < self.max_rounds else 0)

    def _varied(self, group: EpisodeGroup) -> bool:
        returns = [episode.team_return for episode in group.episodes]
        return max(returns) - min(returns) > self.tolerance
