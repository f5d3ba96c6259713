"""Group filters: `all` trains on every group, `varied` drops groups without variance and refills the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, Count, NotNegative
from selfcest_training.credit.base import are_equal
from selfcest_training.stages.base import FilterResult, FixedSize


@dataclass(frozen=True)
class KeepAll(FixedSize):
    """The default group filter."""

    def filter(self, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int) -> FilterResult:
        return FilterResult(tuple(groups))


@dataclass(frozen=True)
class KeepVaried(FixedSize, Checked):
    """Dynamic sampling: drop groups with equal returns, which have no gradient, and sample more tasks instead.

    Source: DAPO (arXiv 2503.14476), section 3.2, which keeps prompts with an accuracy between 0 and 1 and samples until
    the batch is full. Here returns decide, and accuracy is one of their terms. The number of rounds is bounded, as a
    policy that has learned its tasks would sample without end. An incomplete step keeps the denominators of a full one.

    Attributes:
        tolerance: largest difference of returns that count as equal.
        max_rounds: largest number of rounds per step, the first one included.
    """

    tolerance: NotNegative = 0.0
    max_rounds: Annotated[Count, "1: no refill"] = 4

    def filter(self, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int) -> FilterResult:
        varied = [group for group in groups if self._has_variance(group)][:num_groups]
        num_missing = num_groups - len(varied) if rounds < self.max_rounds else 0
        return FilterResult(tuple(varied), num_missing)

    def _has_variance(self, group: EpisodeGroup) -> bool:
        returns = [episode.team_return for episode in group.episodes]
        return not are_equal(returns) and max(returns) - min(returns) > self.tolerance
