"""Outcome rules of the paper's released code (arXiv 2602.13262), kept for comparisons with it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from selfcest_env.graders.exact import parse_integer
from selfcest_env.graders.grade import NO_ANSWER, Grade
from selfcest_env.types import Task

_FIND_INTEGER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True)
class PaperArithmetic:
    """The released outcome rule: 1 if A = B, else 0.2 / log2(2 + |A - B| / sqrt|2 + max(A, B)|).

    A is the last integer of the answer and B is the truth. An answer without an integer scores 0.1 if it contains the
    truth as a substring, else 0.

    The score of wrong answers falls to 0 with the distance. It is exactly 0, with a note, where the rule divides by
    zero (max(A, B) = -2) and where the integers are too large for floating point.
    """

    def grade(self, task: Task, answer: str | None) -> Grade:
        if answer is None:
            return NO_ANSWER
        truth = parse_integer(task.answer)
        integers = _FIND_INTEGER.findall(answer)
        if truth is None or not integers:
            score = 0.1 if task.answer.strip() in answer else 0.0
            return Grade(score, correct=False, well_formed=False)
        value = parse_integer(integers[-1])
        if value == truth:
            return Grade(1.0, correct=True, well_formed=True)
        if value is None:
            return _grade_wrong(0.0, note="integer too long")
        try:
            distance = abs(value - truth) / abs(2 + max(value, truth)) ** 0.5
        except ZeroDivisionError:
            return _grade_wrong(0.0, note="zero denominator")
        except OverflowError:
            return _grade_wrong(0.0, note="integer too large")
        return _grade_wrong(0.2 / math.log2(2 + distance))


def _grade_wrong(score: float, note: str = "") -> Grade:
    return Grade(score, correct=False, well_formed=True, note=note)


@dataclass(frozen=True)
class PaperMultihop:
    """The released outcome rule for questions: texts are equal in lower case without outer space, so "Paris." is wrong.

    Attributes:
        aliases: whether the task's aliases count. In the released code those of MuSiQue do, those of 2WikiMultihopQA do
            not.
    """

    aliases: bool = True

    def grade(self, task: Task, answer: str | None) -> Grade:
        text = (answer or "").strip().lower()
        truths = (task.answer, *task.aliases) if self.aliases else (task.answer,)
        correct = bool(text) and text in {truth.strip().lower() for truth in truths}
        return Grade(float(correct), correct, bool(text))
