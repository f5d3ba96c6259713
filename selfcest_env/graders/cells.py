"""Answers of several cells of one width, graded cell by cell or as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfcest_env.graders.grade import AnswerPart, Grade
from selfcest_env.structure import Checked
from selfcest_env.types import Task


@dataclass(frozen=True)
class CellMatch(Checked):
    """Compares cell by cell with the ground truth; right if all agree and nothing follows.

    Attributes:
        coupling: `sum` scores the share of right cells, each of them a part; `all` scores 1 for a right answer, else 0,
            and has no parts.

    The task's metadata says what each cell is about: `cells`, one character each. Cells are as wide as the ground truth
    is long for each of them.
    """

    coupling: Literal["sum", "all"] = "sum"

    def grade(self, task: Task, answer: str | None) -> Grade:
        keys, truth = str(task.metadata.get("cells", "")), task.answer
        if not keys or not truth or len(truth) % len(keys):
            raise ValueError(
                f"task {task.task_id} of {task.source!r} has the answer {truth!r} and metadata 'cells' {keys!r}; "
                "expected a key for every cell of the answer"
            )
        text, width = (answer or "").strip(), len(truth) // len(keys)
        places = [slice(start, start + width) for start in range(0, len(truth), width)]
        right = [text[place] == truth[place] for place in places]
        correct, well_formed = text == truth, len(text) == len(truth)
        if self.coupling == "all":
            return Grade(float(correct), correct, well_formed)
        parts = tuple(AnswerPart(key, hit / len(keys)) for key, hit in zip(keys, right, strict=True))
        return Grade(sum(right) / len(keys), correct, well_formed, parts=parts)
