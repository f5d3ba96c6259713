"""Grade answers in words by SQuAD's exact match and F1, with the additional rules of HotpotQA.

Supporting facts are scored separately, as sets, because the documents that an agent read are not part of its answer.
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

SQUAD = "squad"
HOTPOTQA = "hotpotqa"
RULES = (SQUAD, HOTPOTQA)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED_ANSWERS = {"yes", "no", "noanswer"}


@stored_as(exact="exact", f1="f1", precision="precision", recall="recall")
@dataclass(frozen=True, slots=True)
class Overlap:
    """The agreement of a prediction with the truth. Every field is in [0, 1]."""

    exact: float
    f1: float
    precision: float
    recall: float

    def __mul__(self, other: Overlap) -> Overlap:
        """Return HotpotQA's joint score of answer and supporting facts: products of the scores, and their F1."""
        precision = self.precision * other.precision
        recall = self.recall * other.recall
        return Overlap(self.exact * other.exact, _harmonic(precision, recall), precision, recall)


NO_OVERLAP = Overlap(0.0, 0.0, 0.0, 0.0)
FULL_OVERLAP = Overlap(1.0, 1.0, 1.0, 1.0)


def normalize_answer(text: str) -> str:
    """Return the text in lower case with single spaces, without ASCII punctuation and without a, an, the."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


# Signs that the official normalisation drops, though they tell apart `-5`, `C++`, `C#`, `5%`, `1.5`, `1/2` and `1:30`.
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
    """Normalise a text as `normalize_answer` does, but keep the signs and symbols that tell answers apart.

    Negative numbers, `C++`, `C#`, percents, decimals, fractions, times and ranges keep their signs. So do `&`, `/`, `~`
    and other symbols that are not punctuation. `a` and `an` are dropped only at the start, and no article is dropped at
    the end, so that "vitamin A" differs from "vitamin". A text without a word is returned as it is.
    """
    text = " ".join(text.lower().split())
    text = _THOUSANDS.sub("", text)
    text = _SIGN.sub("−", text)
    # A full-width character survives the removal of ASCII punctuation below.
    for pattern in (_BETWEEN_DIGITS, _MEANT_BEFORE, _MEANT_ANYWHERE):
        text = pattern.sub(lambda match: chr(ord(match[0]) + 0xFEE0), text)
    text = _AFTER_A_WORD.sub(_keep_meant_sign, text)
    words = " ".join(text.translate(_NO_PUNCTUATION).split())
    return " ".join(_LEADING_ARTICLE.sub("", words).split()) or text


def _keep_meant_sign(match: re.Match[str]) -> str:
    """Replace a sign after a word by a character that is not ASCII punctuation."""
    # An exclamation mark after a word is punctuation, after a digit it is a factorial.
    if match[0] == "!" and not match.string[match.start() - 1].isdigit():
        return match[0]
    return match[0].translate(_MEANT)


def answer_overlap(
    prediction: str, truth: str, rule: str = SQUAD, normalize: Callable[[str], str] = normalize_answer
) -> Overlap:
    """Compare the words of two answers, counted with multiplicity.

    Args:
        prediction, truth: texts before normalisation.
        rule: "squad" or "hotpotqa". By "squad", which MuSiQue uses too, an answer without a word agrees only with
            another such answer. By "hotpotqa", which 2WikiMultihopQA uses too, yes, no and noanswer agree only with
            themselves, and the F1 is 0 without a common word.
        normalize: `normalize_answer`, the official normalisation, or `normalize_strictly`.
    """
    predicted_text = normalize(prediction)
    true_text = normalize(truth)
    exact = float(predicted_text == true_text)
    if rule == HOTPOTQA and not exact and not _CLOSED_ANSWERS.isdisjoint((predicted_text, true_text)):
        return NO_OVERLAP
    predicted_words = predicted_text.split()
    true_words = true_text.split()
    if not predicted_words or not true_words:
        score = exact if rule == SQUAD else 0.0
        return Overlap(exact, score, score, score)
    num_common = (Counter(predicted_words) & Counter(true_words)).total()
    precision = num_common / len(predicted_words)
    recall = num_common / len(true_words)
    return Overlap(exact, _harmonic(precision, recall), precision, recall)


def set_overlap(predicted: Set[Hashable], truth: Set[Hashable]) -> Overlap:
    """Compare sets: supporting facts (title and sentence), supporting paragraphs, document keys.

    Two empty sets agree, by MuSiQue's rule. HotpotQA's rule would give F1 0, but its truths are never empty.
    """
    if not predicted and not truth:
        return FULL_OVERLAP
    num_common = len(predicted & truth)
    precision = num_common / len(predicted) if predicted else 0.0
    recall = num_common / len(truth) if truth else 0.0
    return Overlap(float(predicted == truth), _harmonic(precision, recall), precision, recall)


def _harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@dataclass(frozen=True)
class QuestionAnswer:
    """Right if the normalised answer equals the ground truth or an alias, by the rule of the task's data set.

    The task's metadata name the rule in `qa_rule` (default "squad"). Published scores use neither `strict` nor
    `extract_answer`; both are for training.

    Attributes:
        score: "exact", or "f1" for partial credit. The score is the best over the truth and the aliases.
        strict: whether to compare the signs and symbols that the official normalisation drops, so that `-5` differs
            from 5, `C++` from `C#` and `...` from `A`.
        extract_answer: whether to look for the answer in a box or after "the answer is" first.
    """

    max_characters: ClassVar[int] = 100_000
    score: Literal["exact", "f1"] = "exact"
    strict: bool = False
    extract_answer: bool = False

    def grade(self, task: Task, answer: str | None) -> Grade:
        if not answer or not answer.strip():
            return NO_ANSWER
        if len(answer) > self.max_characters:
            return Grade(0.0, correct=False, well_formed=False, note="answer too long")
        rule = str(task.metadata.get("qa_rule", SQUAD))
        if rule not in RULES:
            raise RewardError(f"task {task.task_id}: qa_rule is {rule!r}; expected one of {', '.join(RULES)}")
        text = _without_latex(extract_final_answer(answer)) if self.extract_answer else answer
        overlaps = [self._overlap(text, truth, rule) for truth in (task.answer, *task.aliases)]
        exact = max(overlap.exact for overlap in overlaps)
        # A truth may itself contain "the answer is". Then only the whole answer can match it.
        if text != answer and not exact:
            exact = max(self._overlap(answer, truth, rule).exact for truth in (task.answer, *task.aliases))
        score = exact if self.score == "exact" else max(exact, *(overlap.f1 for overlap in overlaps))
        return Grade(score, bool(exact), True)

    def _overlap(self, text: str, truth: str, rule: str) -> Overlap:
        official = answer_overlap(text, truth, rule)
        if not self.strict:
            return official
        strict = answer_overlap(text, truth, rule, normalize_strictly)
        # The strict rule must never accept an answer that the official rule refuses.
        return strict if official.exact or not strict.exact else official


_LATEX_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_MARKUP = re.compile(r"</?(?:b|i|em|strong|p|u|code|span|div)>", re.IGNORECASE)
_UNDERLINED = re.compile(r"^(_{1,2})([^_].*[^_]|[^_])\1$")


def _without_latex(text: str) -> str:
    r"""Return the words of `\text{Paris}`, `$Paris$`, `**Paris**`, `<b>Paris</b>`, `_Paris_` and `“Paris”`."""
    text = _MARKUP.sub("", _LATEX_TEXT.sub(r"\1", text)).strip()
    return _UNDERLINED.sub(r"\2", text).strip("$*“”‘’ ")
