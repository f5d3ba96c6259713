"""`mopps`: tasks whose success rate may be near a half, by one draw each from what is believed of their bucket.

    p ~ Beta(1 + s, 1 + n - s)      s of n rollouts of the bucket were right, earlier steps counting for less
    of `pool` times as many tasks those with the smallest (p - target)^2

Every rollout that is spent on a task of no use is lost where rollouts are few. Nothing is rolled out to choose tasks,
and the draw is what explores: of a bucket that was seldom seen p may be anything, so it is tried; one that was seen
often and is solved, or hopeless, is drawn near a half hardly ever.

Source: model predictive prompt selection (MoPPS, arXiv 2507.04632), by its released code (thu-rllab/MoPPS,
`recipe/ours/mopps.py`): the uniform prior, Thompson sampling and the choice of the nearest (its `topk`). The decay of
0.5 is that of its scripts for countdown and geometry, which choose among 8 times as many; here it is 4, as elsewhere.
The code pulls the counts of a prompt back to the prior, which is what discounted sums do, but only when the prompt is
rolled out, where here every step counts: the policy moves on meanwhile.

Left open there and chosen here: the belief is of a bucket, the family and size of a task, since tasks are drawn afresh.
Each task has a draw of its own, but draws of a bucket that was seen often lie together, so a step may be of one bucket
alone. With the options as they come, 8 rollouts a task and five buckets that succeed at 0.05 to 0.95, 29 % of steps of
2 tasks are, and 9 % of 4; with three at 0.1, 0.5 and 0.9, 54 and 40 % (`tests/methods/test_sampling.py` counts them).
The nearest are the paper's choice, so that is kept. Families come into the pool by their configured weights.

Against `dots`, which ranks by point estimates softened by a temperature and carries them to neighbouring sizes, this
one has no temperature, explores by what it does not know, and says nothing of sizes never seen.

When an episode is a tree, success is the root's; how dear a tree is does not count: see `knapsack`. The loss: the
distribution of tasks is another one; nothing is biased within a task. Degenerate cases: nothing seen, or `pool: 1`:
`mixture`.
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
