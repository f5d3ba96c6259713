"""Strategies that play a task several times by itself: the majority's answer, or the best one by an oracle."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from selfcest_agents.player import Player
from selfcest_env.errors import ConfigError
from selfcest_env.graders import Grade
from selfcest_env.graders.boxed import extract_last_boxed
from selfcest_env.graders.latex import normalise, strip_variable_name
from selfcest_env.graders.qa import normalize_answer
from selfcest_env.graders.rational import parse_rational
from selfcest_env.stored import declared_name, stored_as, to_stored
from selfcest_env.structure import Checked, Count, Size
from selfcest_env.tasks import Style
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy

_WORD = re.compile(r"[^\W\d_]{2}")
_OPERATION = re.compile(r"[\\^_=+*/<>{}|]|(?<![^\W\d_]{2})[-−]|[-−](?![^\W\d_]{2})")  # no hyphen in a word


@stored_as("selfcest_training.evaluation.samples:Samples", samples="samples", max_reads="max_reads")
@dataclass(frozen=True)
class Samples(Strategy, Checked):
    """Samples of the monolithic policy, one after the other, each with what the earlier ones left of the budget.

    Another sample starts if what is left could pay the dearest one so far. All tokens of all samples count.

    Attributes:
        samples: at most.
        max_reads: documents that a sample may read by key; 0: it sees the full text of all.
    """

    delegates: ClassVar[bool] = False
    samples: Count = 8
    max_reads: Size | None = 0

    @property
    def recipe(self) -> Mapping[str, object]:
        return {"strategy": declared_name(Samples), **to_stored(self)}

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_depth=0, max_reads=self.max_reads)

    def styles(self) -> tuple[Style, ...]:
        return (Style.SOLVE if self.max_reads == 0 else Style.READ,)

    def check(self, context: PlayContext) -> None:
        if self.samples > 1 and context.temperature == 0:
            raise ConfigError("temperature is 0, so all samples would be equal; set the strategy's temperature above 0")

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        played: list[Episodes] = [()] * len(instances)
        for sample in range(self.samples):
            left = [(i, limits) for i, done in enumerate(played) if (limits := what_is_left(context.limits, done))]
            records = self.play_once(
                [instances[i] for i, _ in left], [limits for _, limits in left], sample, context, player
            )
            for (i, _), record in zip(left, records, strict=True):
                played[i] += (record,)
        return played


def what_is_left(limits: Limits, episodes: Episodes) -> Limits | None:
    """The limits with what episodes have used taken off; `None` if that could not pay the dearest of them again.

    Also after an episode without a turn, whose prompt did not fit: another would be the same.
    """
    if episodes and not episodes[-1].root.turns:
        return None
    left: dict[str, int] = {}
    for name in ("total_tokens", "generated_tokens"):
        limit, used = getattr(limits, name), [getattr(episode.cost, name) for episode in episodes]
        if limit is None or not used:
            continue
        left[name] = limit - sum(used)
        if left[name] < max(*used, limits.answer_reserve, 1):
            return None
    return replace(limits, **left)


@stored_as("selfcest_training.evaluation.samples:SelfConsistency")
@dataclass(frozen=True)
class SelfConsistency(Samples):
    """The answer that most samples give, compared in normal form; of equally frequent ones the first."""

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return majority([episode.answer for episode in episodes])


@stored_as("selfcest_training.evaluation.samples:BestOfN")
@dataclass(frozen=True)
class BestOfN(Samples):
    """The sample that the grader likes best: an upper bound on what choosing can reach, by an oracle."""

    oracle: ClassVar[bool] = True

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return max(range(len(grades)), key=lambda i: (grades[i].correct, grades[i].score, -i))


def majority(answers: Sequence[str | None]) -> int:
    """The position of the first of the most frequent answers; missing ones have no vote. 0 if there is no answer."""
    forms = {i: normal_form(answer) for i, answer in enumerate(answers) if answer is not None}
    votes = Counter(forms.values())
    return max(forms, key=lambda i: (votes[forms[i]], -i), default=0)


def normal_form(answer: str) -> str:
    r"""An answer without what graders do not count: the last `\boxed{}`, exact values as numbers, words as SQuAD does.

    Formulas keep their signs: `x-1` and `x+1` must not vote for each other. It never looks at the truth, so that a vote
    is no oracle.
    """
    text = extract_last_boxed(answer) or answer
    formula = strip_variable_name(normalise(text))
    value = parse_rational(formula)
    if value is not None:
        return str(value)
    if _WORD.search(formula) and not _OPERATION.search(formula):
        return normalize_answer(formula) or text.strip()
    return formula.replace(" ", "") or text.strip()
