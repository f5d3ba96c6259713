"""Answers in words: exact match and F1 as SQuAD counts them, with the rules that HotpotQA and others add.

Supporting facts are scored apart, as sets: what an agent looked at is no part of its answer.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Hashable, Set
from dataclasses import dataclass
from typing import ClassVar, Literal

from selfcest_env.errors import RewardError
from selfcest_env.graders.grade import NO_ANSWER, Grade
from selfcest_env.stored import stored_as
from selfcest_env.types import Task

SQUAD, HOTPOTQA = "squad", "hotpotqa"
RULES = (SQUAD, HOTPOTQA)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = {"yes", "no", "noanswer"}


@stored_as(exact="exact", f1="f1", precision="precision", recall="recall")
@dataclass(frozen=True, slots=True)
class Overlap:
    """Agreement of a prediction with the truth; every field is in [0, 1]."""

    exact: float
    f1: float
    precision: float
    recall: float

    def __mul__(self, other: Overlap) -> Overlap:
        """HotpotQA's joint score of answer and supporting facts: products of precision, recall and exact match."""
        precision, recall = self.precision * other.precision, self.recall * other.recall
        return Overlap(self.exact * other.exact, _harmonic(precision, recall), precision, recall)


NONE, ALL = Overlap(0.0, 0.0, 0.0, 0.0), Overlap(1.0, 1.0, 1.0, 1.0)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, without a, an, the, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def answer_overlap(prediction: str, truth: str, rule: str = SQUAD) -> Overlap:
    """Compare the words of two answers, counted with multiplicity.

    Args:
        prediction, truth: texts; both are normalised.
        rule: "squad": two answers without a word agree, one does not agree with any other (so does MuSiQue).
            "hotpotqa": yes, no and noanswer agree only with themselves, and nothing has an F1 without a common word (so
            does 2WikiMultihopQA).
    """
    left, right = normalize_answer(prediction), normalize_answer(truth)
    exact = float(left == right)
    if rule == HOTPOTQA and not exact and not _CLOSED.isdisjoint((left, right)):
        return NONE
    ours, theirs = left.split(), right.split()
    if not ours or not theirs:
        return Overlap(exact, *(exact if rule == SQUAD else 0.0,) * 3)
    common = (Counter(ours) & Counter(theirs)).total()
    precision, recall = common / len(ours), common / len(theirs)
    return Overlap(exact, _harmonic(precision, recall), precision, recall)


def set_overlap(predicted: Set[Hashable], truth: Set[Hashable]) -> Overlap:
    """Compare sets: supporting facts (title and sentence), supporting paragraphs, document keys.

    Two empty sets agree: MuSiQue's rule (HotpotQA, where no truth is empty, would give F1 0).
    """
    if not predicted and not truth:
        return ALL
    common = len(predicted & truth)
    precision = common / len(predicted) if predicted else 0.0
    recall = common / len(truth) if truth else 0.0
    return Overlap(float(predicted == truth), _harmonic(precision, recall), precision, recall)


def _harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@dataclass(frozen=True)
class QuestionAnswer:
    """Right if the normalised answer is the ground truth or an alias; the rule is the one of the task's data set.

    Attributes:
        score: "exact", or "f1" for partial credit; the best over truth and aliases.
    """

    max_characters: ClassVar[int] = 100_000
    score: Literal["exact", "f1"] = "exact"

    def grade(self, task: Task, answer: str | None) -> Grade:
        if not answer or not answer.strip():
            return NO_ANSWER
        if len(answer) > self.max_characters:
            return Grade(0.0, False, False, "answer too long")
        rule = str(task.metadata.get("qa_rule", SQUAD))
        if rule not in RULES:
            raise RewardError(f"task {task.task_id}: qa_rule is {rule!r}; expected one of {', '.join(RULES)}")
        overlaps = [answer_overlap(answer, truth, rule) for truth in (task.answer, *task.aliases)]
        exact = max(overlap.exact for overlap in overlaps)
        score = exact if self.score == "exact" else max(overlap.f1 for overlap in overlaps)
        return Grade(score, bool(exact), True)
