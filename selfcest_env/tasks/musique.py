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
    """Source of the official JSON lines. Records without an answer, as in MuSiQue-Full, are skipped."""

    name: ClassVar[str] = "musique"

    def read(self, record: Record) -> Task | Skipped | None:
        if record.has("answerable") and not record.flag("answerable"):
            return Skipped("not answerable")
        paragraphs = record.parts("paragraphs")
        keys = make_unique_keys(paragraph.text("title") for paragraph in paragraphs)
        key_by_index: dict[int, str] = {}
        for paragraph, key in zip(paragraphs, keys, strict=True):
            if paragraph.integer("idx") in key_by_index:
                raise paragraph.mismatch("idx", "a number that no other paragraph has")
            key_by_index[paragraph.integer("idx")] = key
        question_id = record.text("id")
        hops = record.parts("question_decomposition")
        plan = QuestionPlan(tuple(_read_step(hop, key_by_index) for hop in hops))
        support: dict[str, None] = {}  # keys in order, each once
        for step in plan.steps:
            support |= dict.fromkeys(step.keys)
        return self.question(
            record,
            record.text("question"),
            record.text("answer"),
            {key: paragraph.text("paragraph_text") for paragraph, key in zip(paragraphs, keys, strict=True)},
            plan=plan,
            support=tuple(support),
            aliases=record.texts("answer_aliases"),
            metadata={
                "id": question_id,
                # The id begins with the shape of the decomposition, such as `3hop1` or `4hop2`.
                "shape": question_id.partition("__")[0],
                "hops": len(hops),
                "qa_rule": "squad",
            },
        )


def _read_step(hop: Record, keys: dict[int, str]) -> PlanStep:
    support = hop.integer("paragraph_support_idx")
    if support not in keys:
        raise hop.mismatch("paragraph_support_idx", "the idx of one of the paragraphs")
    return PlanStep(hop.text("question"), (keys[support],), (hop.text("answer").strip(),))
