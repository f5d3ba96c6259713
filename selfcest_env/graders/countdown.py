"""Grade answers to Countdown: an expression of given numbers with + - * / and parentheses that equals a target."""

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
# Models write the letter x and other dots and crosses for the sign of multiplication, and dashes for minus.
_TIMES = re.compile(r"(?<=[0-9)])\s*[xX∙•⋅∗⨯✕]\s*(?=[0-9(])")
_DASHES = str.maketrans(dict.fromkeys("‐‑‒–﹣－", "-"))
_QUOTES = "\"'“”‘’ "
_CHANGES = re.compile(r"[!^%]")


def verify_countdown(expression: str, numbers: tuple[int, ...], target: int, use_all: bool = True) -> str:
    """Return why an expression does not solve a Countdown task, or an empty text if it does.

    Intermediate values may be fractions or negative. Of `24 = ...` and `... = 24` only the side without the target is
    judged.

    Args:
        expression: arithmetic expression, or an equation with the target.
        numbers: the given numbers. Each may be used as often as it is given.
        target: value that the expression must have.
        use_all: whether every given number must be used.
    """
    sides = expression.split("=")
    if len(sides) == 2:
        target_is_left = parse_rational(sides[0]) == target and sides[0].strip().isdecimal()
        expression, result = reversed(sides) if target_is_left else sides
        if parse_rational(result) != target or len(evaluate(result).numbers) > 1 or _CHANGES.search(result):
            return "the equation does not end in the target"
    elif len(sides) > 2:
        return "more than one equals sign"
    if _OTHER_OPERATIONS.search(expression):
        return "other operations than + - * /"
    try:
        evaluated = evaluate(expression)
    except NotRational as error:
        return str(error)
    used = Counter(evaluated.numbers)
    given = Counter(Fraction(number) for number in numbers)
    if used - given:
        return "a number that is not given, or that is used too often"
    if use_all and given - used:
        return "a given number that is not used"
    return "" if evaluated.value == target else "a value other than the target"


@dataclass(frozen=True)
class CountdownMatch:
    """Right if the final answer is any expression that solves the puzzle. The data set's own solution does not matter.

    The metadata of the task hold `numbers` (such as "3 7 9"), `target`, and `use_all` (default true).
    """

    def grade(self, task: Task, answer: str | None) -> Grade:
        try:
            numbers = tuple(int(number) for number in str(task.metadata["numbers"]).split())
            target = int(task.metadata["target"])
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"task {task.task_id} of {task.source!r}: its metadata cannot be used ({error!r}); "
                "expected 'numbers', integers with spaces between them, and 'target', an integer"
            ) from error
        if not answer or not answer.strip():
            return NO_ANSWER
        text = extract_final_answer(answer)
        if len(text) > MAX_CHARACTERS:
            return Grade(0.0, correct=False, well_formed=False, note="answer too long")
        # `normalise` would drop a degree sign, and the rest could be a right expression.
        if "°" in text or "\\circ" in text or "\\degree" in text:
            return Grade(0.0, correct=False, well_formed=False)
        text = normalise(text.strip()[2:-2] if _BOLD.fullmatch(text.strip()) else text)
        text = _TIMES.sub("*", text.strip(_QUOTES).translate(_DASHES))
        fault = verify_countdown(text, numbers, target, bool(task.metadata.get("use_all", True)))
        is_expression = parse_rational(text.split("=")[0]) is not None
        return Grade(float(not fault), correct=not fault, well_formed=is_expression)
