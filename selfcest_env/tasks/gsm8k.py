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
_MARK, _STEP = "####", "<<"


@dataclass(frozen=True)
class GSM8K(FileSource):
    """The official JSON lines, and the layout of the hub, which is the same: `question`, `answer`.

    The truth is the integer after the last `####`, without thousands commas. Metadata: `steps`, calculations of the
    official solution. Grader: `number`.
    """

    name: ClassVar[str] = "gsm8k"

    def read(self, record: Record) -> Task:
        solution = record.text("answer")
        gold = solution.rpartition(_MARK)[2].strip() if _MARK in solution else ""
        if not _GOLD.fullmatch(gold) or len(gold) > MAX_CHARACTERS:
            raise record.mismatch("answer", f"a solution that ends in {_MARK!r} and an integer that graders read")
        return self.make(record, record.text("question"), gold.replace(",", ""), steps=solution.count(_STEP))
