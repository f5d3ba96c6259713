"""`mopps` draws tasks by Thompson sampling of their success rate.

Source: MoPPS (arXiv 2507.04632). In the paper every prompt has a posterior of its own. Here a bucket has one, since
tasks are seldom seen twice. Details: docs/methods.md.

    p ~ Beta(1 + s, 1 + n - s),   s of n rollouts of the bucket were right, with less weight for earlier steps
    of `pool` times as many tasks, those with the smallest (p - target)^2 are proposed

Expected effect: in runs with few tasks per step, fewer groups have equal returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Count, Share
from selfcest_methods.buckets import BucketSampler, BucketSamplerOptions, SuccessSums, draw_from_menu
from selfcest_training.credit.base import ReadsTerm
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu

_NOTHING_SEEN = SuccessSums()


@dataclass(frozen=True)
class MoppsOptions(ReadsTerm, BucketSamplerOptions):
    """Options in addition to those of `BucketSampler`.

    Attributes:
        term: reward term that is above 0 for a right episode.
        target: success rate to aim at.
        pool: number of candidates per proposed task.
    """

    decay: Share = 0.5  # as in the released scripts for countdown and geometry
    term: str = "correct"
    target: Share = 0.5
    pool: Annotated[Count, "1: no choice"] = 4


class Mopps(BucketSampler[SuccessSums]):
    """A task sampler by drawn success rates."""

    sums_class: ClassVar = SuccessSums

    Options = MoppsOptions
    options: MoppsOptions

    def sum_group(self, group: EpisodeGroup) -> SuccessSums:
        return SuccessSums.of(group, self.options.term)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        tasks = [draw_from_menu(menu, rng) for _ in range(num_tasks * self.options.pool)]
        drawn_rates = np.array([rng.beta(*self.get_posterior(Bucket.of(task))) for task in tasks])
        by_distance = np.argsort((drawn_rates - self.options.target) ** 2, kind="stable")
        # The chosen tasks keep the order in which they were drawn.
        return [PlannedGroup(tasks[i], menu.group_size) for i in sorted(by_distance[:num_tasks])]

    def get_posterior(self, bucket: Bucket) -> tuple[float, float]:
        """Return both parameters of the Beta distribution of a bucket's success rate."""
        sums = self.memory.sums_by_bucket.get(bucket, _NOTHING_SEEN)
        return 1 + sums.successes, 1 + sums.rollouts - sums.successes
