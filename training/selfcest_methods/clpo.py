"""`clpo` follows up hard tasks with an easier twin, and tasks of medium difficulty with another task of their size.

Source: CLPO (arXiv 2509.25004), its online curriculum and problem restructuring. In the paper the policy rewrites the
problem and is trained on the rewriting. Here the generator of the family draws the twin, so its answer is known.
Details: docs/methods.md.

    accuracy of a task = share of its rollouts that are right
    accuracy <= hard:            a twin of the family and of the next smaller size that is drawn
    hard < accuracy <= medium:   a twin of the family and size with other contents
    medium < accuracy:           no twin

Expected effect: accuracy on hard sizes rises earlier than with `mixture`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from selfcest_env.plugin import Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.stored import by_field, stored_as, to_stored
from selfcest_env.structure import Checked, Count, Share, check_order
from selfcest_env.types import Task
from selfcest_methods.buckets import SuccessSums, draw_from_menu
from selfcest_training.credit.base import ReadsTerm
from selfcest_training.families import Bucket, draw_task
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@stored_as(bucket="bucket", task_id="task_id", easier="easier")
@dataclass(frozen=True)
class TwinRequest:
    """A task that gets a twin.

    Attributes:
        bucket: bucket of the task.
        task_id: id of the task.
        easier: whether the twin is smaller; if not, it has the same size.
    """

    bucket: Bucket
    task_id: str
    easier: bool


@dataclass
class TwinQueue:
    """Twins that were not proposed yet.

    Attributes:
        step: step of the tasks that get a twin; -1 before any.
        requests: requests in the order of the tasks.
    """

    step: int = -1
    requests: list[TwinRequest] = field(default_factory=list)

    def state_dict(self) -> Mapping[str, Any]:
        return {"step": self.step, "waiting": [to_stored(request) for request in self.requests]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.step = state["step"]
        self.requests = []
        for stored in state["waiting"]:
            values = by_field(TwinRequest, stored)
            values["bucket"] = Bucket(**by_field(Bucket, values["bucket"]))
            self.requests.append(TwinRequest(**values))


@dataclass(frozen=True)
class ClpoOptions(ReadsTerm, Checked):
    """Options of `Clpo`.

    Attributes:
        hard: highest accuracy of a hard task.
        medium: highest accuracy of a task of medium difficulty.
        share: largest share of a step's tasks that are twins.
        tries: number of draws of a family in search of a twin.
        term: reward term that is above 0 for a right episode.
    """

    hard: Share = 0.25
    medium: Share = 0.75
    share: Share = 0.5
    tries: Count = 64
    term: str = "correct"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "hard", "medium")


class Clpo(Stateful[TwinQueue]):
    """A task sampler that proposes twins of earlier tasks and fresh tasks."""

    Options = ClpoOptions
    options: ClpoOptions

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        # Further requests wait for a later round of the same step.
        max_twins = int(self.options.share * num_tasks)
        requests = self.state.requests[:max_twins]
        del self.state.requests[:max_twins]
        tasks = []
        for request in requests:
            draw_twin = self._draw_easier_twin if request.easier else self._draw_similar_twin
            twin = draw_twin(request, menu, rng)
            if twin is not None:
                tasks.append(twin)
        while len(tasks) < num_tasks:
            tasks.append(draw_from_menu(menu, rng))
        return [PlannedGroup(task, menu.group_size) for task in tasks]

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        if step != self.state.step:
            # Twins of an earlier step that were not proposed by now are dropped.
            self.state.step = step
            self.state.requests = []
        for group in groups:
            accuracy = SuccessSums.of(group, self.options.term).success_rate
            # A twin has no twin of its own.
            if accuracy <= self.options.medium and "twin" not in group.task.metadata:
                is_hard = accuracy <= self.options.hard
                self.state.requests.append(TwinRequest(Bucket.of(group.task), group.task.task_id, is_hard))

    def _draw_similar_twin(self, request: TwinRequest, menu: TaskMenu, rng: np.random.Generator) -> Task | None:
        """Return the first drawn task of the same size with another id, or `None` if no try has one."""
        for _ in range(self.options.tries):
            task = self._draw_task(request, menu, rng)
            if Bucket.of(task) == request.bucket and task.task_id != request.task_id:
                return task
        return None

    def _draw_easier_twin(self, request: TwinRequest, menu: TaskMenu, rng: np.random.Generator) -> Task | None:
        """Return the largest of the drawn tasks that are smaller, or `None` if no try has one."""
        # Sizes that are no numbers have no order.
        if request.bucket.number is None:
            return None
        largest = None
        largest_size = -math.inf
        for _ in range(self.options.tries):
            task = self._draw_task(request, menu, rng)
            size = Bucket.of(task).number
            if size is not None and largest_size < size < request.bucket.number:
                largest = task
                largest_size = size
        return largest

    @staticmethod
    def _draw_task(request: TwinRequest, menu: TaskMenu, rng: np.random.Generator) -> Task:
        family = request.bucket.family
        return draw_task(family, menu.sources[family], rng, twin=1)  # metadata, by which `observe` knows a twin

    def initial_state(self) -> TwinQueue:
        return TwinQueue()
