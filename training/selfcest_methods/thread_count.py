"""Conditioning on a number of threads (Pan et al., Adaptive Parallel Reasoning, arXiv 2504.15466).

Compute is controlled by conditioning the policy on the number of child threads of a parent. `spawn_join` scripts the
call and so has no choice to condition; here the policy calls by itself, its prompt says the number, and the limits
hold it. The paper's demonstrations have as many threads as they are told; a policy that was not trained so reads an
upper bound. In a tree the number is an agent's account of clones: the root's is the whole, and a clone that may
delegate is told its own share. To train a policy so, the protocols `hermes_clones` and `terse_clones` say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.text.prompt_variants import TellClones
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import PlayContext, Strategy, check_delegation


@stored_as("selfcest_training.evaluation.thread_count:ThreadCount", threads="threads")
@dataclass(frozen=True)
class ThreadCount(Strategy, Checked):
    """The policy delegates, and is told how many clones it may start.

    Attributes:
        threads: of the whole tree.
    """

    threads: Count = 4

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_clones=self.threads, max_clones_per_call=self.threads)

    def prompt_variant(self, context: PlayContext) -> TellClones:
        return TellClones()

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, self.threads)
