"""Whether two mathematical answers are the same, as far as it can be told exactly."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from selfcest_env.graders.latex import Form, parse_outer_form, parse_words, strip_variable_name
from selfcest_env.graders.rational import parse_rational

PLACES = 6  # to which math-verify compares decimals with irrational values
_DECIMAL = re.compile(r"[-+−]?\s?[0-9,]*\.[0-9]{%d,}" % PLACES)  # noqa: UP031 (the braces are the pattern's)
_DIGITS = re.compile(r"[0-9]+")
_BASE = re.compile(r"[0-9]\s?_\s?\{?\s?([-+]?[0-9]+)")
_RELATIONS = ("<", ">", "\\le", "\\ge", "\\neq", "\\pm", "\\cup", "\\cap", "\\setminus", "\\infty", "\\mathbb")

_NEGATED = re.compile(r"\\(?:not|neq?|lnot|neg)(?![a-mo-z])|(?<![0-9)}])!=|<>")
_EQUALITY = re.compile(r"(?<![<>!:])=|\\(?:equiv|approx|simeq|sim|cong|doteq)(?![A-Za-z])")
_LESS_OR_MORE = r"<|>|\\(?:leqslant|geqslant|leq|geq|le|ge|lt|gt)(?![A-Za-z])"
_INEQUALITY = re.compile(
    rf"(?:(?P<left>[^<>=]*?[^<>=\s])\s*(?P<first>{_LESS_OR_MORE})\s*)?(?P<name>[A-Za-z])\s*"
    rf"(?:(?P<second>{_LESS_OR_MORE})\s*(?P<right>[^<>=,]*[^<>=,\s]))?"
)
# What an equation may have on its left: `x_1`, `f(2)`, `AB`, `|AB|`, `m\angle A`, `[ABC]`, words.
_NAME = re.compile(
    r"[A-Za-z]'*(?:\s?_\s?(?:\w|\{[^{}]*\}))?|\\(?!pi\b|infty\b|sqrt\b|frac\b)[a-z]+(?:\s?_\s?(?:\w|\{[^{}]*\}))?"
    r"|[A-Za-z]\s?\([^()=]*\)|[|\[]?\s?[A-Z]{2,4}\s?[|\]]?|m?\s?\\(?:angle|triangle|overline)\s?\{?\s?[A-Z]{1,4}\s?\}?"
    r"|[A-Za-z][A-Za-z' -]+[A-Za-z]"
)
_SQUARE_ROOT = re.compile(r"\\sqrt\{([0-9]{1,9})\}")

# math-verify leaves these out, and compares what is left: `3'`, `3^T`, `3_2`, `3, \ldots`, `3 \bmod 7`, `\phantom{3}`.
_LEFT_OUT = re.compile(
    r"\\(?:[hv]?phantom|[lc]?dots|[bp]?mod|prime|min|max|gcd|lcm)(?![A-Za-z])|['’…]|\.\.\.|(?<=[0-9)}\]])\s?_|\^\s?\{?\s?T"
)

Decide = Callable[[str, str], bool]


def answers_agree(truth: str, answer: str, decide: Decide) -> bool:
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
    if not {*_LEFT_OUT.findall(answer)} <= {*_LEFT_OUT.findall(truth)}:
        return False
    truth, answer = _without_name(truth, answer)
    by_relation = _by_relation(truth, answer, decide)
    if by_relation is not None:
        return by_relation
    left, right = parse_outer_form(truth), parse_outer_form(answer)
    if left.form is right.form is Form.SINGLE:
        exactly = _exactly(truth, answer)
        return decide(truth, answer) if exactly is None else exactly
    if left.form is not right.form and {left.form, right.form} != {Form.LIST, Form.SET}:
        # A relation or a plus-minus may stand for an interval or a list; anything else is another thing.
        return any(sign in text for sign in _RELATIONS for text in (truth, answer)) and decide(truth, answer)
    if Form.SET in (left.form, right.form):  # what stands twice in a set counts once
        return _matched(_distinct(left.parts), _distinct(right.parts), decide)
    if len(left.parts) != len(right.parts):
        return False
    if left.form.ordered:
        return all(answers_agree(a, b, decide) for a, b in zip(left.parts, right.parts, strict=True))
    return _matched(left.parts, right.parts, decide)


def _distinct(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The parts without those that are exactly equal to an earlier one."""
    distinct: list[str] = []
    for part in parts:
        if not any(_exactly(part, earlier) for earlier in distinct):
            distinct.append(part)
    return tuple(distinct)


def _by_relation(truth: str, answer: str, decide: Decide) -> bool | None:
    r"""Whether two texts agree of which one or both are relations; `None` if that is no question of relations.

    `x \ne 3` is no 3. `x < 5` is `(-\infty, 5)`. Of `6/2 = 3` every side has to be the truth, unless it is a name;
    beside `\approx` the truth, rounded, will do. math-verify looks at the last side alone.
    """
    if bool(_NEGATED.search(truth)) != bool(_NEGATED.search(answer)):
        return False
    left, right = _as_interval(truth), _as_interval(answer)
    if left is not None and right is not None:
        return left[0] == right[0] and answers_agree(left[1], right[1], decide)
    for interval, other in ((left, answer), (right, truth)):
        if interval is not None and parse_outer_form(other).form.is_interval:
            return answers_agree(interval[1], other, decide)
        if interval is not None and not any(sign in other for sign in _RELATIONS):
            return False
    if _EQUALITY.search(truth) or not _EQUALITY.search(answer) or len(parse_outer_form(answer).parts) > 1:
        return None
    sides = [side.strip() for side in _EQUALITY.split(answer) if side.strip()]
    approximate = any(match[0] != "=" for match in _EQUALITY.finditer(answer))
    equal = [answers_agree(truth, side, decide) for side in sides]
    return any(equal) and all(
        is_equal or bool(_NAME.fullmatch(side)) or (approximate and _rounds(truth, side))
        for side, is_equal in zip(sides, equal, strict=True)
    )


def _as_interval(text: str) -> tuple[str, str] | None:
    r"""The variable and the interval of `x < 5`, `5 > x` or `2 \le x < 3`; `None` for anything else."""
    match = _INEQUALITY.fullmatch(text)
    if match is None:
        return None
    bounds: dict[bool, tuple[str, bool]] = {}  # by whether it is the upper one: the bound, and whether it belongs to it
    for bound, relation, is_left in ((match["left"], match["first"], True), (match["right"], match["second"], False)):
        if bound is not None:
            is_less = relation in ("<", "\\lt") or relation.startswith("\\le")
            bounds[is_less is not is_left] = (bound, relation[1:2] in ("l", "g") and relation[2:3] == "e")
    expected = sum(match[name] is not None for name in ("left", "right"))
    if not expected or len(bounds) < expected:
        return None
    low, low_closed = bounds.get(False, ("-\\infty", False))
    high, high_closed = bounds.get(True, ("\\infty", False))
    return match["name"], f"{'[' if low_closed else '('}{low},{high}{']' if high_closed else ')'}"


def _rounds(truth: str, decimal: str) -> bool:
    """Whether a decimal is the truth, rounded or cut off at as many places as it has."""
    value = _numeric(truth)
    shown = parse_rational(decimal)
    if value is None or shown is None:
        return False
    places = len(decimal.split(".")[1].strip()) if "." in decimal else 0
    return abs(value - shown) < Fraction(1, 10**places)


def _numeric(text: str) -> Fraction | None:
    """The value of an expression with square roots of integers and pi, as a decimal; `None` for any other."""
    text = _SQUARE_ROOT.sub(lambda match: f"({math.sqrt(int(match[1])):.12f})", text)
    text = re.sub(r"\\pi(?![A-Za-z])\s?", f"({math.pi:.12f})", text)
    return parse_rational(re.sub(r"(?<=[0-9)}])\s?(?=\()", "*", text))


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
    names = [text.split("=")[0].replace(" ", "") for text in (truth, answer) if "=" in text]
    return (truth, answer) if len({*names}) == 2 else (strip_variable_name(truth), strip_variable_name(answer))


def _exactly(truth: str, answer: str) -> bool | None:
    """Whether two texts are equal, `None` if that is not a question of texts, words or exact values."""
    if truth.replace(" ", "") == answer.replace(" ", "") and _DIGITS.findall(truth) == _DIGITS.findall(answer):
        return True
    bases = [sorted(_BASE.findall(text)) for text in (truth, answer)]
    if all(bases) and bases[0] != bases[1]:  # math-verify leaves out what stands below a number
        return False
    left, right = parse_rational(truth), parse_rational(answer)
    if left is not None and right is not None:
        return left == right or _rounded(truth, left, right) or _rounded(answer, right, left)
    words = parse_words(truth), parse_words(answer)
    if None not in words and max(map(len, (truth, answer))) > 1:
        return words[0] == words[1]
    # A number is not a word of several letters; one letter may be a symbol.
    for value, text in ((left, words[1]), (right, words[0])):
        if value is not None and text is not None:
            return False
    return None


def _matched(truths: tuple[str, ...], answers: tuple[str, ...], decide: Decide) -> bool:
    """Whether the parts pair up. Taking the first that fits will do, since equality is transitive."""
    if len(truths) != len(answers):
        return False
    left = list(answers)
    undecided = list[str]()
    for truth in truths:
        found = next((answer for answer in left if _exactly(truth, answer)), None)
        if found is None:
            undecided.append(truth)
        else:
            left.remove(found)
    for truth in undecided:
        found = next((answer for answer in left if answers_agree(truth, answer, decide)), None)
        if found is None:
            return False
        left.remove(found)
    return True
