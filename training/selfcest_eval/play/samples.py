"""Strategies that play a task several times and take the majority's answer, or the best answer by an oracle."""

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
from selfcest_env.stored import declared_name, stored_as
from selfcest_env.structure import Checked, Count, Size
from selfcest_env.tasks import Style
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy

_WORD = re.compile(r"[^\W\d_]{2}")
_OPERATION = re.compile(r"[\\^_=+*/<>{}|]|(?<![^\W\d_]{2})[-−]|[-−](?![^\W\d_]{2})")  # no hyphen in a word


@stored_as("selfcest_training.evaluation.samples:Samples", samples="samples", max_reads="max_reads")
@dataclass(frozen=True)
class Samples(Strategy, Checked):
    """Samples of the monolithic policy, one after the other, each within the remaining budget.

    Another sample starts if the remaining budget covers the dearest sample so far. The tokens of all samples count.

    Attributes:
        samples: largest number of samples.
        max_reads: number of documents that a sample may read by key; 0: it sees the full text of all documents.
    """

    delegates: ClassVar[bool] = False
    samples: Count = 8
    max_reads: Size | None = 0

    @property
    def recipe(self) -> Mapping[str, object]:
        return {**super().recipe, "strategy": declared_name(Samples)}

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
            limits_by_position: dict[int, Limits] = {}
            for i, episodes in enumerate(played):
                limits = find_remaining_limits(context.limits, episodes)
                if limits is not None:
                    limits_by_position[i] = limits
            remaining = [instances[i] for i in limits_by_position]
            records = self.play_once(remaining, list(limits_by_position.values()), sample, context, player)
            for i, record in zip(limits_by_position, records, strict=True):
                played[i] += (record,)
        return played


def find_remaining_limits(limits: Limits, episodes: Episodes) -> Limits | None:
    """Return the limits minus the tokens of the episodes; `None` if no other episode should start.

    No other episode starts if the rest does not cover the dearest episode, or if the last prompt did not fit.
    """
    if not episodes:
        return limits
    if not episodes[-1].root.turns:
        return None
    remaining: dict[str, int] = {}
    for name in ("total_tokens", "generated_tokens"):
        limit = getattr(limits, name)
        if limit is None:
            continue
        used = [getattr(episode.cost, name) for episode in episodes]
        remaining[name] = limit - sum(used)
        if remaining[name] < max(*used, limits.answer_reserve, 1):
            return None
    return replace(limits, **remaining)


@stored_as("selfcest_training.evaluation.samples:SelfConsistency")
@dataclass(frozen=True)
class SelfConsistency(Samples):
    """The most frequent answer of the samples, compared in normal form; of equally frequent answers the first."""

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return majority([episode.answer for episode in episodes])


@stored_as("selfcest_training.evaluation.samples:BestOfN")
@dataclass(frozen=True)
class BestOfN(Samples):
    """The sample with the best grade. This oracle is an upper bound for every way to choose a sample."""

    oracle: ClassVar[bool] = True

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return max(range(len(grades)), key=lambda i: (grades[i].correct, grades[i].score, -i))


def majority(answers: Sequence[str | None]) -> int:
    """Return the position of the first of the most frequent answers, or 0 if there is no answer.

    A missing answer (`None`) has no vote.
    """
    forms = {i: normal_form(answer) for i, answer in enumerate(answers) if answer is not None}
    votes = Counter(forms.values())
    return max(forms, key=lambda i: (votes[forms[i]], -i), default=0)


def normal_form(answer: str) -> str:
    r"""Return an answer without the differences that graders ignore.

    It is the last `\boxed{}`, with an exact value as a number and words normalized as SQuAD does. Formulas keep their
    signs, since `x-1` and `x+1` must not vote for each other. The right answer is not used, so a vote is no oracle.
    """
    text = extract_last_boxed(answer) or answer
    formula = strip_variable_name(normalise(text))
    value = parse_rational(formula)
    if value is not None:
        return str(value)
    if _WORD.search(formula) and not _OPERATION.search(formula):
        return normalize_answer(formula) or text.strip()
    return formula.replace(" ", "") or text.strip()
