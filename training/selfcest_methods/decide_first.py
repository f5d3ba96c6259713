"""An explicit decision to delegate (Lin et al., AdaSearch, arXiv 2512.16883), in two stages.

Solving is disentangled from the decision to search, and the decision is made explicit, in two stages of training and
of inference. Only its abstract could be read: the words of the question, and that an unreadable decision delegates,
are ours. There, to search is to use what the model does not know; here, to delegate is to use clones, so who works
alone sees the documents. Its F1 is that of `evaluation.decision`: of having had clones, where they earn more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from selfcest_env.protocol import Note
from selfcest_env.stored import stored_as
from selfcest_eval.play.strategies import DelegatingStrategy, Monolithic, MonolithicRead
from selfcest_methods.deciding import Deciding, Way


@stored_as("selfcest_training.evaluation.decide_first:DecideFirst", reads="reads", otherwise="otherwise")
@dataclass(frozen=True)
class DecideFirst(Deciding):
    """Decides to delegate or to work alone, and then does it.

    Attributes:
        reads: who works alone reads documents by key and does not see all texts.
        otherwise: what an unreadable decision is taken for.
    """

    decides_first: ClassVar[bool] = True
    reads: bool = False
    otherwise: Literal["alone", "delegate"] = "delegate"

    def ways(self) -> tuple[Way, ...]:
        alone = MonolithicRead() if self.reads else Monolithic()
        return (
            Way("alone", alone, Note("You have decided to work alone.", 1)),
            Way("delegate", DelegatingStrategy(), Note("You have decided to delegate.", 2)),
        )

    def question(self) -> Note:
        return Note(
            "Do not solve the task yet. First decide: can you answer it alone, from what you know and what its "
            "documents say, or do you need clones? Answer with one word: alone or delegate.",
            0,
        )

    def fallback(self) -> str:
        return self.otherwise
