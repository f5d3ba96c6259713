"""`budgets` plays every group under a budget of total tokens that is drawn for it.

Source: L1 (arXiv 2503.04697), which conditions a policy on a length in its prompt by a penalty. Here the game ends at
the budget, and the prompt format must show it. Details: docs/methods.md.

    total_tokens ~ uniform over `totals`, or log-uniform from the first to the second of `between`;   one draw per group

Expected effect: at every budget, one policy is as good as a policy that was trained at this budget only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Count, Distinct
from selfcest_methods.limit_changing import LimitChangingOptions, LimitDrawingSampler


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


class Budgets(LimitDrawingSampler):
    """A task sampler that draws `total_tokens` for each group."""

    name: ClassVar[str] = "budgets"

    Options = BudgetsOptions
    options: BudgetsOptions

    @property
    def changed_limit(self) -> str:
        return "total_tokens"

    @property
    def values(self) -> Sequence[int]:
        return self.options.totals or self.options.between or ()

    def draw(self, rng: np.random.Generator) -> int:
        if self.options.between is None:
            return super().draw(rng)
        low, high = self.options.between
        # The logarithm of `high + 1` is excluded, and rounding could still reach it.
        return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))
