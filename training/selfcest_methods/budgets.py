"""`budgets`: as another task sampler, and every group is played under a budget of total tokens that is drawn for it.

    total_tokens ~ uniform over `totals`, or log-uniform from the first to the second of `between`;   one draw per group

So that one policy is trained for many budgets, and knows which: it must be shown its budget, which the protocols
`hermes` and `terse_budget` do. Source: a budget as an input of the policy, as in conditional computation and in
models that are told how long to think (L1, arXiv 2503.04697, conditions on a length in the prompt by a penalty; here
the game itself ends at the budget). Drawn per group and not per episode, so that a group baseline compares like with
like: within a group the return differs by what was played, not by what was allowed. The budget is drawn after the
task and whatever it is; so a sampler inside that hands out rollouts by success rates (`knapsack`, `v0`) is refused: its
rates would be means over all budgets, or those of the variant's limit, and never those of the budget that a group gets.

In a tree the budget is the tree's: root and clones pay from nested accounts, and every clone is told its own grant.
Other limits stay as they are. Draws may not be above the variant's own total_tokens, which bounds contexts and the
model. A filter that joins groups of one task must keep those of different budgets apart. Degenerate case: one total is
that limit for all.
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
