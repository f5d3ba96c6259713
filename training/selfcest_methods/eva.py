"""`eva` draws tasks whose rollouts differ most in return, after eva (arXiv 2411.00062). If it works, fewer groups have
equal returns, and the return rises in fewer steps.

    a task of bucket b is drawn in proportion to floor + info(b)
    info = gap: best return less worst      mean_gap: best less mean      variance: of the returns;   means over groups

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Count, Positive
from selfcest_methods.buckets import RemembersBuckets, RemembersBucketsOptions, Sums, pick
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@dataclass(frozen=True)
class ReturnSpread(Sums):
    """Attributes:
    groups: their number.
    variance: of the returns of each group, with n in the denominator.
    gap, mean_gap: of each group the best return less the worst, and less the mean.
    """

    groups: float = 0.0
    variance: float = 0.0
    gap: float = 0.0
    mean_gap: float = 0.0


@dataclass(frozen=True)
class EvaOptions(RemembersBucketsOptions):
    """Attributes, besides those of `RemembersBuckets`:

    info: see above.
    floor: what every bucket is worth besides, so that none is forgotten; in units of the return (of its square).
    pool: tasks to choose each from.
    """

    info: Literal["gap", "mean_gap", "variance"] = "gap"
    floor: Positive = 0.05
    pool: Annotated[Count, "1: no choice"] = 4


class Eva(RemembersBuckets[ReturnSpread]):
    """Tasks of buckets whose rollouts differ most."""

    kept: ClassVar = ReturnSpread

    Options = EvaOptions
    options: EvaOptions

    def tally(self, group: EpisodeGroup) -> ReturnSpread:
        returns = np.array([episode.team_return for episode in group.episodes])
        best = float(returns.max())
        return ReturnSpread(
            len(returns), 1.0, float(returns.var()), best - float(returns.min()), best - float(returns.mean())
        )

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        tasks = pick(menu, num_tasks, self.options.pool, self.weigher(), rng)
        return [PlannedGroup(task, menu.group_size) for task in tasks]

    def weigher(self) -> Callable[[Bucket], float]:
        """What the probability of a bucket is in proportion to, as of now."""
        known = {bucket: getattr(tally, self.options.info) / tally.groups for bucket, tally in self.seen()}
        most = max(known.values(), default=0.0)

        return lambda bucket: float(self.options.floor + known.get(bucket, most))
