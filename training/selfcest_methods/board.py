"""`board` lets clones leave notes for the later clones of the same parent, after Learning to Share (Fioresi et al.,
arXiv 2602.05965). If it works, later calls repeat less work, and total tokens fall at equal accuracy.

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.text.prompt_variants import AddBoard
from selfcest_eval.play.strategies import PlayContext, Strategy, check_delegation


@stored_as("selfcest_training.evaluation.board:Board", posts="posts")
@dataclass(frozen=True)
class NoteBoard(Strategy, Checked):
    """The policy delegates, and its clones may leave notes to those that come after them.

    Attributes:
        posts: that a clone is shown, at most: the latest.
    """

    version: ClassVar[int] = 1  # what a board costs
    posts: Count = 8

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)

    def prompt_variant(self, context: PlayContext) -> AddBoard:
        return AddBoard(self.posts)
