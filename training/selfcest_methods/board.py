"""`board` lets clones leave notes for the later clones of the same parent.

Source: Learning to Share (Fioresi et al., arXiv 2602.05965). Only the abstract could be read, and no code is released.
In the paper teams that work side by side share a memory, and a controller, a model of its own, is trained to admit
entries by their later use. Here a note is shown when its whole call has joined, and the policy decides what it writes.
The controller is left out: notes are shown whole, so a use cannot be observed. Details: docs/methods.md.

Expected effect: a later clone does not repeat work that a note tells, and total tokens fall at the same answer.
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
    """The policy delegates, and its clones may leave notes.

    Attributes:
        posts: largest number of notes that a clone is shown; the latest are shown.
    """

    # Raise it when the cost of a board changes.
    version: ClassVar[int] = 1
    posts: Count = 8

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)

    def prompt_variant(self, context: PlayContext) -> AddBoard:
        return AddBoard(self.posts)
