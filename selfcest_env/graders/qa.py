"""Answers in words: exact match and F1 as SQuAD counts them, with the rules that HotpotQA and others add.

Supporting facts are scored apart, as sets: what an agent looked at is no part of its answer.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Set
from dataclasses import dataclass
from typing import ClassVar, Literal

from selfcest_env.errors import RewardError
from selfcest_env.graders.boxed import extract_final_answer
from selfcest_env.graders.grade import NO_ANSWER, Grade
from selfcest_env.stored import stored_as
from selfcest_env.types import Task

SQUAD, HOTPOTQA = "squad", "hotpotqa"
RULES = (SQUAD, HOTPOTQA)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = {"yes", "no", "noanswer"}


@stored_as(exact="exact", f1="f1", precision="precision", recall="recall")
@dataclass(frozen=True, slots=True)
class Overlap:
    """Agreement of a prediction with the truth; every field is in [0, 1]."""

    exact: float
    f1: float
    precision: float
    recall: float

    def __mul__(self, other: Overlap) -> Overlap:
        """HotpotQA's joint score of answer and supporting facts: products of precision, recall and exact match."""
        precision, recall = self.precision * other.precision, self.recall * other.recall
        return Overlap(self.exact * other.exact, _harmonic(precision, recall), precision, recall)


NONE, ALL = Overlap(0.0, 0.0, 0.0, 0.0), Overlap(1.0, 1.0, 1.0, 1.0)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, without a, an, the, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


# What the official normalisation drops although it tells answers apart: `-5`, `C++`, `C#`, `5%`, `1.5`, `1/2`, `1:30`.
_SIGN = re.compile(r"(?<!\w)-\s?(?=[$£€]?\.?[0-9])")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9])[.,:/*^=-](?=[0-9])|(?<![0-9])\.(?=[0-9])")
_MEANT_ANYWHERE = re.compile(r"[&/<=@\\^|~]")
# `#5`, `-Ulm` and `!Ulm`, but not a heading, a list or a quote in Markdown, nor a hyphen within a word.
_MEANT_BEFORE = re.compile(r"[<>](?=\s?[0-9])|(?<!\w)[!#>-](?=[\w−])|(?<!\w)\+(?=[^\W\d])")
_AFTER_A_WORD = re.compile(r"(?<=[\w.])(?:[#%+]+|\s?[#%+!^](?!\w))")
_MEANT = str.maketrans({"#": "♯", "%": "％", "+": "＋", "!": "！", "^": "＾", " ": None})
_LEADING_ARTICLE = re.compile(
    r"^(?:an?|the)\s+(?=\S)(?!(?:(?:an?|the)(?:\s+|$))+$)|^the\s+(?=an?$)|\bthe\s+(?=\w)(?!an?$)"
)


def normalize_strictly(text: str) -> str:
    """As `normalize_answer`, but without dropping a sign or symbol that tells answers apart.

    A minus sign, `C++` and `C#`, percents, decimals, fractions, times and ranges keep their signs, and so do `&`, `/`,
    `~` and other symbols that are no punctuation. `a` and `an` are dropped at the start only and no article at the
    end, so that "vitamin A" is no "vitamin". An answer without a word is what it is.
    """
    text = " ".join(text.lower().split())
    text = _THOUSANDS.sub("", text)
    text = _SIGN.sub("−", text)
    text = _BETWEEN_DIGITS.sub(lambda match: chr(ord(match[0]) + 0xFEE0), text)  # full-width, which is no ASCII
    text = _MEANT_BEFORE.sub(lambda match: chr(ord(match[0]) + 0xFEE0), text)
    text = _MEANT_ANYWHERE.sub(lambda match: chr(ord(match[0]) + 0xFEE0), text)
    # An exclamation mark after a word is punctuation, after a digit it is a factorial.
    text = _AFTER_A_WORD.sub(
        lambda match: (
            match[0]
            if match[0] == "!" and not match.string[match.start() - 1].isdigit()
            else match[0].translate(_MEANT)
        ),
        text,
    )
    words = " ".join(text.translate(_NO_PUNCTUATION).split())
    return " ".join(_LEADING_ARTICLE.sub("", words).split()) or text


def answer_overlap(
    prediction: str, truth: str, rule: str = SQUAD, normalize: Callable[[str], str] = normalize_answer
) -> Overlap:
    """Compare the words of two answers, counted with multiplicity.

    Args:
        prediction, truth: texts; both are normalised.
        rule: "squad": two answers without a word agree, one does not agree with any other (so does MuSiQue).
            "hotpotqa": yes, no and noanswer agree only with themselves, and nothing has an F1 without a common word (so
            does 2WikiMultihopQA).
        normalize: `normalize_answer`, the official one, or `normalize_strictly`.
    """
    left, right = normalize(prediction), normalize(truth)
    exact = float(left == right)
    if rule == HOTPOTQA and not exact and not _CLOSED.isdisjoint((left, right)):
        return NONE
    ours, theirs = left.split(), right.split()
    if not ours or not theirs:
        return Overlap(exact, *(exact if rule == SQUAD else 0.0,) * 3)
    common = (Counter(ours) & Counter(theirs)).total()
    precision, recall = common / len(ours), common / len(theirs)
    return Overlap(exact, _harmonic(precision, recall), precision, recall)


def set_overlap(predicted: Set[Hashable], truth: Set[Hashable]) -> Overlap:
    """Compare sets: supporting facts (title and sentence), supporting paragraphs, document keys.

    Two empty sets agree: MuSiQue's rule (HotpotQA, where no truth is empty, would give F1 0).
    """
    if not predicted and not truth:
        return ALL
    common = len(predicted & truth)
    precision = common / len(predicted) if predicted else 0.0
    recall = common / len(truth) if truth else 0.0
    return Overlap(float(predicted == truth), _harmonic(precision, recall), precision, recall)


def _harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@dataclass(frozen=True)
class QuestionAnswer:
    """Right if the normalised answer is the ground truth or an alias; the rule is the one of the task's data set.

    Attributes:
        score: "exact", or "f1" for partial credit; the best over truth and aliases.
        strict: whether signs and symbols count that the official normalisation drops (`-5` is no 5, `C++` no `C#`,
            `...` no `A`). For training; published scores are without.
        extract_answer: whether `extract_final_answer` first looks for the answer in a box or after "the answer is". For
            training; published scores are without.
    """

    max_characters: ClassVar[int] = 100_000
    score: Literal["exact", "f1"] = "exact"
    strict: bool = False
    extract_answer: bool = False

    def grade(self, task: Task, answer: str | None) -> Grade:
        if not answer or not answer.strip():
            return NO_ANSWER
        if len(answer) > self.max_characters:
            return Grade(0.0, False, False, "answer too long")
        rule = str(task.metadata.get("qa_rule", SQUAD))
        if rule not in RULES:
            raise RewardError(f"task {task.task_id}: qa_rule is {rule!r}; expected one of {', '.join(RULES)}")
        text = _without_latex(extract_final_answer(answer)) if self.extract_answer else answer
        overlaps = [self._overlap(text, truth, rule) for truth in (task.answer, *task.aliases)]
        exact = max(overlap.exact for overlap in overlaps)
        if text != answer and not exact:  # a truth may itself contain "the answer is"
            exact = max(self._overlap(answer, truth, rule).exact for truth in (task.answer, *task.aliases))
        score = exact if self.score == "exact" else max(exact, *(overlap.f1 for overlap in overlaps))
        return Grade(score, bool(exact), True)

    def _overlap(self, text: str, truth: str, rule: str) -> Overlap:
        official = answer_overlap(text, truth, rule)
        if not self.strict:
            return official
        strict = answer_overlap(text, truth, rule, normalize_strictly)
        return strict if official.exact or not strict.exact else official  # never right where the official rule is not


_LATEX_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_MARKUP = re.compile(r"</?(?:b|i|em|strong|p|u|code|span|div)>", re.IGNORECASE)
_UNDERLINED = re.compile(r"^(_{1,2})([^_].*[^_]|[^_])\1$")


def _without_latex(text: str) -> str:
    r"""The words of `\text{Paris}`, `$Paris$`, `**Paris**`, `<b>Paris</b>`, `_Paris_` and `“Paris”`."""
    text = _MARKUP.sub("", _LATEX_TEXT.sub(r"\1", text)).strip()
    return _UNDERLINED.sub(r"\2", text).strip("$*“”‘’ ")
