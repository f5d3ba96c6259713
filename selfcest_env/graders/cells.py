"""Grade an answer that consists of cells of equal width, cell by cell or as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfcest_env.graders.grade import AnswerPart, Grade
from selfcest_env.structure import Checked
from selfcest_env.types import Task


@dataclass(frozen=True)
class CellMatch(Checked):
    """Compares each cell with the ground truth. An answer is right if all cells agree and no text follows.

    The metadata `cells` of the task hold one character per cell: the key of the cell's document. All cells have the
    same width, the length of the ground truth divided by the number of cells.

    Attributes:
        coupling: `sum` scores the share of right cells, and every cell is a part of the grade. `all` scores 1 for a
            right answer, else 0, and the grade has no parts.
    """

    coupling: Literal["sum", "all"] = "sum"

    def grade(self, task: Task, answer: str | None) -> Grade:
        keys = str(task.metadata.get("cells", ""))
        truth = task.answer
        if not keys or not truth or len(truth) % len(keys):
            raise ValueError(
                f"task {task.task_id} of {task.source!r} has the answer {truth!r} and metadata 'cells' {keys!r}; "
                "expected a key for every cell of the answer"
            )
        text = (answer or "").strip()
        correct = text == truth
        well_formed = len(text) == len(truth)
        if self.coupling == "all":
            return Grade(float(correct), correct, well_formed)
        width = len(truth) // len(keys)
        num_right = 0
        parts: list[AnswerPart] = []
        for index, key in enumerate(keys):
            cell = slice(index * width, (index + 1) * width)
            is_right = text[cell] == truth[cell]
            num_right += is_right
            parts.append(AnswerPart(key, is_right / len(keys)))
        return Grade(num_right / len(keys), correct, well_formed, parts=tuple(parts))
