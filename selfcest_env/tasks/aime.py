"""AIME: competition problems whose answer is an integer from 0 to 999. One problem has two right answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from selfcest_env.structure import Between, check_order
from selfcest_env.tasks.files import SUFFIXES, Record
from selfcest_env.tasks.finite import FileSource
from selfcest_env.tasks.math import DRAWING
from selfcest_env.types import Scalar, Task

_ANSWERS = re.compile(r"([0-9]{1,3}(?:\s+or\s+[0-9]{1,3})*)\s*(?:\([^()]*\))?")


_Year = Annotated[int, Between(1983, 2999)]


@dataclass(frozen=True)
class AIME(FileSource):
    """Source of the CSV of 1983 to 2024 (`ID,Year,Problem Number,Question,Answer,Part`) or JSON lines of 2024 and 2025.

    JSON lines have `problem`, `answer` and sometimes `id` and `year`. The answer "080 or 081 (both were accepted)" is
    the truth 80 with the alias 81. The metadata hold `year` and `drawing`. The grader is `number`.

    Attributes:
        first_year, last_year: range of years, both included. If one is set, a record without a year is an error.
        drawings: whether to keep problems with a drawing in Asymptote code.
    """

    name: ClassVar[str] = "aime"
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES
    first_year: _Year | None = None
    last_year: _Year | None = None
    drawings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_year is not None and self.last_year is not None:
            check_order(self, "first_year", "last_year")

    def read(self, record: Record) -> Task | None:
        question = record.text("Question" if record.has("Question") else "problem")
        year = self._read_year(record)
        has_drawing = DRAWING in question
        is_early = self.first_year is not None and year is not None and year < self.first_year
        is_late = self.last_year is not None and year is not None and year > self.last_year
        if is_early or is_late or (has_drawing and not self.drawings):
            return None
        answer, *aliases = _read_answers(record)
        facts: dict[str, Scalar] = {"drawing": has_drawing}
        if year is not None:
            facts["year"] = year
        return self.make(record, question, answer, None, tuple(aliases), **facts)

    def _read_year(self, record: Record) -> int | None:
        key = "Year" if record.has("Year") else "year"
        if not record.has(key):
            if self.first_year is None and self.last_year is None:
                return None
            raise record.mismatch(key, "a year, since first_year or last_year is set")
        year = str(record.data[key])
        if not re.fullmatch(r"(?:19|20)[0-9]{2}", year):
            raise record.mismatch(key, "a year")
        return int(year)


def _read_answers(record: Record) -> list[str]:
    """Return all accepted answers, without leading zeros."""
    key = "Answer" if record.has("Answer") else "answer"
    value = record.data.get(key)
    match = _ANSWERS.fullmatch(str(value).strip()) if isinstance(value, (str, int)) else None
    if match is None:
        raise record.mismatch(key, "an integer from 0 to 999, or several with 'or' between them")
    return [str(int(number)) for number in re.split(r"\s+or\s+", match[1])]
