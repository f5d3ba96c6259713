"""Whether two mathematical answers are the same, as far as it can be told exactly."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from selfcest_env.graders.latex import Form, outer_form, unnamed, word
from selfcest_env.graders.rational import rational

PLACES = 6  # to which math-verify compares decimals with irrational values
_DECIMAL = re.compile(r"[-+−]?\s?[0-9,]*\.[0-9]{%d,}" % PLACES)  # noqa: UP031 (the braces are the pattern's)
_DIGITS = re.compile(r"[0-9]+")
_BASE = re.compile(r"[0-9]\s?_\s?\{?\s?([-+]?[0-9]+)")
_RELATIONS = ("<", ">", "\\le", "\\ge", "\\neq", "\\pm", "\\cup", "\\cap", "\\setminus", "\\infty", "\\mathbb")

Decide = Callable[[str, str], bool]


def same(truth: str, answer: str, decide: Decide) -> bool:
    r"""Whether two normalised answers are equal.

    Equal texts, equal exact values and equal words are equal; different values and different words are not. Of lists,
    sets, tuples and intervals the forms and the numbers of parts must agree, then the parts, in order where it counts.

    Args:
        truth, answer: as `normalise` gives them.
        decide: asked about two single values that can not be told apart exactly, as `\sqrt8` and `2\sqrt2`.
    """
    exactly = _exactly(truth, answer)
    if exactly is not None:
        return exactly
    truth, answer = _without_name(truth, answer)
    left, right = outer_form(truth), outer_form(answer)
    if left.form is right.form is Form.SINGLE:
        exactly = _exactly(truth, answer)
        return decide(truth, answer) if exactly is None else exactly
    if left.form is not right.form and {left.form, right.form} != {Form.LIST, Form.SET}:
        # A relation or a plus-minus may stand for an interval or a list; anything else is another thing.
        return any(sign in text for sign in _RELATIONS for text in (truth, answer)) and decide(truth, answer)
    if len(left.parts) != len(right.parts):
        return False
    if left.form.ordered:
        return all(same(a, b, decide) for a, b in zip(left.parts, right.parts, strict=True))
    return _matched(left.parts, right.parts, decide)


def is_precise(text: str) -> bool:
    """Whether it is a decimal of so many places and significant digits that it can stand for a value without end."""
    return bool(_DECIMAL.fullmatch(text)) and len(re.sub("[^0-9]", "", text).lstrip("0")) >= PLACES


def _rounded(text: str, value: Fraction, other: Fraction) -> bool:
    """Whether a text, of this value, is the other one rounded, which has no end as a decimal: 0.333333 is 1/3."""
    if not is_precise(text) or pow(10, other.denominator.bit_length(), other.denominator) == 0:
        return False
    return round(value, PLACES) == round(other, PLACES)


def _without_name(truth: str, answer: str) -> tuple[str, str]:
    """`x = 5` may be answered by `5`, and the other way round; between two equations the name counts."""
    names = [text.split("=")[0].strip() for text in (truth, answer) if "=" in text]
    return (truth, answer) if len({*names}) == 2 else (unnamed(truth), unnamed(answer))


def _exactly(truth: str, answer: str) -> bool | None:
    """Whether two texts are equal, `None` if that is not a question of texts, words or exact values."""
    if truth.replace(" ", "") == answer.replace(" ", "") and _DIGITS.findall(truth) == _DIGITS.findall(answer):
        return True
    bases = [sorted(_BASE.findall(text)) for text in (truth, answer)]
    if all(bases) and bases[0] != bases[1]:  # math-verify leaves out what stands below a number
        return False
    left, right = rational(truth), rational(answer)
    if left is not None and right is not None:
        return left == right or _rounded(truth, left, right) or _rounded(answer, right, left)
    words = word(truth), word(answer)
    if None not in words and max(map(len, (truth, answer))) > 1:
        return words[0] == words[1]
    # A number is not a word of several letters; one letter may be a symbol.
    for value, text in ((left, words[1]), (right, words[0])):
        if value is not None and text is not None:
            return False
    return None


def _matched(truths: tuple[str, ...], answers: tuple[str, ...], decide: Decide) -> bool:
    """Whether the parts pair up. Taking the first that fits will do, since equality is transitive."""
    left = list(answers)
    undecided = list[str]()
    for truth in truths:
        found = next((answer for answer in left if _exactly(truth, answer)), None)
        if found is None:
            undecided.append(truth)
        else:
            left.remove(found)
    for truth in undecided:
        found = next((answer for answer in left if same(truth, answer, decide)), None)
        if found is None:
            return False
        left.remove(found)
    return True
