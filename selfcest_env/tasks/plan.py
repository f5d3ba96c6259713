"""The decomposition of a question over documents: steps that a few documents answer, and the join of their answers.

The question of a step refers to the answers of earlier steps as `#1`, `#2`. Steps without such a link are independent.
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
    """Return the words of a text in lower case with single spaces, without punctuation."""
    return " ".join(_WORDS.findall(unicodedata.normalize("NFKC", text).casefold()))


def appears_in(answer: str, text: str) -> bool:
    """Return whether a text contains the words of an answer in sequence."""
    return bool(normalize_words(answer)) and f" {normalize_words(answer)} " in f" {normalize_words(text)} "


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A question that a few documents answer.

    Attributes:
        question: the question. `#1` is replaced by the answer of step 1 if that step is earlier.
        keys: keys of the documents that contain the answer.
        answers: the parts of the gold answer. A question for several things has several.
    """

    question: str
    keys: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def answer(self) -> str:
        return "; ".join(self.answers)

    def links(self, position: int) -> frozenset[int]:
        """Return the indices, from 0, of the earlier steps to which the question at this position refers."""
        indices = (int(number) - 1 for number in _LINK.findall(self.question))
        return frozenset(index for index in indices if index < position)

    def ask(self, position: int, known: Mapping[int, str]) -> str:
        """Return the question with the known answers in place of its links."""
        links = self.links(position)

        def resolve(match: re.Match[str]) -> str:
            index = int(match[1]) - 1
            return known[index] if index in links else match[0]

        return _LINK.sub(resolve, self.question)

    def answered_by(self, texts: Sequence[str]) -> bool:
        """Return whether these documents contain all parts of the gold answer."""
        return all(any(appears_in(answer, text) for text in texts) for answer in self.answers)


@dataclass(frozen=True, slots=True)
class QuestionPlan:
    """A decomposition of a question.

    Attributes:
        steps: the steps, in an order in which they can be answered.
        comparison: comparison of the steps' answers. Without it, the answer of the last step is the answer.
    """

    steps: tuple[PlanStep, ...]
    comparison: Comparison | None = None

    def ready(self, known: Mapping[int, str]) -> tuple[int, ...]:
        """Return the indices of the unanswered steps whose links are all known."""
        indices: list[int] = []
        for index, step in enumerate(self.steps):
            if index not in known and step.links(index) <= known.keys():
                indices.append(index)
        return tuple(indices)

    def conclude(self, known: Mapping[int, str]) -> str | None:
        """Return the answer that follows from the answers of all steps, or `None` if none follows."""
        if self.comparison is not None:
            return self.comparison.decide(known)
        return known[len(self.steps) - 1]

    def gold(self) -> dict[int, str]:
        """Return the gold answers of all steps, by index."""
        return {index: step.answer for index, step in enumerate(self.steps)}

    def fault(self, documents: Mapping[str, str], answers: Sequence[str]) -> str:
        """Return why a perfect reader of single documents cannot find a right answer by this plan; empty if it can.

        Args:
            documents: texts by key.
            answers: the gold answer and its aliases.
        """
        if not self.steps or not all(documents.keys() >= {*step.keys} for step in self.steps):
            return "a step without a document"
        for step in self.steps:
            if not step.answered_by([documents[key] for key in step.keys]):
                return "a step's answer does not stand in its document"
        if normalize_words(self.conclude(self.gold()) or "") not in map(normalize_words, answers):
            return "the answers of the steps do not lead to the answer"
        return ""

    def write(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def read(cls, text: str) -> QuestionPlan:
        """Read a plan that `write` returned."""
        data = json.loads(text)
        steps = (PlanStep(step["question"], tuple(step["keys"]), tuple(step["answers"])) for step in data["steps"])
        comparison = data["comparison"] and Comparison.of(data["comparison"])
        return cls(tuple(steps), comparison or None)
