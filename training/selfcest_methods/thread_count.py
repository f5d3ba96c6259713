"""`thread_count` tells the policy how many clones it may start: a task sampler for training, a strategy for play.

Source: Adaptive Parallel Reasoning (Pan et al., arXiv 2504.15466) and its released code. There each demonstration
states how many child threads it has per parent, and RL states no number or always 10. Here RL draws a number for each
group. The number is a limit, and the prompt format must show it (`terse_clones`, `hermes_clones`). With 0 the root
works alone. Details: docs/methods.md.

    max_clones ~ uniform over `counts`;   one draw per group

Expected effect: a policy that was trained with drawn numbers spawns more clones at a higher number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count, Distinct, NotEmpty, Size
from selfcest_env.text.prompt_variants import AddCloneLimit
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import PlayContext, Strategy, check_delegation
from selfcest_methods.limit_changing import LimitChangingOptions, LimitDrawingSampler


@dataclass(frozen=True)
class ThreadCountsOptions(LimitChangingOptions):
    """Options in addition to those of `LimitChangingSampler`.

    Attributes:
        counts: numbers of clones of the whole tree, each as probable as the others.
    """

    counts: Annotated[tuple[Size, ...], NotEmpty(), Distinct()]


class ThreadCounts(LimitDrawingSampler):
    """A task sampler that draws `max_clones` for each group."""

    name: ClassVar[str] = "thread_count"

    Options = ThreadCountsOptions
    options: ThreadCountsOptions

    @property
    def changed_limit(self) -> str:
        return "max_clones"

    @property
    def values(self) -> Sequence[int]:
        return self.options.counts


@stored_as("selfcest_training.evaluation.thread_count:ThreadCount", threads="threads")
@dataclass(frozen=True)
class ThreadCount(Strategy, Checked):
    """The policy delegates, and its prompt has the limit of clones.

    Attributes:
        threads: largest number of clones of the whole tree.
    """

    threads: Count = 4

    def limits(self, limits: Limits, task: Task) -> Limits:
        # One call may use up the whole number.
        return replace(limits, max_clones=self.threads, max_clones_per_call=self.threads)

    def prompt_variant(self, context: PlayContext) -> AddCloneLimit:
        return AddCloneLimit()

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, self.threads)
