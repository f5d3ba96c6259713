"""`decide_first` asks for the decision to delegate in an episode of its own, after AdaSearch (Lin et al., arXiv
2512.16883). If it works, precision and recall of delegation rise over those of a policy that decides as it works.

docs/methods.md has what the paper leaves open and what was chosen here.
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
