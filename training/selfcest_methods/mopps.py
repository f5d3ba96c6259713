"""`mopps` draws tasks by Thompson sampling of their success rate, after MoPPS (arXiv 2507.04632). If it works, fewer
groups have equal returns in runs with few tasks a step.

    p ~ Beta(1 + s, 1 + n - s)      s of n rollouts of the bucket were right, earlier steps counting for less
    of `pool` times as many tasks those with the smallest (p - target)^2

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Count, Share
from selfcest_methods.buckets import RemembersBuckets, RemembersBucketsOptions, Tally, draw
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu

_UNKNOWN = Tally()


@dataclass(frozen=True)
class MoppsOptions(RemembersBucketsOptions):
    """Attributes, besides those of `RemembersBuckets`:

    term: an episode succeeds if this term of the reward is above 0.
    target: success rate to aim at.
    pool: tasks to choose each from.
    """

    decay: Share = 0.5
    term: str = "correct"
    target: Share = 0.5
    pool: Annotated[Count, "1: no choice"] = 4


class Mopps(RemembersBuckets[Tally]):
    """Tasks whose drawn success rate is near a target."""

    kept: ClassVar = Tally

    Options = MoppsOptions
    options: MoppsOptions

    def tally(self, group: EpisodeGroup) -> Tally:
        return Tally.of(group, self.options.term)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        tasks = [draw(menu, rng) for _ in range(num_tasks * self.options.pool)]
        drawn = np.array([rng.beta(*self.belief(Bucket.of(task))) for task in tasks])
        chosen = np.argsort((drawn - self.options.target) ** 2, kind="stable")[:num_tasks]
        return [PlannedGroup(tasks[i], menu.group_size) for i in sorted(chosen)]

    def belief(self, bucket: Bucket) -> tuple[float, float]:
        """Both parameters of the Beta distribution of a bucket's success rate."""
        tally = self.tallies.by_bucket.get(bucket, _UNKNOWN)
        return 1 + tally.successes, 1 + tally.rollouts - tally.successes
