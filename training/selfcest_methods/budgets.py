"""`budgets` plays every group under a budget of total tokens that is drawn for it.

Source: L1 (arXiv 2503.04697), which conditions a policy on a length in its prompt by a penalty. Here the game ends at
the budget, and the prompt format must show it. Details: docs/methods.md.

    total_tokens ~ uniform over `totals`, or log-uniform from the first to the second of `between`;   one draw per group

Expected effect: at every budget, one policy is as good as a policy that was trained at this budget only.
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
from selfcest_methods.limit_changing import LimitChangingOptions, LimitChangingSampler
from selfcest_training.config import override_limits
from selfcest_training.stages.base import PlannedGroup, TaskMenu


@dataclass(frozen=True)
class BudgetsOptions(LimitChangingOptions):
    """Options in addition to those of `LimitChangingSampler`. Exactly one of the two must be set.

    Attributes:
        totals: budgets in tokens.
        between: the smallest and the largest budget in tokens, both included.
    """

    totals: Annotated[tuple[Count, ...], Distinct()] = ()
    between: tuple[Count, Count] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.totals) == (self.between is not None):
            raise ConfigError(f"totals is {list(self.totals)} and between is {self.between}; set one of the two")
        if self.between is not None and self.between[0] > self.between[1]:
            raise ConfigError(f"between is {list(self.between)}; expected the smaller number first")


class Budgets(LimitChangingSampler):
    """A task sampler that draws `total_tokens` for each group."""

    Options = BudgetsOptions
    options: BudgetsOptions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, sampler in self.inner_samplers():
            # Its rates would be means over all budgets, and never those of the budget that a group gets.
            if isinstance(sampler, Knapsack):
                raise ConfigError(
                    f"the inner sampler '{name}' allocates rollouts by success rates, which depend on the budget that "
                    "is drawn later; use one that gives every task group_size rollouts, such as mixture, dots, eva or "
                    "scaler"
                )

    @property
    def changed_limit(self) -> str:
        return "total_tokens"

    def check_menu(self, menu: TaskMenu) -> None:
        for total in self.options.totals or self.options.between or ():
            self._set_budget(menu.limits, total)
        super().check_menu(menu)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        plans = self.inner.propose(step, num_tasks, menu, rng)
        # One draw per group and not per episode, so that a group baseline compares episodes of equal budget.
        return [replace(plan, limits=self._set_budget(plan.limits or menu.limits, self._draw(rng))) for plan in plans]

    def _draw(self, rng: np.random.Generator) -> int:
        if self.options.between is None:
            return self.options.totals[int(rng.integers(len(self.options.totals)))]
        low, high = self.options.between
        # The logarithm of `high + 1` is excluded, and rounding could still reach it.
        return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))

    def _set_budget(self, limits: Limits, total: int) -> Limits:
        if limits.total_tokens is not None and total > limits.total_tokens:
            raise ConfigError(
                f"task sampler 'budgets': a budget of {total} tokens is above limits.total_tokens = "
                f"{limits.total_tokens}; raise the limit, or lower the budget"
            )
        return override_limits(limits, {"total_tokens": total}, "task sampler 'budgets': limits")
