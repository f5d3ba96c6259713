"""Grade mathematical answers: by spelling, by exact value, or by symbolic equivalence where neither can decide."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from typing import Annotated

from selfcest_env.errors import ConfigError, install_hint
from selfcest_env.graders.boxed import extract_final_answer
from selfcest_env.graders.compare import answers_agree, is_precise
from selfcest_env.graders.grade import NO_ANSWER, Grade
from selfcest_env.graders.latex import asks_for_percent, from_unicode, normalise
from selfcest_env.graders.rational import parse_rational
from selfcest_env.graders.workers import shared_pool
from selfcest_env.structure import Above, Below, Checked
from selfcest_env.types import Task

MAX_CHARACTERS = 1000
_COMMANDS = re.compile(r"\\[A-Za-z]+")
MAX_PROMPT_CHARACTERS = 5000  # at the end of a prompt, where the question stands
_SYMBOLIC = "selfcest_env.graders.symbolic"


@dataclass(frozen=True)
class MathMatch(Checked):
    """Right if the final answer equals the truth or an alias.

    `answers_agree` decides all pairs that can be compared exactly. math-verify decides the rest in a worker process,
    which is killed after `timeout_s`. The answer is then wrong, with a note. It is also wrong, with a note, if
    math-verify cannot parse one of the two. `grade` raises `WorkerError` if no worker can run.

    Attributes:
        symbolic: whether to use math-verify (the extra `math`). Without it, undecided pairs are wrong.
        timeout_s: time limit of math-verify for one answer, in seconds of wall clock of a ready worker.
    """

    symbolic: bool = True
    timeout_s: Annotated[float, Above(0), Below(60), "seconds"] = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symbolic and importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                "math-verify is not installed, and the grader 'math' uses it; set symbolic: false, or "
                f"run: {install_hint('math')}"
            )

    def grade(self, task: Task, answer: str | None) -> Grade:
        if not answer or not answer.strip():
            return NO_ANSWER
        text = extract_final_answer(answer)
        if len(text) > MAX_CHARACTERS:
            return Grade(0.0, correct=False, well_formed=False, note="answer too long")
        percent = asks_for_percent(task.prompt)
        text = _without_question(normalise(from_unicode(text), drop_percent=percent), task.prompt)
        comparison = SymbolicComparison(self.timeout_s)
        decide = comparison.equal if self.symbolic else _never_equal
        truths = (normalise(from_unicode(truth), drop_percent=percent) for truth in (task.answer, *task.aliases))
        correct = any(answers_agree(truth, text, decide) for truth in truths)
        return Grade(float(correct), correct, bool(text), "" if correct else comparison.note)


class SymbolicComparison:
    """Asks math-verify about pairs of values until the time for one answer is used up.

    Only the computing time of the worker counts, not its start and not the wait for a free worker.
    """

    def __init__(self, timeout_s: float) -> None:
        self.left_s = timeout_s
        self.note = ""

    def equal(self, truth: str, answer: str) -> bool:
        if self.left_s <= 0:
            self.note = "symbolic comparison: timeout"
            return False
        pair = {"truth": _as_latex(truth), "answer": _as_latex(answer)}
        result = shared_pool(_SYMBOLIC).ask(pair, self.left_s)
        self.left_s -= result.seconds
        if result.failure:
            self.note = f"symbolic comparison: {result.failure}"
        elif result.value is None:
            self.note = "symbolic comparison: not read"
        return result.value is True


def _without_question(text: str, prompt: str) -> str:
    """Return the right side of an equation whose left side is in the prompt: 3 of `x + y = 3` if x + y is asked for."""
    left, equals, right = text.partition("=")
    has_symbol = re.search("[A-Za-z]", _COMMANDS.sub("", left))
    if not equals or "=" in right or not right.strip() or not has_symbol:
        return text
    question = re.sub(r"\s", "", normalise(from_unicode(prompt[-MAX_PROMPT_CHARACTERS:])))
    return right.strip() if re.sub(r"\s", "", left) in question else text


def _never_equal(truth: str, answer: str) -> bool:
    return False


def _as_latex(text: str) -> str:
    """Write a short decimal as a fraction, because math-verify would take it for a rounded value."""
    value = parse_rational(text) if "." in text and not is_precise(text) else None
    if value is not None:
        return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    return text.replace("\\lbrace", "\\{").replace("\\rbrace", "\\}")
