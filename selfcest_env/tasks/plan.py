"""How a question over documents falls apart: steps that are answered from a few documents each, and how they join.

A step's question may name the answers of earlier steps as `#1`, `#2`. Steps without such a link are independent.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from selfcest_env.tasks.comparison import Comparison

_LINK = re.compile(r"#([1-9])(?![0-9])")
_WORDS = re.compile(r"\w+")


def normalize_words(text: str) -> str:
    """The words of a text in lower case with single spaces: its content, whatever the punctuation."""
    return " ".join(_WORDS.findall(unicodedata.normalize("NFKC", text).casefold()))


def appears_in(answer: str, text: str) -> bool:
    """Whether the words of an answer stand in a text, one after the other."""
    return bool(normalize_words(answer)) and f" {normalize_words(answer)} " in f" {normalize_words(text)} "


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A question that a few documents answer.

    Attributes:
        question: what to ask; `#1` stands for the answer of step 1, if that is an earlier one.
        keys: the documents that hold the answer.
        answers: the gold answer; more than one if all of them are asked for.
    """

    question: str
    keys: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def answer(self) -> str:
        return "; ".join(self.answers)

    def links(self, position: int) -> frozenset[int]:
        """The steps, from 0, whose answers the question at this position names."""
        found = (int(number) - 1 for number in _LINK.findall(self.question))
        return frozenset(index for index in found if index < position)

    def ask(self, position: int, known: Mapping[int, str]) -> str:
        """The question with answers for links."""
        links = self.links(position)
        return _LINK.sub(
            lambda match: known[int(match[1]) - 1] if int(match[1]) - 1 in links else match[0], self.question
        )

    def answered_by(self, texts: Sequence[str]) -> bool:
        """Whether the gold answer stands in these documents."""
        return all(any(appears_in(answer, text) for text in texts) for answer in self.answers)


@dataclass(frozen=True, slots=True)
class QuestionPlan:
    """Steps in an order in which they can be answered; without a comparison the last answer is the answer."""

    steps: tuple[PlanStep, ...]
    comparison: Comparison | None = None

    def ready(self, known: Mapping[int, str]) -> tuple[int, ...]:
        """Steps that are open and whose links are known."""
        return tuple(
            index for index, step in enumerate(self.steps) if index not in known and step.links(index) <= known.keys()
        )

    def conclude(self, known: Mapping[int, str]) -> str | None:
        """The answer that follows from the answers of all steps, `None` if none follows."""
        if self.comparison is not None:
            return self.comparison.decide(known)
        return known[len(self.steps) - 1]

    def gold(self) -> dict[int, str]:
        return {index: step.answer for index, step in enumerate(self.steps)}

    def fault(self, documents: Mapping[str, str], answers: Sequence[str]) -> str:
        """Why a perfect reader of single documents could not come to a right answer by this plan; empty if it could.

        Args:
            documents: texts by key.
            answers: the gold answer and its aliases.
        """
        if not self.steps or any(key not in documents for step in self.steps for key in step.keys):
            return "a step without a document"
        if not all(step.answered_by([documents[key] for key in step.keys]) for step in self.steps):
            return "a step's answer does not stand in its document"
        if normalize_words(self.conclude(self.gold()) or "") not in map(normalize_words, answers):
            return "the answers of the steps do not lead to the answer"
        return ""

    def write(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def read(cls, text: str) -> QuestionPlan:
        """Inverse of `write`."""
        data = json.loads(text)
        steps = (PlanStep(step["question"], tuple(step["keys"]), tuple(step["answers"])) for step in data["steps"])
        comparison = data["comparison"] and Comparison.of(data["comparison"])
        return cls(tuple(steps), comparison or None)
