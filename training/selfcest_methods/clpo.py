"""`clpo` gives tasks that turned out hard an easier twin, and medium ones another of their size, after CLPO (arXiv
2509.25004). If it works, accuracy on hard sizes rises earlier than with `mixture`.

    acc(task) = share of its rollouts that are right
    acc <= hard:           a twin of the family and of the next smaller size that is found
    hard < acc <= medium:  a twin of the family and size, with other contents
    else:                  solved, no twin

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from selfcest_env.plugin import Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.stored import by_field, stored_as, to_stored
from selfcest_env.structure import Checked, Count, Share, check_order
from selfcest_env.types import Task
from selfcest_methods.buckets import Tally, draw
from selfcest_training.families import Bucket, draw_task
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@stored_as(bucket="bucket", task_id="task_id", easier="easier")
@dataclass(frozen=True)
class Original:
    """A task that gets a twin: an easier one, or another one of its size."""

    bucket: Bucket
    task_id: str
    easier: bool


@dataclass
class Waiting:
    """Tasks whose twins have not been proposed yet, and the step that they are of."""

    step: int = -1
    originals: list[Original] = field(default_factory=list)

    def state_dict(self) -> Mapping[str, Any]:
        return {"step": self.step, "waiting": [to_stored(original) for original in self.originals]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.step, self.originals = state["step"], []
        for stored in state["waiting"]:
            values = by_field(Original, stored)
            values["bucket"] = Bucket(**by_field(Bucket, values["bucket"]))
            self.originals.append(Original(**values))


@dataclass(frozen=True)
class ClpoOptions(Checked):
    """Attributes:

    hard, medium: the highest accuracy of a hard task, and of one of medium difficulty.
    share: of a step's tasks that are twins at most.
    tries: draws of a family in search of a twin.
    term: an episode is right if this term of the reward is above 0.
    """

    hard: Share = 0.25
    medium: Share = 0.75
    share: Share = 0.5
    tries: Count = 64
    term: str = "correct"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "hard", "medium")


class Clpo(Stateful[Waiting]):
    """Tasks and twins of earlier ones."""

    Options = ClpoOptions
    options: ClpoOptions

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        waiting, room = self.state.originals, int(self.options.share * num_tasks)
        found = [self._twin(original, menu, rng) for original in waiting[:room]]
        del waiting[:room]
        twins = [twin for twin in found if twin is not None]
        fresh = [draw(menu, rng) for _ in range(num_tasks - len(twins))]
        return [PlannedGroup(task, menu.group_size) for task in [*twins, *fresh]]

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """Twins of an earlier step's tasks that found no room are forgotten."""
        if step != self.state.step:
            self.state.step, self.state.originals = step, []
        for group in groups:
            accuracy = Tally.of(group, self.options.term).rate
            if accuracy <= self.options.medium and "twin" not in group.task.metadata:
                self.state.originals.append(
                    Original(Bucket.of(group.task), group.task.task_id, accuracy <= self.options.hard)
                )

    def _twin(self, original: Original, menu: TaskMenu, rng: np.random.Generator) -> Task | None:
        bucket, best = original.bucket, None
        if original.easier and bucket.number is None:
            return None
        for _ in range(self.options.tries):
            task = draw_task(bucket.family, menu.sources[bucket.family], rng, twin=1)
            other = Bucket.of(task)
            if not original.easier:
                if other == bucket and task.task_id != original.task_id:
                    return task
            elif (best is None or _size(best) < _size(task)) and _size(task) < _size(bucket):
                best = task
        return best

    def initial_state(self) -> Waiting:
        return Waiting()


def _size(of: Task | Bucket) -> float:
    """Sizes that are no numbers are never smaller than any."""
    number = (Bucket.of(of) if isinstance(of, Task) else of).number
    return np.inf if number is None else number
