"""`budgets` plays every group under a budget drawn for it, as L1 conditions a policy on a length (arXiv 2503.04697).
If it works, one policy is as good at every budget as a policy that was trained at this budget alone.

    total_tokens ~ uniform over `totals`, or log-uniform from the first to the second of `between`;   one draw per group

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Count, Distinct
from selfcest_env.types import Limits
from selfcest_methods.knapsack import Knapsack
from selfcest_methods.limit_changing import SetsLimit, SetsLimitOptions
from selfcest_training.config import changed_limits
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@dataclass(frozen=True)
class BudgetsOptions(SetsLimitOptions):
    """Attributes, besides those of `SetsLimit`:

    totals: budgets in tokens.
    between: the smallest and the largest budget, both included; one of the two.
    """

    totals: Annotated[tuple[Count, ...], Distinct()] = ()
    between: tuple[Count, Count] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.totals) == (self.between is not None):
            raise ConfigError(f"totals is {list(self.totals)} and between is {self.between}; set one of the two")
        if self.between is not None and self.between[0] > self.between[1]:
            raise ConfigError(f"between is {list(self.between)}; expected the smaller number first")


class Budgets(SetsLimit):
    """A budget of total tokens for every group."""

    Options = BudgetsOptions
    options: BudgetsOptions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, inside in self.insides():
            if isinstance(inside, Knapsack):
                raise ConfigError(
                    f"the sampler inside, '{name}', hands out rollouts by success rates, and budgets are drawn after "
                    "it: it would take the rate under every budget for the same; expected one that gives every task "
                    "group_size rollouts, such as mixture, dots, eva or scaler"
                )

    @property
    def limit_set(self) -> str:
        return "total_tokens"

    def check_menu(self, menu: TaskMenu) -> None:
        for total in self.options.totals or self.options.between or ():
            self._limits(menu.limits, total)
        super().check_menu(menu)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        plans = self.inside.propose(step, num_tasks, menu, rng)
        return [replace(plan, limits=self._limits(plan.limits or menu.limits, self._draw(rng))) for plan in plans]

    def _draw(self, rng: np.random.Generator) -> int:
        if self.options.between is None:
            return self.options.totals[int(rng.integers(len(self.options.totals)))]
        low, high = self.options.between
        return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))

    def _limits(self, limits: Limits, total: int) -> Limits:
        if limits.total_tokens is not None and total > limits.total_tokens:
            raise ConfigError(
                f"task sampler 'budgets': a budget of {total} tokens is above limits.total_tokens = "
                f"{limits.total_tokens}; raise the limit, or lower the budget"
            )
        return changed_limits(limits, {"total_tokens": total}, "task sampler 'budgets': limits")
