"""`eva`: tasks by how much their rollouts differ.

    a task of bucket b is drawn in proportion to floor + info(b)
    info = gap: best return less worst      mean_gap: best less mean      variance: of the returns;   means over groups

Source: eva (arXiv 2411.00062), informativeness as the worst optimal advantage |min A*| of a prompt's responses, which
is `gap`; `mean_gap` and `variance` are among the alternatives that it compares. The paper evolves the prompts that were
chosen by a model; here generators draw fresh ones of the same bucket, whose gold is known.

Left open there and chosen here: informativeness is kept per bucket. One that was not seen is taken to be as informative
as the most informative. Tasks are chosen among `pool` times as many, so the family weights of the config still count.

When an episode is a tree its return is the team's, token prices included: two trees that are both right and differ in
cost are informative too, which success alone would not see. Degenerate cases: nothing seen, or all returns equal:
`mixture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from selfcest_env.structure import Count, Positive
from selfcest_training.families import Bucket
from selfcest_training.stages.base import PlannedGroup, TaskMenu
from selfcest_training.stages.buckets import RemembersBuckets, pick


@dataclass(frozen=True)
class Eva(RemembersBuckets):
    """Attributes, besides those of `RemembersBuckets`:

    info: see above.
    floor: what every bucket is worth besides, so that none is forgotten; in units of the return (of its square).
    pool: tasks to choose each from.
    """

    info: Literal["gap", "mean_gap", "variance"] = "gap"
    floor: Positive = 0.05
    pool: Annotated[Count, "1: no choice"] = 4

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        known = {bucket: getattr(tally, self.info) / tally.groups for bucket, tally in self.seen()}
        most = max(known.values(), default=0.0)

        def weigh(bucket: Bucket) -> float:
            return float(self.floor + known.get(bucket, most))

        return [PlannedGroup(task, menu.group_size) for task in pick(menu, num_tasks, self.pool, weigh, rng)]
