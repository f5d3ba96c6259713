"""The base of strategies that first decide how to work, in an episode of its own, and then work so.

The first episode shows the task, the keys of its documents and a question, and its answer is one word; the second has
what the first has left of the budget, and is told what was decided. So a decision can be read, counted and scored,
and its price is in the costs: both episodes' tokens add up, and so do their critical paths, since the second waits.
An answer that names no way, or several, is taken for the fallback; *script executed* is the share of readable ones.
In a tree, clones are told nothing: a decision is the root's, and limits hold it for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from selfcest_agents.player import Player
from selfcest_env.graders import Grade
from selfcest_env.protocol import Note
from selfcest_env.record import EpisodeRecord
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.text.prompt_variants import AddNote
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy, check_delegation


@dataclass(frozen=True)
class Way(Strategy):
    """A way to work that can be decided for.

    Attributes:
        word: that decides for it.
        means: of whom it has the limits.
        says: what the root is told when it works so.
    """

    word: str
    means: Strategy
    says: Note

    def limits(self, limits: Limits, task: Task) -> Limits:
        return self.means.limits(limits, task)

    def prompt_variant(self, context: PlayContext) -> AddNote:
        return AddNote(root=self.says)


@dataclass(frozen=True)
class Question(Strategy):
    """An episode that decides: one turn of few tokens, with the keys of the documents in sight."""

    says: Note
    tokens: int

    def limits(self, limits: Limits, task: Task) -> Limits:
        return one_turn(limits, self.tokens)

    def prompt_variant(self, context: PlayContext) -> AddNote:
        return AddNote(root=self.says)


@stored_as(decision_tokens="decision_tokens")
@dataclass(frozen=True)
class Deciding(Strategy, Checked):
    """Decides for one of its `ways`, and then works so.

    Attributes:
        decision_tokens: of the turn that decides.
    """

    in_series: ClassVar[bool] = True
    decision_tokens: Count = 32

    def ways(self) -> tuple[Way, ...]:
        raise NotImplementedError(f"{type(self).__name__} has no ways()")

    def question(self) -> Note:
        raise NotImplementedError(f"{type(self).__name__} has no question()")

    def fallback(self) -> str:
        """The word of the way that is taken when the decision cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} has no fallback()")

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)

    def prompt_variant(self, context: PlayContext) -> AddNote | None:
        return AddNote(root=self.question())

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        asked = Question(self.question(), self.decision_tokens)
        first = asked.play_once(instances, [context.limits] * len(instances), 0, context, player)
        played: list[Episodes] = [(record,) for record in first]
        for way in self.ways():
            so = [i for i, record in enumerate(first) if record.root.turns and self._word(record) == way.word]
            records = way.play_once(
                [instances[i] for i in so], [rest(context.limits, played[i]) for i in so], 1, context, player
            )
            for i, record in zip(so, records, strict=True):
                played[i] += (record,)
        return played

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return len(episodes) - 1

    def executed(self, episodes: Episodes) -> bool | None:
        return word_in(episodes[0].answer, self._words) is not None

    def _word(self, record: EpisodeRecord) -> str:
        return word_in(record.answer, self._words) or self.fallback()

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(way.word for way in self.ways())


def word_in(answer: str | None, words: Iterable[str]) -> str | None:
    """The one of the words that an answer names, or of which it is the beginning; `None` if there is not just one."""
    said = re.findall(r"[a-z]+", (answer or "").lower())
    named = [word for word in words if word in said]
    begun = [word for word in words if len(said) == 1 and word.startswith(said[0])]
    found = named or begun
    return found[0] if len(found) == 1 else None


def one_turn(limits: Limits, tokens: int) -> Limits:
    """One turn of so many tokens: what it keeps for an answer is in it."""
    tokens = tokens if limits.turn_tokens is None else min(tokens, limits.turn_tokens)
    return replace(limits, max_turns=1, turn_tokens=tokens, answer_reserve=min(limits.answer_reserve, tokens))


def rest(limits: Limits, episodes: Episodes) -> Limits:
    """The limits with what episodes have used taken off. An episode that nothing is left for ends by its prompt."""
    left = {
        name: max(0, limit - sum(getattr(episode.cost, name) for episode in episodes))
        for name in ("total_tokens", "generated_tokens")
        if (limit := getattr(limits, name)) is not None
    }
    return replace(limits, answer_reserve=min(limits.answer_reserve, *left.values()), **left) if left else limits
