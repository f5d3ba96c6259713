"""`mixture`: families drawn by their configured weights, the same number of rollouts for every task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_training.families import draw_family
from selfcest_training.stages.base import FixedSize, PlannedGroup, TaskMenu


@dataclass(frozen=True)
class MixtureSampler(FixedSize):
    """The default task sampler. It has no options and remembers nothing."""

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        tasks = [menu.sources[draw_family(menu.weights, rng)].draw(rng) for _ in range(num_tasks)]
        return [PlannedGroup(task, menu.group_size) for task in tasks]

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        pass
