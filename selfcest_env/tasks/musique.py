"""MuSiQue-Ans: questions of two to four hops over twenty paragraphs, with gold sub-questions (CC BY 4.0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from selfcest_env.tasks.files import Record
from selfcest_env.tasks.finite import Skipped
from selfcest_env.tasks.plan import PlanStep, QuestionPlan
from selfcest_env.tasks.qa import QuestionSource, make_unique_keys
from selfcest_env.types import Task


@dataclass(frozen=True)
class Musique(QuestionSource):
    """The official JSON lines. Records that are not answerable (MuSiQue-Full) are skipped."""

    name: ClassVar[str] = "musique"

    def read(self, record: Record) -> Task | Skipped | None:
        if record.has("answerable") and not record.flag("answerable"):
            return Skipped("not answerable")
        paragraphs = record.parts("paragraphs")
        keys = make_unique_keys(paragraph.text("title") for paragraph in paragraphs)
        by_index: dict[int, str] = {}
        for paragraph, key in zip(paragraphs, keys, strict=True):
            if paragraph.integer("idx") in by_index:
                raise paragraph.mismatch("idx", "a number that no other paragraph has")
            by_index[paragraph.integer("idx")] = key
        name, hops = record.text("id"), record.parts("question_decomposition")
        plan = QuestionPlan(tuple(_step(hop, by_index) for hop in hops))
        return self.question(
            record,
            record.text("question"),
            record.text("answer"),
            {key: paragraph.text("paragraph_text") for paragraph, key in zip(paragraphs, keys, strict=True)},
            plan=plan,
            support=tuple(dict.fromkeys(key for step in plan.steps for key in step.keys)),
            aliases=record.texts("answer_aliases"),
            metadata={"id": name, "shape": name.partition("__")[0], "hops": len(hops), "qa_rule": "squad"},
        )


def _step(hop: Record, keys: dict[int, str]) -> PlanStep:
    support = hop.integer("paragraph_support_idx")
    if support not in keys:
        raise hop.mismatch("paragraph_support_idx", "the idx of one of the paragraphs")
    return PlanStep(hop.text("question"), (keys[support],), (hop.text("answer").strip(),))
