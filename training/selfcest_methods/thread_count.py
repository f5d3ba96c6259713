"""`thread_count` tells the policy how many clones it may start.

Source: Adaptive Parallel Reasoning (Pan et al., arXiv 2504.15466, from a summary). In the paper demonstrations have
exactly as many threads as the prompt says. Here the number is a limit, and an upper bound for a policy that was not
trained with it. Details: docs/methods.md.

Expected effect: a policy that was trained for it spawns more clones at a higher number, and its accuracy rises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.text.prompt_variants import AddCloneLimit
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import PlayContext, Strategy, check_delegation


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
