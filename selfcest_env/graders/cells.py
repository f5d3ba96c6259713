"""Answers of several cells, one character each, graded cell by cell or as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selfcest_env.graders.grade import Grade, Part
from selfcest_env.structure import Checked
from selfcest_env.types import Task


@dataclass(frozen=True)
class Cells(Checked):
    """Compares character by character with the ground truth; right if all agree and there are no more.

    Source of the pair of gradings: `docs/credit.md`, where counterfactual credit pays and where it cannot.

    Attributes:
        coupling: `sum` scores the share of right cells, each of them a part; `all` scores 1 for a right answer, else 0,
            and has no parts.

    The task's metadata names what each cell is about: `cells`, one character each.
    """

    coupling: Literal["sum", "all"] = "sum"

    def grade(self, task: Task, answer: str | None) -> Grade:
        keys, truth = str(task.metadata.get("cells", "")), task.answer
        if len(keys) != len(truth) or not truth:
            raise ValueError(
                f"task {task.task_id} of {task.source!r} has the answer {truth!r} and metadata 'cells' {keys!r}; "
                "expected a key for every character of the answer"
            )
        text = (answer or "").strip()
        right = [text[i : i + 1] == truth[i] for i in range(len(truth))]
        correct, well_formed = text == truth, len(text) == len(truth)
        if self.coupling == "all":
            return Grade(float(correct), correct, well_formed)
        parts = tuple(Part(key, hit / len(truth)) for key, hit in zip(keys, right, strict=True))
        return Grade(sum(right) / len(truth), correct, well_formed, parts=parts)
