"""The interface of a grader, and the grade that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from selfcest_env.stored import stored_as
from selfcest_env.types import Task


@stored_as(key="key", score="score")
@dataclass(frozen=True, slots=True)
class AnswerPart:
    """The contribution of one part of an answer to its score.

    Attributes:
        key: key of the document that the part is about. The clone that was handed this document is credited with it.
        score: summand of the score.
    """

    key: str
    score: float


@stored_as(score="score", correct="correct", well_formed="well_formed", note="note", parts="parts")
@dataclass(frozen=True, slots=True)
class Grade:
    """A grader's verdict on a final answer.

    Attributes:
        score: score in [0, 1].
        correct: whether the answer counts as right.
        well_formed: whether the answer has the form that the grader expects, right or wrong.
        note: reason why the rule could not be applied, so that such answers can be counted; else empty.
        parts: summands of the score with distinct keys; empty if the grader judges the answer as a whole.
    """

    score: float
    correct: bool
    well_formed: bool
    note: str = ""
    parts: tuple[AnswerPart, ...] = ()


class Grader(Protocol):
    def grade(self, task: Task, answer: str | None) -> Grade:
        """Judge the final answer of the root. The answer is `None` if the episode ended without one."""
        ...


NO_ANSWER = Grade(0.0, correct=False, well_formed=False)
