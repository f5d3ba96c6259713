"""`decide_first` asks for the decision to delegate in an episode of its own.

Source: AdaSearch (Lin et al., arXiv 2512.16883). Only the abstract could be read, and its repository has no code of the
method. In the paper the model decides whether to search, and answers from its weights if not. Here it decides whether
to delegate, and sees the documents if not. The two stages of training are left out, since the abstract does not state
their rewards. Details: docs/methods.md.

Expected effect: every task has one stated decision, which the play follows and which is scored against forced play.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from selfcest_env.protocol import Note
from selfcest_env.stored import stored_as
from selfcest_eval.play.strategies import DelegatingStrategy, Monolithic, MonolithicRead
from selfcest_methods.deciding import DecisionStrategy, WorkMode


@stored_as("selfcest_training.evaluation.decide_first:DecideFirst", reads="reads", otherwise="otherwise")
@dataclass(frozen=True)
class DecideFirst(DecisionStrategy):
    """The policy decides whether it delegates or works alone, and then does so.

    Attributes:
        reads: whether a root that works alone reads documents by key; if not, its prompt has all texts.
        otherwise: the mode for a decision that cannot be read.
    """

    decides_first: ClassVar[bool] = True
    reads: bool = False
    otherwise: Literal["alone", "delegate"] = "delegate"

    def work_modes(self) -> tuple[WorkMode, ...]:
        alone = MonolithicRead() if self.reads else Monolithic()
        return (
            WorkMode("alone", alone, Note("You have decided to work alone.", 1)),
            WorkMode("delegate", DelegatingStrategy(), Note("You have decided to delegate.", 2)),
        )

    def question(self) -> Note:
        return Note(
            "Do not solve the task yet. First decide: can you answer it alone, from what you know and what its "
            "documents say, or do you need clones? Answer with one word: alone or delegate.",
            0,
        )

    def fallback(self) -> str:
        return self.otherwise
