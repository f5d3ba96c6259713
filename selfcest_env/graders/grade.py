"""What a grader is, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from selfcest_env.stored import stored_as
from selfcest_env.types import Task


@stored_as(key="key", score="score")
@dataclass(frozen=True, slots=True)
class AnswerPart:
    """What one part of an answer adds to its score.

    Attributes:
        key: what the part is about: the key of a document, so that a clone which was handed it answers for the part.
        score: its summand.
    """

    key: str
    score: float


@stored_as(score="score", correct="correct", well_formed="well_formed", note="note", parts="parts")
@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader says of a final answer.

    Attributes:
        score: in [0, 1].
        correct: whether the answer counts as right.
        well_formed: whether it has the form of an answer at all.
        note: why the score is a floor and not what the rule gives, for those who count such cases; else empty.
        parts: what the score is the sum of, each key once; empty where the grader judges the answer as a whole.
    """

    score: float
    correct: bool
    well_formed: bool
    note: str = ""
    parts: tuple[AnswerPart, ...] = ()


class Grader(Protocol):
    def grade(self, task: Task, answer: str | None) -> Grade:
        """Judge the root's final answer; `None` if the episode ended without one."""
        ...


NO_ANSWER = Grade(0.0, False, False)
