"""`dots` draws tasks whose estimated success rate is near a target.

Source: difficulty-targeted online data selection (arXiv 2506.05316). In the paper a task's rate is predicted from
reference tasks by a learned attention over embeddings of prompts. The released one was trained on questions whose rates
were known, which generated tasks have not. Here the reference tasks are those of earlier steps, and buckets are similar
by their size. The paper's replay of rollouts is left out. Details: docs/methods.md.

    p(b) = (prior / 2 + sum_j a(b, j) s_j) / (prior + sum_j a(b, j) n_j)      over the buckets j seen so far
    a(b, j) = exp(-|log (1 + size_b) - log (1 + size_j)| / width) within a family, `across` between families
    P(task of bucket b) ~ exp(-|p(b) - target| / temperature)

Expected effect: fewer groups have equal returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Count, Positive, Share
from selfcest_methods.buckets import BucketSampler, BucketSamplerOptions, SuccessSums, draw_by_weight
from selfcest_training.credit.base import ReadsTerm
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@dataclass(frozen=True)
class DotsOptions(ReadsTerm, BucketSamplerOptions):
    """Options in addition to those of `BucketSampler`.

    Attributes:
        term: reward term that is above 0 for a right episode.
        target: success rate to aim at.
        temperature: temperature of the softmax, in units of the success rate.
        width: difference of log sizes at which a rollout has the weight 1 / e.
        across: weight of a rollout of another family.
        prior: number of rollouts that an estimate begins with, half of them right.
        pool: number of candidates per proposed task.
    """

    term: str = "correct"
    target: Share = 0.5
    temperature: Positive = 0.1
    width: Positive = 0.3
    across: Share = 0.0
    prior: Positive = 1.0
    pool: Annotated[Count, "1: no choice"] = 4


class Dots(BucketSampler[SuccessSums]):
    """A task sampler by estimated success rates."""

    sums_class: ClassVar = SuccessSums

    Options = DotsOptions
    options: DotsOptions

    def sum_group(self, group: EpisodeGroup) -> SuccessSums:
        return SuccessSums.of(group, self.options.term)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        tasks = draw_by_weight(menu, num_tasks, self.options.pool, self.compute_weight, rng)
        return [PlannedGroup(task, menu.group_size) for task in tasks]

    def compute_weight(self, bucket: Bucket) -> float:
        """Return the weight of a bucket in the draw."""
        return float(np.exp(-abs(self.estimate_rate(bucket) - self.options.target) / self.options.temperature))

    def estimate_rate(self, bucket: Bucket) -> float:
        """Return the estimated success rate of a bucket."""
        # Half of the prior is right, so a bucket without similar ones has rate 1/2 and is tried.
        successes = self.options.prior / 2
        rollouts = self.options.prior
        for seen_bucket, sums in self.memory.sums_by_bucket.items():
            similarity = self._compute_similarity(bucket, seen_bucket)
            successes += similarity * sums.successes
            rollouts += similarity * sums.rollouts
        return successes / rollouts

    def _compute_similarity(self, bucket: Bucket, seen_bucket: Bucket) -> float:
        if bucket == seen_bucket:
            return 1.0
        if bucket.family != seen_bucket.family:
            return self.options.across
        if bucket.number is None or seen_bucket.number is None:
            return 0.0
        distance = abs(np.log1p(bucket.number) - np.log1p(seen_bucket.number))
        return float(np.exp(-distance / self.options.width))
