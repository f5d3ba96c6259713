"""The base of strategies that choose a mode of work in a first episode, and work in this mode in a second episode.

The first episode shows the task, the keys of its documents and a question. Its answer is one word. The second episode
has the rest of the budget, and its root is told the decision. A decision can therefore be counted and scored, and its
price is part of the costs: the tokens of both episodes add up, and so do their critical paths.

If an answer names no mode or several, the fallback mode is played, and the script does not count as executed. Clones
are not told the decision, because the limits of the mode hold for the whole tree.
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
class WorkMode(Strategy):
    """A way to work that can be chosen.

    Attributes:
        word: the answer that chooses it.
        strategy: the strategy that sets its limits.
        note: note in the root's prompt.
    """

    word: str
    strategy: Strategy
    note: Note

    def limits(self, limits: Limits, task: Task) -> Limits:
        return self.strategy.limits(limits, task)

    def prompt_variant(self, context: PlayContext) -> AddNote:
        return AddNote(root=self.note)


@dataclass(frozen=True)
class DecisionEpisode(Strategy):
    """An episode of one turn, whose answer is the decision.

    Attributes:
        note: note in the root's prompt with the question.
        tokens: largest number of tokens of the turn.
    """

    note: Note
    tokens: int

    def limits(self, limits: Limits, task: Task) -> Limits:
        return limit_to_one_turn(limits, self.tokens)

    def prompt_variant(self, context: PlayContext) -> AddNote:
        return AddNote(root=self.note)


@stored_as(decision_tokens="decision_tokens")
@dataclass(frozen=True)
class DecisionStrategy(Strategy, Checked):
    """Chooses one of its `work_modes`, and then works in this mode.

    Attributes:
        decision_tokens: largest number of tokens of the turn that decides.
    """

    in_series: ClassVar[bool] = True
    decision_tokens: Count = 32

    def work_modes(self) -> tuple[WorkMode, ...]:
        raise NotImplementedError(f"{type(self).__name__} has no work_modes()")

    def question(self) -> Note:
        raise NotImplementedError(f"{type(self).__name__} has no question()")

    def fallback(self) -> str:
        """Return the word of the mode for a decision that cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} has no fallback()")

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)

    def prompt_variant(self, context: PlayContext) -> AddNote | None:
        return AddNote(root=self.question())

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        decision_episode = DecisionEpisode(self.question(), self.decision_tokens)
        all_limits = [context.limits] * len(instances)
        decisions = decision_episode.play_once(instances, all_limits, 0, context, player)
        episodes: list[Episodes] = [(decision,) for decision in decisions]
        for mode in self.work_modes():
            # A root without a turn has not decided. Its prompt did not fit, and would not fit in the second episode.
            positions = [i for i, d in enumerate(decisions) if d.root.turns and self._get_word(d) == mode.word]
            limits_left = [subtract_costs(context.limits, episodes[i]) for i in positions]
            records = mode.play_once([instances[i] for i in positions], limits_left, 1, context, player)
            for i, record in zip(positions, records, strict=True):
                episodes[i] += (record,)
        return episodes

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return len(episodes) - 1

    def executed(self, episodes: Episodes) -> bool | None:
        return find_word(episodes[0].answer, self._words) is not None

    def _get_word(self, decision: EpisodeRecord) -> str:
        return find_word(decision.answer, self._words) or self.fallback()

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(mode.word for mode in self.work_modes())


def find_word(answer: str | None, words: Iterable[str]) -> str | None:
    """Return the one word that an answer names; `None` if it names no word, or several.

    An answer of one word may be the beginning of the word, such as `del` for `delegate`.
    """
    answer_words = re.findall(r"[a-z]+", (answer or "").lower())
    matches = [word for word in words if word in answer_words]
    if not matches and len(answer_words) == 1:
        matches = [word for word in words if word.startswith(answer_words[0])]
    return matches[0] if len(matches) == 1 else None


def limit_to_one_turn(limits: Limits, tokens: int) -> Limits:
    """Return the limits of an episode of one turn with at most this number of tokens."""
    if limits.turn_tokens is not None:
        tokens = min(tokens, limits.turn_tokens)
    # The only turn is the answer, so a reserve above its tokens has no use.
    return replace(limits, max_turns=1, turn_tokens=tokens, answer_reserve=min(limits.answer_reserve, tokens))


def subtract_costs(limits: Limits, episodes: Episodes) -> Limits:
    """Return the limits less the costs of these episodes.

    If too little is left for a prompt, the next episode ends without a turn, and its status gives the reason.
    """
    limits_left: dict[str, int] = {}
    for name in ("total_tokens", "generated_tokens"):
        limit = getattr(limits, name)
        if limit is not None:
            limits_left[name] = max(0, limit - sum(getattr(episode.cost, name) for episode in episodes))
    answer_reserve = min(limits.answer_reserve, *limits_left.values()) if limits_left else limits.answer_reserve
    return replace(limits, answer_reserve=answer_reserve, **limits_left)
