"""Countdown: reach a target from given numbers with + - * / and parentheses."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from selfcest_env.graders.boxed import extract_final_answer
from selfcest_env.graders.grade import NO_ANSWER, Grade
from selfcest_env.graders.latex import normalise
from selfcest_env.graders.rational import MAX_CHARACTERS, NotRational, evaluate, parse_rational
from selfcest_env.types import Task

_OTHER_OPERATIONS = re.compile(r"[!^.%]")
_BOLD = re.compile(r"\*\*[^*].*[^*]\*\*")
_CHANGES = re.compile(r"[!^%]")


def verify_countdown(expression: str, numbers: tuple[int, ...], target: int, use_all: bool = True) -> str:
    """Why an expression does not solve a Countdown task; empty if it does.

    Values on the way may be fractions or negative. `24 = ...` and `... = 24` are read as what stands beside the target.

    Args:
        numbers: each may be used once for every time it is given.
        use_all: each must be.
    """
    sides = expression.split("=")
    if len(sides) == 2:
        first = parse_rational(sides[0]) == target and sides[0].strip().isdecimal()
        expression, result = (sides[1], sides[0]) if first else (sides[0], sides[1])
        if parse_rational(result) != target or len(evaluate(result).numbers) > 1 or _CHANGES.search(result):
            return "the equation does not end in the target"
    elif len(sides) > 2:
        return "more than one equals sign"
    if _OTHER_OPERATIONS.search(expression):
        return "other operations than + - * /"
    try:
        found = evaluate(expression)
    except NotRational as error:
        return str(error)
    used, given = Counter(found.numbers), Counter(Fraction(number) for number in numbers)
    if used - given:
        return "a number that is not given, or one too often"
    if use_all and given - used:
        return "a number is left over"
    return "" if found.value == target else "another value than the target"


@dataclass(frozen=True)
class CountdownMatch:
    """Right if the answer, as `extract_final_answer` finds it, solves the task, whatever solution the data set gives.

    The task says in its metadata `numbers` ("3 7 9"), `target`, and `use_all` (true if left out).
    """

    def grade(self, task: Task, answer: str | None) -> Grade:
        try:
            numbers = tuple(int(number) for number in str(task.metadata["numbers"]).split())
            target = int(task.metadata["target"])
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"task {task.task_id} of {task.source!r} has no Countdown metadata ('numbers', 'target'): {error!r}"
            ) from error
        if not answer or not answer.strip():
            return NO_ANSWER
        text = extract_final_answer(answer)
        if len(text) > MAX_CHARACTERS:
            return Grade(0.0, False, False, "answer too long")
        if "°" in text or "\\circ" in text or "\\degree" in text:
            return Grade(0.0, False, False)
        text = normalise(text.strip()[2:-2] if _BOLD.fullmatch(text.strip()) else text)
        fault = verify_countdown(text, numbers, target, bool(task.metadata.get("use_all", True)))
        return Grade(float(not fault), not fault, parse_rational(text.split("=")[0]) is not None)
