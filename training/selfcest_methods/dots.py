"""`dots` draws tasks whose estimated success rate is near a half, after difficulty-targeted online data selection
(arXiv 2506.05316). If it works, fewer groups have equal returns, and accuracy rises in fewer steps.

    p(b) = (prior / 2 + sum_j a(b, j) s_j) / (prior + sum_j a(b, j) n_j)      over the buckets j seen so far
    a(b, j) = exp(-|log (1 + size_b) - log (1 + size_j)| / width) within a family, `across` between families
    a task of bucket b is drawn with probability in proportion to exp(-|p(b) - target| / temperature)

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Count, Positive, Share
from selfcest_methods.buckets import RemembersBuckets, RemembersBucketsOptions, Tally, pick
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@dataclass(frozen=True)
class DotsOptions(RemembersBucketsOptions):
    """Attributes, besides those of `RemembersBuckets`:

    term: an episode succeeds if this term of the reward is above 0.
    target: success rate to aim at.
    temperature: of the softmax, in units of the success rate.
    width: e-fold distance of sizes, in units of their logarithm.
    across: what a rollout of another family counts.
    prior: rollouts that an estimate begins with, half of them right.
    pool: tasks to choose each from.
    """

    term: str = "correct"
    target: Share = 0.5
    temperature: Positive = 0.1
    width: Positive = 0.3
    across: Share = 0.0
    prior: Positive = 1.0
    pool: Annotated[Count, "1: no choice"] = 4


class Dots(RemembersBuckets[Tally]):
    """Tasks of buckets whose estimated success rate is near a target."""

    kept: ClassVar = Tally

    Options = DotsOptions
    options: DotsOptions

    def tally(self, group: EpisodeGroup) -> Tally:
        return Tally.of(group, self.options.term)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        tasks = pick(menu, num_tasks, self.options.pool, self.weight, rng)
        return [PlannedGroup(task, menu.group_size) for task in tasks]

    def weight(self, bucket: Bucket) -> float:
        """What its probability is in proportion to."""
        return float(np.exp(-abs(self.rate(bucket) - self.options.target) / self.options.temperature))

    def rate(self, bucket: Bucket) -> float:
        """Its estimated success rate."""
        right, all_ = self.options.prior / 2, self.options.prior
        for other, tally in self.seen():
            similar = self._similar(bucket, other)
            right, all_ = right + similar * tally.successes, all_ + similar * tally.rollouts
        return right / all_

    def _similar(self, one: Bucket, other: Bucket) -> float:
        if one == other:
            return 1.0
        if one.family != other.family:
            return self.options.across
        if one.number is None or other.number is None:
            return 0.0
        return float(np.exp(-abs(np.log1p(one.number) - np.log1p(other.number)) / self.options.width))
