"""Grade answers that must equal the ground truth as a text or as an integer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from selfcest_env.graders.grade import Grade
from selfcest_env.types import Task


@dataclass(frozen=True)
class ExactMatch:
    """Right if the stripped answer is the stripped ground truth or one of the task's aliases."""

    def grade(self, task: Task, answer: str | None) -> Grade:
        text = (answer or "").strip()
        truths = {truth.strip() for truth in (task.answer, *task.aliases)}
        correct = bool(text) and text in truths
        return Grade(float(correct), correct, bool(text))


# `int` raises for more than 4,300 digits, and takes quadratic time below.
MAX_INTEGER_DIGITS = 1000
_INTEGER = re.compile(r"[+-]?[0-9]+")


def parse_integer(text: str) -> int | None:
    """Return the integer that a text writes; `None` for other texts and for more than `MAX_INTEGER_DIGITS` digits."""
    text = text.strip()
    return int(text) if len(text) <= MAX_INTEGER_DIGITS + 1 and _INTEGER.fullmatch(text) else None


@dataclass(frozen=True)
class ExactInteger:
    """Right if the answer and the ground truth are the same integer (`007` and `+7` are 7).

    An answer is well-formed if it is an integer.
    """

    def grade(self, task: Task, answer: str | None) -> Grade:
        truth = parse_integer(task.answer)
        value = parse_integer(answer or "")
        if truth is None:
            raise ValueError(f"the ground truth is {task.answer!r}; expected an integer; use the grader 'exact_match'")
        return Grade(float(value == truth), value == truth, value is not None)
