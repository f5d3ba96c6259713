"""A board of what was found (Fioresi et al., Learning to Share, arXiv 2602.05965), for the clones of one parent.

There, teams that work side by side share a memory of keys and texts, a small controller decides which steps are
admitted, and it is trained with credit for entries that were used, and a penalty for admitting all. Its abstract and
what others say of it could be read. Here, by the rule that nothing an agent sees depends on a running sibling, a note
is seen when its whole call has joined: not by teams side by side, but by the clones of the same parent's later calls,
which is the tree's other place for work that is done twice. Who admits is the policy: a clone writes a note or it
does not, so admission is learned as all else is, by any credit scheme; a rule bounds the notes that are shown. They
are shown whole and not by key. Credit for used notes, and the controller, are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.text.prompt_variants import TellBoard
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

    def prompt_variant(self, context: PlayContext) -> TellBoard:
        return TellBoard(self.posts)
