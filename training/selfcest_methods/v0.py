"""`v0` is `knapsack` with success rates that a regression predicts from the task and its budget.

Source: V_0 (arXiv 2602.03584), its use as an allocator of rollouts. In the paper a large model is trained once and told
of the policy by examples. Here a small regression is fitted again after every step. Details: docs/methods.md.

    p(task) = logistic regression on family, size, documents and budget, fitted on earlier steps

Expected effect: a good allocation at sizes and budgets that were never seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Above
from selfcest_env.types import Task
from selfcest_methods.buckets import BucketMemory, Floats, SuccessSums
from selfcest_methods.knapsack import Knapsack, KnapsackOptions
from selfcest_methods.state_zero import TaskValue, get_task_features
from selfcest_training.credit import succeeded
from selfcest_training.stages.base import TaskMenu


@dataclass(frozen=True)
class V0Options(KnapsackOptions):
    """Options in addition to those of `Knapsack`.

    Attributes:
        ridge: penalty of the regression, in rollouts.
    """

    ridge: Annotated[float, Above(0)] = 0.1


class V0(Knapsack):
    """A knapsack sampler with predicted success rates; tokens are predicted by bucket, as in `Knapsack`."""

    Options = V0Options
    options: V0Options
    state: _V0State

    def predict_rates(self, tasks: Sequence[Task], menu: TaskMenu) -> Floats:
        return np.array([self.state.value(get_task_features(task, menu.limits)) for task in tasks])

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        super().observe(step, groups)
        targets = []
        for group in groups:
            for episode in group.episodes:
                features = get_task_features(episode.task, episode.limits)
                targets.append((features, float(succeeded(episode, self.options.term))))
        # Each round decays the regression, so a later round of a step counts as a step of its own.
        self.state.value.fit(targets)

    def initial_state(self) -> _V0State:
        value = TaskValue(self.options.decay, self.options.ridge, "logit")
        return _V0State(BucketMemory(self.sums_class), value)

    @property
    def memory(self) -> BucketMemory[SuccessSums]:
        return self.state.memory


@dataclass
class _V0State:
    memory: BucketMemory[SuccessSums]
    value: TaskValue

    def state_dict(self) -> Mapping[str, Any]:
        return {"buckets": self.memory.state_dict(), "value": self.value.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.load_state_dict(state["buckets"])
        self.value.load_state_dict(state["value"])
