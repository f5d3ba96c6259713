"""`eva` draws tasks of buckets whose rollouts differ most in return.

Source: eva (arXiv 2411.00062). In the paper a model rewrites the prompts of informative groups. Here fresh tasks are
drawn from their buckets. Details: docs/methods.md.

    P(task of bucket b) ~ floor + mean info of the groups of b
    info = gap: max R - min R      mean_gap: max R - mean R      variance: of R, with n in the denominator

Expected effect: fewer groups have equal returns, and the return rises in fewer steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_methods.buckets import WeightedSums, WorthSampler, WorthSamplerOptions


@dataclass(frozen=True)
class ReturnSpread(WeightedSums):
    """Sums over groups of the spread of their returns.

    Attributes:
        groups: weighted number of groups.
        variance, gap, mean_gap: weighted sums of the measures `info` of each group.
    """

    groups: float = 0.0
    variance: float = 0.0
    gap: float = 0.0
    mean_gap: float = 0.0


@dataclass(frozen=True)
class EvaOptions(WorthSamplerOptions):
    """Options in addition to those of `WorthSampler`.

    Attributes:
        floor: number that is added to the worth of every bucket, in units of the return, or of its square for the
            variance.
        info: measure of a group's spread.
    """

    info: Literal["gap", "mean_gap", "variance"] = "gap"


class Eva(WorthSampler[ReturnSpread]):
    """A task sampler by the spread of returns."""

    sums_class: ClassVar = ReturnSpread

    Options = EvaOptions
    options: EvaOptions

    def sum_group(self, group: EpisodeGroup) -> ReturnSpread:
        returns = np.array([episode.team_return for episode in group.episodes])
        best = float(returns.max())
        return ReturnSpread(
            rollouts=len(returns),
            groups=1.0,
            variance=float(returns.var()),
            gap=best - float(returns.min()),
            mean_gap=best - float(returns.mean()),
        )

    def compute_worth(self, sums: ReturnSpread) -> float:
        total: float = getattr(sums, self.options.info)
        return total / sums.groups
