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
    r"""The official folder (a file a problem), the hub's layout, and MATH-500's JSON lines.

    MATH has `problem`, `level` ("Level 5"), `type` and `solution`, whose last `\boxed{}` is the truth; MATH-500 has
    `level` as an integer, `subject` and `answer`. Metadata: `level` (left out if it is "Level ?"), `subject`,
    `drawing`. Grader: `math`. Records whose last box is empty, as two of the official training set, are skipped.

    Attributes:
        levels: 1 to 5; all if empty. `[5]` is what the hub calls MATH-Hard.
        subjects: all if empty.
        drawings: whether to keep problems with a drawing in Asymptote code.
    """

    name: ClassVar[str] = "math"
    suffixes: ClassVar[tuple[str, ...]] = (".json", ".jsonl")
    levels: tuple[Annotated[int, Between(1, 5)], ...] = ()
    subjects: tuple[Annotated[str, OneOf(*SUBJECTS)], ...] = ()
    drawings: bool = True

    def read(self, record: Record) -> Task | Skipped | None:
        problem, level = record.text("problem"), _level(record)
        subject = record.text("subject" if record.has("subject") else "type")
        drawing = DRAWING in problem
        wanted = (not self.levels or level in self.levels) and (not self.subjects or subject in self.subjects)
        if not wanted or (drawing and not self.drawings):
            return None
        facts: dict[str, Scalar] = {"subject": subject, "drawing": drawing}
        if level is not None:
            facts["level"] = level
        answer = _answer(record)
        return self.make(record, problem, answer, **facts) if answer else Skipped("an empty box")


def _level(record: Record) -> int | None:
    level = record.data.get("level")
    match = _LEVEL.fullmatch(level) if isinstance(level, str) else None
    if match:
        return None if match[1] == "?" else int(match[1])
    if isinstance(level, bool) or level not in (1, 2, 3, 4, 5):
        raise record.mismatch("level", "'Level 1' to 'Level 5', 'Level ?', or 1 to 5")
    return int(level)


def _answer(record: Record) -> str:
    """The truth; empty if the solution's last box is."""
    key = "answer" if record.has("answer") else "solution"
    text = record.text(key)
    answer = text.strip() if key == "answer" else extract_last_boxed(text)
    if answer is None or (key == "answer" and not answer):
        raise record.mismatch(key, r"a text with a last \boxed{answer}")
    if len(answer) > MAX_CHARACTERS:
        raise record.error(key, f"holds an answer of {len(answer)} characters; no grader reads over {MAX_CHARACTERS}")
    return answer
