r"""MATH (arXiv 2103.03874), MATH-500 and level 5 of either: competition problems with a `\boxed{}` answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from selfcest_env.graders.boxed import extract_last_boxed
from selfcest_env.graders.rational import MAX_CHARACTERS
from selfcest_env.structure import Between, OneOf
from selfcest_env.tasks.files import Record
from selfcest_env.tasks.finite import FileSource, Skipped
from selfcest_env.types import Scalar, Task

SUBJECTS = (
    "Algebra",
    "Counting & Probability",
    "Geometry",
    "Intermediate Algebra",
    "Number Theory",
    "Prealgebra",
    "Precalculus",
)
DRAWING = "[asy]"
_LEVEL = re.compile(r"Level ([1-5?])")


@dataclass(frozen=True)
class Math(FileSource):
    r"""Source of the official folder (one file per problem), the hub's layout, or the JSON lines of MATH-500.

    MATH has `problem`, `level` ("Level 5"), `type` and `solution`, whose last `\boxed{}` is the truth. MATH-500 has
    `level` as an integer, `subject` and `answer`. The metadata hold `subject`, `drawing`, and `level` unless it is
    "Level ?". The grader is `math`. Records whose last box is empty are skipped; the official training set has two.

    Attributes:
        levels: levels to keep, 1 to 5. Empty means all. `[5]` is the set that the hub calls MATH-Hard.
        subjects: subjects to keep. Empty means all.
        drawings: whether to keep problems with a drawing in Asymptote code.
    """

    name: ClassVar[str] = "math"
    suffixes: ClassVar[tuple[str, ...]] = (".json", ".jsonl")
    levels: tuple[Annotated[int, Between(1, 5)], ...] = ()
    subjects: tuple[Annotated[str, OneOf(*SUBJECTS)], ...] = ()
    drawings: bool = True

    def read(self, record: Record) -> Task | Skipped | None:
        problem = record.text("problem")
        level = _read_level(record)
        subject = record.text("subject" if record.has("subject") else "type")
        has_drawing = DRAWING in problem
        has_level = not self.levels or level in self.levels
        has_subject = not self.subjects or subject in self.subjects
        if not has_level or not has_subject or (has_drawing and not self.drawings):
            return None
        facts: dict[str, Scalar] = {"subject": subject, "drawing": has_drawing}
        if level is not None:
            facts["level"] = level
        answer = _read_answer(record)
        return self.make(record, problem, answer, **facts) if answer else Skipped("an empty box")


def _read_level(record: Record) -> int | None:
    level = record.data.get("level")
    match = _LEVEL.fullmatch(level) if isinstance(level, str) else None
    if match:
        return None if match[1] == "?" else int(match[1])
    if isinstance(level, bool) or level not in (1, 2, 3, 4, 5):
        raise record.mismatch("level", "'Level 1' to 'Level 5', 'Level ?', or 1 to 5")
    return int(level)


def _read_answer(record: Record) -> str:
    """Return the truth, which is empty if the last box of the solution is empty."""
    key = "answer" if record.has("answer") else "solution"
    text = record.text(key)
    answer = text.strip() if key == "answer" else extract_last_boxed(text)
    if answer is None or (key == "answer" and not answer):
        raise record.mismatch(key, r"a text with a last \boxed{answer}")
    if len(answer) > MAX_CHARACTERS:
        raise record.error(key, f"holds an answer of {len(answer)} characters; expected at most {MAX_CHARACTERS}")
    return answer
