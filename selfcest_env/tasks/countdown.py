"""Countdown: make a target from given numbers, each used once, with + - * / and parentheses.

The generator combines random numbers by random operations. So every task has a solution whose intermediate values are
whole and not negative. The grader accepts any solution (`selfcest_env.graders.countdown`). The file format is that of
Adaptive Parallel Reasoning (arXiv 2504.15466).
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
    find_last_call,
    is_root,
    make_task,
    may_delegate,
)
from selfcest_env.types import Answer, CloneRequest, Delegate, Scalar, Task
from selfcest_env.views import Observation

MAX_NUMBERS = 6
MAX_VALUE = 9999
NUM_BRANCHES = 3  # first steps that the expert delegates
_PLAIN = re.compile(
    r"Use each of the numbers ([0-9, ]+) (exactly|at most) once, with \+ - \* / and parentheses, to make ([0-9]+)\. "
    r"Answer with the expression alone\."
)
_TERSE = re.compile(r"([0-9]+)(=|>)([0-9]+(?:,[0-9]+)*)")
_STEP = re.compile(r"([0-9]{1,12})([-+*/])([0-9]{1,12})=([0-9]{1,12})")


@dataclass(frozen=True, slots=True)
class Problem:
    """A puzzle.

    Attributes:
        numbers: the given numbers.
        target: the value to make.
        use_all: whether every number must be used.
    """

    numbers: tuple[int, ...]
    target: int
    use_all: bool = True

    def phrase(self, phrasing: str) -> str:
        """Return the question: `24=3,7,9` (with `>` if numbers may be left over), or an English sentence."""
        if phrasing == TERSE:
            return f"{self.target}{'=' if self.use_all else '>'}{','.join(map(str, self.numbers))}"
        return (
            f"Use each of the numbers {', '.join(map(str, self.numbers))} {'exactly' if self.use_all else 'at most'} "
            f"once, with + - * / and parentheses, to make {self.target}. Answer with the expression alone."
        )

    @property
    def metadata(self) -> dict[str, Scalar]:
        """The metadata that the grader needs."""
        numbers = " ".join(map(str, self.numbers))
        return {"numbers": numbers, "target": self.target, "use_all": self.use_all, "size": len(self.numbers)}

    def without(self, step: Value) -> Problem:
        """Return the puzzle after a step, which replaces its two numbers by their result."""
        rest = list(self.numbers)
        for number in step.operands:
            rest.remove(number)
        return Problem((*rest, step.value), self.target, self.use_all)


@dataclass(frozen=True, slots=True)
class Value:
    """An available number.

    Attributes:
        value: the number.
        expression: expression of given numbers with this value.
        steps: lines of the steps that computed it, in order.
        operands: the two numbers of the last step; empty for a given number.
    """

    value: int
    expression: str
    steps: tuple[str, ...] = ()
    operands: tuple[int, ...] = ()


class CountdownExpert:
    """Solves puzzles by search. It delegates several first steps, of which at least one leads to the target."""

    def understands(self, observation: Observation) -> bool:
        return _read(observation.brief.text) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        question = _read(observation.brief.text)
        if question is None:
            return GIVE_UP
        problem, phrasing = question
        if call := find_last_call(observation):
            for request, reply in zip(call.requests, call.replies, strict=True):
                if (expression := _complete(problem, request.objective, reply)) is not None:
                    return Proposal(Answer(expression))
        elif style is Style.DELEGATE:
            parts = _branches(problem, rng) or ([problem] if is_root(observation) else [])
            if parts and may_delegate(observation, len(parts)):
                return Proposal(Delegate(tuple(CloneRequest(part.phrase(phrasing)) for part in parts)))
        solution = solve(problem)
        if solution is None:
            return GIVE_UP
        thought = (";" if phrasing == TERSE else "; ").join(solution.steps)
        return Proposal(Answer(_strip_parentheses(solution.expression)), thought)


@dataclass(frozen=True)
class Countdown(CountdownExpert, Checked):
    """Source of puzzles that have a solution.

    Attributes:
        min_numbers, max_numbers: number of given numbers, 2 to 6.
        max_number: largest given number; the smallest is 1.
        min_target, max_target: range of the target, both included.
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
            solution = _combine_at_random(numbers, rng)
            if self.min_target <= solution.value <= self.max_target:
                problem = Problem(numbers, solution.value, self.use_all)
                answer = _strip_parentheses(solution.expression)
                return make_task(self.name, problem.phrase(self.phrasing), answer, problem.metadata)
        raise TaskError(
            f"{self.name} found no {count} numbers up to max_number = {self.max_number} with a result from "
            f"{self.min_target} to {self.max_target} in {MAX_TRIES} tries; widen the targets"
        )


@dataclass(frozen=True)
class CountdownFile(FileSource, CountdownExpert):
    """Source of a JSON array of puzzles with `nums`, `target` and `solution`, a list of steps such as "39+9=48".

    Other keys are ignored. A solution that does not solve its puzzle is an error. The grader is `countdown`.

    Attributes:
        phrasing: name of the phrasing of the prompt.
    """

    name: ClassVar[str] = "countdown_file"
    phrasing: Annotated[str, OneOf(*PHRASINGS)] = PLAIN

    def read(self, record: Record) -> Task:
        numbers = record.items("nums")
        if len(numbers) < 2 or any(type(number) is not int or not 0 <= number <= MAX_VALUE for number in numbers):
            raise record.mismatch("nums", f"a list of two or more whole numbers from 0 to {MAX_VALUE}")
        problem = Problem(tuple(numbers), record.integer("target"))
        answer = _join_steps(problem.numbers, record.texts("solution"))
        if answer is None or verify_countdown(answer, problem.numbers, problem.target):
            raise record.mismatch(
                "solution", "steps such as '39+9=48' that use every number once and end in the target"
            )
        return self.make(record, problem.phrase(self.phrasing), answer, **problem.metadata)

    def identity(self, task: Task) -> str:
        numbers = sorted(map(int, str(task.metadata["numbers"]).split()))
        return f"{task.metadata['target']} from {numbers}"


def solve(problem: Problem) -> Value | None:
    """Return a solution whose intermediate values are whole and not negative, or `None` if there is none."""
    return _search(_as_values(problem.numbers), problem, set())


def _search(values: list[Value], problem: Problem, dead_ends: set[tuple[int, ...]]) -> Value | None:
    if len(values) == 1 or not problem.use_all:
        solution = next((value for value in values if value.value == problem.target), None)
        if solution is not None or len(values) == 1:
            return solution
    key = tuple(sorted(value.value for value in values))
    if key in dead_ends:
        return None
    for step, rest in _first_steps(values):
        solution = _search([*rest, step], problem, dead_ends)
        if solution is not None:
            return solution
    dead_ends.add(key)
    return None


def _as_values(numbers: tuple[int, ...]) -> list[Value]:
    return [Value(number, str(number)) for number in numbers]


def _first_steps(values: list[Value]) -> Iterator[tuple[Value, list[Value]]]:
    """Yield every step with two of the values, and the values that it does not use."""
    for j in range(len(values)):
        for i in range(j):
            rest = values[:i] + values[i + 1 : j] + values[j + 1 :]
            for step in _steps(values[i], values[j]):
                yield step, rest


def _steps(first: Value, second: Value) -> list[Value]:
    # The larger value comes first, so that no difference is negative.
    larger, smaller = (first, second) if first.value >= second.value else (second, first)
    results = {
        "+": larger.value + smaller.value,
        "-": larger.value - smaller.value,
        "*": larger.value * smaller.value,
    }
    if smaller.value and larger.value % smaller.value == 0:
        results["/"] = larger.value // smaller.value
    values: list[Value] = []
    for operator, result in results.items():
        expression = f"({larger.expression}{operator}{smaller.expression})"
        line = f"{larger.value}{operator}{smaller.value}={result}"
        steps = (*larger.steps, *smaller.steps, line)
        values.append(Value(result, expression, steps, (larger.value, smaller.value)))
    return values


def _combine_at_random(numbers: tuple[int, ...], rng: np.random.Generator) -> Value:
    values = _as_values(numbers)
    while len(values) > 1:
        first, second = (values.pop(int(rng.integers(len(values)))) for _ in range(2))
        steps = _steps(first, second)
        values.append(steps[int(rng.integers(len(steps)))])
    return values[0]


def _strip_parentheses(expression: str) -> str:
    """Drop the parentheses around the whole, because `_steps` writes them around every step."""
    return expression[1:-1] if expression.startswith("(") else expression


def _join_steps(numbers: tuple[int, ...], steps: tuple[str, ...]) -> str | None:
    """Return the expression that the steps compute, or `None` if a step uses a number that is not available."""
    values = _as_values(numbers)
    for step in steps:
        match = _STEP.fullmatch(step.replace(" ", ""))
        if match is None or parse_rational(f"{match[1]}{match[2]}{match[3]}") != parse_rational(match[4]):
            return None
        operands: list[Value] = []
        for number in (int(match[1]), int(match[3])):
            operand = next((value for value in values if value.value == number), None)
            if operand is None:
                return None
            values.remove(operand)
            operands.append(operand)
        values.append(Value(int(match[4]), f"({operands[0].expression}{match[2]}{operands[1].expression})"))
    return _strip_parentheses(values[0].expression) if len(values) == 1 else None


def _read(text: str) -> tuple[Problem, str] | None:
    """Return the puzzle and the phrasing of a question, or `None` for any other text."""
    if match := _PLAIN.fullmatch(text.strip()):
        phrasing = PLAIN
        target = match[3]
        use_all = match[2] == "exactly"
        numbers = match[1].split(", ")
    elif match := _TERSE.fullmatch(text.strip()):
        phrasing = TERSE
        target = match[1]
        use_all = match[2] == "="
        numbers = match[3].split(",")
    else:
        return None
    # The search would take too long for many numbers, and `int` for many digits.
    are_short = all(number.isdecimal() and len(number) <= 12 for number in (*numbers, target))
    if not are_short or len(numbers) > MAX_NUMBERS:
        return None
    return Problem(tuple(map(int, numbers)), int(target), use_all), phrasing


def _branches(problem: Problem, rng: np.random.Generator) -> list[Problem]:
    """Return the puzzles after different first steps, in random order. At least one of them has a solution.

    There are no branches if the puzzle has fewer than three numbers or no solution.
    """
    if len(problem.numbers) < 3:
        return []
    branch_by_numbers: dict[tuple[int, ...], Problem] = {}
    for step, _ in _first_steps(_as_values(problem.numbers)):
        branch = problem.without(step)
        branch_by_numbers[branch.numbers] = branch
    branches = list(branch_by_numbers.values())
    shuffled = [branches[int(index)] for index in rng.permutation(len(branches))]
    solvable = next((branch for branch in shuffled if solve(branch) is not None), None)
    if solvable is None:
        return []
    chosen = [branch for branch in shuffled if branch is not solvable][: NUM_BRANCHES - 1]
    chosen.insert(int(rng.integers(len(chosen) + 1)), solvable)
    return chosen


def _complete(problem: Problem, objective: str, reply: Reply) -> str | None:
    """Insert the first step into a clone's solution. Return `None` if the result does not solve the puzzle."""
    question = _read(objective)
    text = (reply.text or "").strip()
    if question is None:
        return None
    branch = question[0]
    if verify_countdown(text, branch.numbers, branch.target, branch.use_all):
        return None
    if Counter(branch.numbers) == Counter(problem.numbers):
        return text
    for step, _ in _first_steps(_as_values(problem.numbers)):
        if Counter(problem.without(step).numbers) == Counter(branch.numbers):
            # The value of the step occurs as a number in the clone's solution.
            solution = re.sub(rf"(?<![0-9]){step.value}(?![0-9])", step.expression, text, count=1)
            if not verify_countdown(solution, problem.numbers, problem.target, problem.use_all):
                return solution
    return None
