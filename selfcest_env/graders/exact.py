"""Answers that must be equal as texts or as integers."""

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
        correct = bool(text) and text in {right.strip() for right in (task.answer, *task.aliases)}
        return Grade(float(correct), correct, bool(text))


MAX_INTEGER_DIGITS = 1000
_INTEGER = re.compile(r"[+-]?[0-9]+")


def parse_integer(text: str) -> int | None:
    """The integer a text is, `None` if it is none or has over `MAX_INTEGER_DIGITS` digits (`int` raises above 4300)."""
    text = text.strip()
    return int(text) if len(text) <= MAX_INTEGER_DIGITS + 1 and _INTEGER.fullmatch(text) else None


@dataclass(frozen=True)
class ExactInteger:
    """Right if the answer is the ground truth as an integer: `007` and `+7` are 7. Well-formed if it is an integer."""

    def grade(self, task: Task, answer: str | None) -> Grade:
        truth, value = parse_integer(task.answer), parse_integer(answer or "")
        if truth is None:
            raise ValueError(f"the ground truth {task.answer!r} is no integer; use the grader 'exact_match'")
        return Grade(float(value == truth), value == truth, value is not None)
