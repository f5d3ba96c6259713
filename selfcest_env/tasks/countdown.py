"""Countdown: reach a target from given numbers, each used once, by + - * / and parentheses.

The generator combines random numbers at random, so every task has a solution, by steps over whole numbers that are
never negative. The graders take any solution (`selfcest_env.graders.countdown`). The file format is that of Adaptive
Parallel Reasoning (arXiv 2504.15466).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import TaskError
from selfcest_env.graders.countdown import verify_countdown
from selfcest_env.graders.rational import parse_rational
from selfcest_env.protocol import Reply
from selfcest_env.structure import Between, Checked, OneOf, check_order
from selfcest_env.tasks.files import Record
from selfcest_env.tasks.finite import FileSource
from selfcest_env.tasks.source import (
    GIVE_UP,
    MAX_TRIES,
    PHRASINGS,
    PLAIN,
    TERSE,
    Proposal,
    Style,
    draw_int,
    is_root,
    last_replies,
    make_task,
    may_delegate,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Scalar, Task
from selfcest_env.views import Observation

MAX_NUMBERS, MAX_VALUE = 6, 9999
BRANCHES = 3
_PLAIN = re.compile(
    r"Use each of the numbers ([0-9, ]+) (exactly|at most) once, with \+ - \* / and parentheses, to make ([0-9]+)\. "
    r"Answer with the expression alone\."
)
_TERSE = re.compile(r"([0-9]+)(=|>)([0-9]+(?:,[0-9]+)*)")
_STEP = re.compile(r"([0-9]{1,12})([-+*/])([0-9]{1,12})=([0-9]{1,12})")


@dataclass(frozen=True, slots=True)
class Problem:
    """`use_all`: whether every number must be used, or may be left over."""

    numbers: tuple[int, ...]
    target: int
    use_all: bool = True

    def phrase(self, phrasing: str) -> str:
        """The question: `24=3,7,9` (with `>` where numbers may be left over), or an English sentence."""
        if phrasing == TERSE:
            return f"{self.target}{'=' if self.use_all else '>'}{','.join(map(str, self.numbers))}"
        return (
            f"Use each of the numbers {', '.join(map(str, self.numbers))} {'exactly' if self.use_all else 'at most'} "
            f"once, with + - * / and parentheses, to make {self.target}. Answer with the expression alone."
        )

    @property
    def metadata(self) -> dict[str, Scalar]:
        """What the grader reads."""
        numbers = " ".join(map(str, self.numbers))
        return {"numbers": numbers, "target": self.target, "use_all": self.use_all, "size": len(self.numbers)}

    def without(self, step: Value) -> Problem:
        """What is left after a step: its value in the place of its two numbers."""
        rest = list(self.numbers)
        for number in step.operands:
            rest.remove(number)
        return Problem((*rest, step.value), self.target, self.use_all)


@dataclass(frozen=True, slots=True)
class Value:
    """A number at hand: how it was reached, and the last step's operands."""

    value: int
    expression: str
    steps: tuple[str, ...] = ()
    operands: tuple[int, ...] = ()


class CountdownExpert:
    """Solves by search. Delegating, it tries several first steps at once, one of which leads to the target."""

    def understands(self, observation: Observation) -> bool:
        return _read(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        read = _read(observation.brief.text)
        if read is None:
            return GIVE_UP
        problem, phrasing = read
        if call := last_replies(observation):
            for request, reply in zip(call[0].requests, call[1], strict=True):
                if (expression := _complete(problem, request.objective, reply)) is not None:
                    return Proposal(Answer(expression))
        elif style is Style.DELEGATE:
            parts = _branches(problem, rng) or ([problem] if is_root(observation) else [])
            if parts and may_delegate(observation, len(parts)):
                return Proposal(Delegate(tuple(CloneRequest(part.phrase(phrasing)) for part in parts)))
        found = solve(problem)
        if found is None:
            return GIVE_UP
        return Proposal(Answer(_bare(found.expression)), (";" if phrasing == TERSE else "; ").join(found.steps))


@dataclass(frozen=True)
class Countdown(CountdownExpert, Checked):
    """Source of tasks with a solution.

    Attributes:
        min_numbers, max_numbers: numbers of a task, from 2 to 6.
        max_number: numbers are drawn from 1 to this.
        min_target, max_target: both included.
        use_all: whether every number must be used.
        phrasing: "terse" (`24=3,7,9`) or "plain", an English sentence.
    """

    name: ClassVar[str] = "countdown"
    min_numbers: Annotated[int, Between(2, MAX_NUMBERS)] = 3
    max_numbers: Annotated[int, Between(2, MAX_NUMBERS)] = 4
    max_number: Annotated[int, Between(1, MAX_VALUE)] = 99
    min_target: Annotated[int, Between(0, MAX_VALUE)] = 10
    max_target: Annotated[int, Between(0, MAX_VALUE)] = 100
    use_all: bool = True
    phrasing: Annotated[str, OneOf(*PHRASINGS)] = PLAIN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "min_numbers", "max_numbers")
        check_order(self, "min_target", "max_target")

    def draw(self, rng: np.random.Generator) -> Task:
        count = draw_int(rng, self.min_numbers, self.max_numbers)
        for _ in range(MAX_TRIES):
            numbers = tuple(draw_int(rng, 1, self.max_number) for _ in range(count))
            found = _combine_at_random(numbers, rng)
            if self.min_target <= found.value <= self.max_target:
                problem = Problem(numbers, found.value, self.use_all)
                answer = _bare(found.expression)
                return make_task(self.name, problem.phrase(self.phrasing), answer, problem.metadata)
        raise TaskError(
            f"{self.name} found no {count} numbers up to max_number = {self.max_number} with a result from "
            f"{self.min_target} to {self.max_target} in {MAX_TRIES} tries; widen the targets"
        )


@dataclass(frozen=True)
class CountdownFile(FileSource, CountdownExpert):
    """JSON array of `nums`, `target` and `solution`, a list of steps such as "39+9=48"; other keys are not read.

    A solution that does not solve its task is an error. Grader: `countdown`.
    """

    name: ClassVar[str] = "countdown_file"
    phrasing: Annotated[str, OneOf(*PHRASINGS)] = PLAIN

    def read(self, record: Record) -> Task:
        numbers = record.items("nums")
        if len(numbers) < 2 or any(type(number) is not int or not 0 <= number <= MAX_VALUE for number in numbers):
            raise record.mismatch("nums", f"a list of two or more whole numbers from 0 to {MAX_VALUE}")
        problem = Problem(tuple(numbers), record.integer("target"))
        answer = _expression(problem.numbers, record.texts("solution"))
        if answer is None or verify_countdown(answer, problem.numbers, problem.target):
            raise record.mismatch(
                "solution", "steps such as '39+9=48' that use every number once and end in the target"
            )
        return self.make(record, problem.phrase(self.phrasing), answer, **problem.metadata)


def solve(problem: Problem) -> Value | None:
    """A solution by whole, non-negative steps; `None` if there is none."""
    return _search(_at_hand(problem.numbers), problem, set())


def _search(values: list[Value], problem: Problem, dead: set[tuple[int, ...]]) -> Value | None:
    if len(values) == 1 or not problem.use_all:
        done = next((value for value in values if value.value == problem.target), None)
        if done is not None or len(values) == 1:
            return done
    key = tuple(sorted(value.value for value in values))
    if key in dead:
        return None
    for step, rest in _first_steps(values):
        found = _search([*rest, step], problem, dead)
        if found is not None:
            return found
    dead.add(key)
    return None


def _at_hand(numbers: tuple[int, ...]) -> list[Value]:
    return [Value(number, str(number)) for number in numbers]


def _first_steps(values: list[Value]) -> Iterator[tuple[Value, list[Value]]]:
    """Every step with two of the values, and the values it leaves."""
    for j in range(len(values)):
        for i in range(j):
            rest = values[:i] + values[i + 1 : j] + values[j + 1 :]
            for step in _steps(values[i], values[j]):
                yield step, rest


def _steps(first: Value, second: Value) -> list[Value]:
    a, b = (first, second) if first.value >= second.value else (second, first)
    results = {"+": a.value + b.value, "-": a.value - b.value, "*": a.value * b.value}
    if b.value and a.value % b.value == 0:
        results["/"] = a.value // b.value
    return [
        Value(
            result,
            f"({a.expression}{operator}{b.expression})",
            (*a.steps, *b.steps, f"{a.value}{operator}{b.value}={result}"),
            (a.value, b.value),
        )
        for operator, result in results.items()
    ]


def _combine_at_random(numbers: tuple[int, ...], rng: np.random.Generator) -> Value:
    values = _at_hand(numbers)
    while len(values) > 1:
        first, second = (values.pop(int(rng.integers(len(values)))) for _ in range(2))
        steps = _steps(first, second)
        values.append(steps[int(rng.integers(len(steps)))])
    return values[0]


def _bare(expression: str) -> str:
    """Without the parentheses around all of it, which `_steps` writes around every step."""
    return expression[1:-1] if expression.startswith("(") else expression


def _expression(numbers: tuple[int, ...], steps: tuple[str, ...]) -> str | None:
    """The expression that steps amount to, `None` if they do not follow from the numbers."""
    values = _at_hand(numbers)
    for step in steps:
        match = _STEP.fullmatch(step.replace(" ", ""))
        if match is None or parse_rational(f"{match[1]}{match[2]}{match[3]}") != parse_rational(match[4]):
            return None
        operands = list[Value]()
        for number in (int(match[1]), int(match[3])):
            found = next((value for value in values if value.value == number), None)
            if found is None:
                return None
            values.remove(found)
            operands.append(found)
        values.append(Value(int(match[4]), f"({operands[0].expression}{match[2]}{operands[1].expression})"))
    return _bare(values[0].expression) if len(values) == 1 else None


def _read(text: str) -> tuple[Problem, str] | None:
    if match := _PLAIN.fullmatch(text.strip()):
        phrasing, target, use_all, listed = PLAIN, match[3], match[2] == "exactly", match[1].split(", ")
    elif match := _TERSE.fullmatch(text.strip()):
        phrasing, target, use_all, listed = TERSE, match[1], match[2] == "=", match[3].split(",")
    else:
        return None
    short = all(number.isdecimal() and len(number) <= 12 for number in (*listed, target))
    if not short or len(listed) > MAX_NUMBERS:
        return None
    return Problem(tuple(map(int, listed)), int(target), use_all), phrasing


def _branches(problem: Problem, rng: np.random.Generator) -> list[Problem]:
    """Problems after different first steps, one of which has a solution; none if it is too small or hopeless."""
    if len(problem.numbers) < 3:
        return []
    left = {problem.without(step).numbers: problem.without(step) for step, _ in _first_steps(_at_hand(problem.numbers))}
    order = [list(left.values())[int(index)] for index in rng.permutation(len(left))]
    right = next((part for part in order if solve(part) is not None), None)
    if right is None:
        return []
    chosen = [part for part in order if part is not right][: BRANCHES - 1]
    chosen.insert(int(rng.integers(len(chosen) + 1)), right)
    return chosen


def _complete(problem: Problem, objective: str, reply: Reply) -> str | None:
    """A clone's solution with the first step put in; `None` if it solves nothing."""
    read, text = _read(objective), (reply.text or "").strip()
    if read is None or verify_countdown(text, read[0].numbers, read[0].target, read[0].use_all):
        return None
    if Counter(read[0].numbers) == Counter(problem.numbers):
        return text
    for step, _ in _first_steps(_at_hand(problem.numbers)):
        if Counter(problem.without(step).numbers) == Counter(read[0].numbers):
            whole = re.sub(rf"(?<![0-9]){step.value}(?![0-9])", step.expression, text, count=1)
            if not verify_countdown(whole, problem.numbers, problem.target, problem.use_all):
                return whole
    return None
