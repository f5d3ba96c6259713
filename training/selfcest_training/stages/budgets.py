"""`budgets`: as another task sampler, and every group is played under a budget of total tokens that is drawn for it.

    total_tokens ~ uniform over `totals`, or log-uniform from the first to the second of `between`;   one draw per group

So that one policy is trained for many budgets, and knows which: it must be shown its budget, which the protocols
`hermes` and `terse_budget` do. Source: a budget as an input of the policy, as in conditional computation and in
models that are told how long to think (L1, arXiv 2503.04697, conditions on a length in the prompt by a penalty; here
the game itself ends at the budget). Drawn per group and not per episode, so that a group baseline compares like with
like: within a group the return differs by what was played, not by what was allowed. The budget is drawn after the
task and whatever it is.

In a tree the budget is the tree's: root and clones pay from nested accounts, and every clone is told its own grant.
Other limits stay as they are. Draws may not be above the arm's own total_tokens, which bounds contexts and the model.
A gate that joins groups of one task must keep those of different budgets apart. Degenerate case: one total is that
limit for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked, Count, Distinct
from selfcest_env.types import Limits
from selfcest_training.config import changed_limits
from selfcest_training.stages.base import LimitsBound, PlannedGroup, Stateful, TaskMenu, TaskSampler
from selfcest_training.stages.registry import make_task_sampler


@dataclass(frozen=True)
class Budgets(Checked):
    """Attributes:
    totals: budgets in tokens.
    between: the smallest and the largest budget, both included; one of the two.
    sampler: who chooses tasks and rollouts.
    """

    totals: Annotated[tuple[Count, ...], Distinct()] = ()
    between: tuple[Count, Count] | None = None
    sampler: PlugIn = field(default_factory=lambda: PlugIn("mixture"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.totals) == (self.between is not None):
            raise ConfigError(f"totals is {list(self.totals)} and between is {self.between}; set one of the two")
        if self.between is not None and self.between[0] > self.between[1]:
            raise ConfigError(f"between is {list(self.between)}; expected the smaller number first")
        _ = self._inside  # what is wrong with it is wrong with the config

    def check_limits(self, limits: Limits) -> None:
        for total in self.totals or self.between or ():
            self._limits(limits, total)
        if isinstance(self._inside, LimitsBound):
            self._inside.check_limits(limits)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        plans = self._inside.propose(step, num_tasks, menu, rng)
        return [replace(plan, limits=self._limits(plan.limits or menu.limits, self._draw(rng))) for plan in plans]

    def _draw(self, rng: np.random.Generator) -> int:
        if self.between is None:
            return self.totals[int(rng.integers(len(self.totals)))]
        low, high = self.between
        return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))

    def _limits(self, limits: Limits, total: int) -> Limits:
        if limits.total_tokens is not None and total > limits.total_tokens:
            raise ConfigError(
                f"task sampler 'budgets': a budget of {total} tokens is above limits.total_tokens = "
                f"{limits.total_tokens}; raise the limit, or lower the budget"
            )
        return changed_limits(limits, {"total_tokens": total}, "task sampler 'budgets': limits")

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        self._inside.observe(step, groups)

    def state_dict(self) -> Mapping[str, Any]:
        return {"sampler": dict(self._inside.state_dict()) if isinstance(self._inside, Stateful) else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if isinstance(self._inside, Stateful):
            self._inside.load_state_dict(state["sampler"])

    @cached_property
    def _inside(self) -> TaskSampler:
        return make_task_sampler(self.sampler, "sampler")
