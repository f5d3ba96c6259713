"""`v0` is `knapsack` with success rates predicted from the task, after V_0 (arXiv 2602.03584). If it works, it
allocates well at sizes and budgets that it has not seen.

    p(task) = logistic regression on family, size, documents and budget, fitted on earlier steps

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Above
from selfcest_env.types import Task
from selfcest_methods.buckets import Floats, Tallies, Tally
from selfcest_methods.knapsack import Knapsack, KnapsackOptions
from selfcest_methods.state_zero import TaskValue, cell_of
from selfcest_training.credit import succeeded
from selfcest_training.stages.base import TaskMenu


@dataclass(frozen=True)
class V0Options(KnapsackOptions):
    """Attributes, besides those of `Knapsack`:

    ridge: of the regression, in rollouts.
    """

    ridge: Annotated[float, Above(0)] = 0.1


class V0(Knapsack):
    """`Knapsack` with success rates that a regression predicts."""

    Options = V0Options
    options: V0Options
    state: _V0State

    def rates(self, tasks: Sequence[Task], menu: TaskMenu) -> Floats:
        return np.array([self.state.value(cell_of(task, menu.limits)) for task in tasks])

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """A later round of a step is fitted as a step of its own."""
        super().observe(step, groups)
        episodes = [episode for group in groups for episode in group.episodes]
        self.state.value.fit([(cell_of(e.task, e.limits), float(succeeded(e, self.options.term))) for e in episodes])

    def initial_state(self) -> _V0State:
        return _V0State(Tallies(self.kept), TaskValue(self.options.decay, self.options.ridge, "logit"))

    @property
    def tallies(self) -> Tallies[Tally]:
        return self.state.tallies


@dataclass
class _V0State:
    tallies: Tallies[Tally]
    value: TaskValue

    def state_dict(self) -> Mapping[str, Any]:
        return {"buckets": self.tallies.state_dict(), "value": self.value.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tallies.load_state_dict(state["buckets"])
        self.value.load_state_dict(state["value"])
