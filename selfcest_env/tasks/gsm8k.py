"""GSM8K: grade-school word problems with an integer answer (arXiv 2110.14168)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.graders.rational import MAX_CHARACTERS
from selfcest_env.tasks.files import Record
from selfcest_env.tasks.finite import FileSource
from selfcest_env.types import Task

_GOLD = re.compile(r"-?[0-9]+(?:,[0-9]{3})*")
_ANSWER_MARK = "####"
_CALCULATION_MARK = "<<"


@dataclass(frozen=True)
class GSM8K(FileSource):
    """Source of the official JSON lines with `question` and `answer`. The hub has the same layout.

    The truth is the integer after the last `####`, without thousands commas. The metadata key `steps` is the number of
    calculations in the official solution. The grader is `number`.
    """

    name: ClassVar[str] = "gsm8k"

    def read(self, record: Record) -> Task:
        solution = record.text("answer")
        gold = solution.rpartition(_ANSWER_MARK)[2].strip() if _ANSWER_MARK in solution else ""
        if not _GOLD.fullmatch(gold) or len(gold) > MAX_CHARACTERS:
            expected = f"a solution that ends in {_ANSWER_MARK!r} and an integer of at most {MAX_CHARACTERS} characters"
            raise record.mismatch("answer", expected)
        num_steps = solution.count(_CALCULATION_MARK)
        return self.make(record, record.text("question"), gold.replace(",", ""), steps=num_steps)
