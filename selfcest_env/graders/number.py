"""Answers that are one number, whatever unit stands beside it: GSM8K, AIME."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from selfcest_env.graders.boxed import final_answer
from selfcest_env.graders.grade import NO_ANSWER, Grade
from selfcest_env.graders.latex import normalise
from selfcest_env.types import Task

MAX_CHARACTERS = 1000
_NUMBER = re.compile(
    r"(?:(?<![\w)}\]])[-−+])?\s?(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9])|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
)
_MATHEMATICS = re.compile(r"\\[A-Za-z]|[\^!*/]|[A-Za-z]\(")


def only_number(text: str) -> Fraction | None:
    """The number of a text that has exactly one and does nothing to it; commas and leading zeros do not matter."""
    text = normalise(text.replace("{,}", ","))
    found = [*_NUMBER.finditer(text)]
    if len(found) != 1 or _MATHEMATICS.search(text):
        return None
    value = Fraction(found[0]["digits"].replace(",", ""))
    return -value if found[0][0][0] in "-−" else value


@dataclass(frozen=True)
class NumberMatch:
    """Right if the one number of the answer, as `final_answer` finds it, equals the truth or an alias.

    "$2,125.00", "025" and "18 dollars" are 2125, 25 and 18. Two numbers are no answer, nor is an expression.
    """

    def grade(self, task: Task, answer: str | None) -> Grade:
        truths = {only_number(text) for text in (task.answer, *task.aliases)}
        if None in truths:
            raise ValueError(
                f"the ground truths {(task.answer, *task.aliases)} are not all numbers; use the grader 'math'"
            )
        if answer is None:
            return NO_ANSWER
        text = final_answer(answer)
        if len(text) > MAX_CHARACTERS:
            return Grade(0.0, False, False, "answer too long")
        value = only_number(text)
        return Grade(float(value in truths), value in truths, value is not None)
