"""Compare two mathematical answers exactly: as texts, as rational values, as words, and part by part.

A callback decides about the pairs of single values that these comparisons leave open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from selfcest_env.graders.latex import Form, parse_outer_form, parse_words, strip_variable_name
from selfcest_env.graders.rational import parse_rational

PLACES = 6  # math-verify compares decimals with irrational values to this many places
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
# The left side of an equation that only names a value: `x_1`, `f(2)`, `AB`, `|AB|`, `m\angle A`, `[ABC]`, words.
_NAME = re.compile(
    r"[A-Za-z]'*(?:\s?_\s?(?:\w|\{[^{}]*\}))?|\\(?!pi\b|infty\b|sqrt\b|frac\b)[a-z]+(?:\s?_\s?(?:\w|\{[^{}]*\}))?"
    r"|[A-Za-z]\s?\([^()=]*\)|[|\[]?\s?[A-Z]{2,4}\s?[|\]]?|m?\s?\\(?:angle|triangle|overline)\s?\{?\s?[A-Z]{1,4}\s?\}?"
    r"|[A-Za-z][A-Za-z' -]+[A-Za-z]"
)
_SQUARE_ROOT = re.compile(r"\\sqrt\{([0-9]{1,9})\}")

# math-verify ignores these signs: `3'`, `3^T`, `3_2`, `3, \ldots`, `3 \bmod 7`, `\phantom{3}`. An answer that has one
# which the truth lacks must therefore never reach it.
_IGNORED_BY_MATH_VERIFY = re.compile(
    r"\\(?:[hv]?phantom|[lc]?dots|[bp]?mod|prime|min|max|gcd|lcm)(?![A-Za-z])|['’…]|\.\.\.|(?<=[0-9)}\]])\s?_|\^\s?\{?\s?T"
)

Decide = Callable[[str, str], bool]


def answers_agree(truth: str, answer: str, decide: Decide) -> bool:
    r"""Return whether two normalised answers are equal.

    Answers are equal if their texts, exact values or words are equal. Different values and different words are unequal.
    Two lists, sets, tuples or intervals are equal if they have the same form and equal parts. The order of the parts
    counts in tuples and intervals.

    Args:
        truth, answer: texts that `normalise` returned.
        decide: called with two single values that no exact comparison can tell apart, such as `\sqrt8` and `2\sqrt2`.
    """
    verdict = _compare_exactly(truth, answer)
    if verdict is not None:
        return verdict
    if not {*_IGNORED_BY_MATH_VERIFY.findall(answer)} <= {*_IGNORED_BY_MATH_VERIFY.findall(truth)}:
        return False
    truth, answer = _strip_names(truth, answer)
    verdict = _compare_relations(truth, answer, decide)
    if verdict is not None:
        return verdict
    split_truth = parse_outer_form(truth)
    split_answer = parse_outer_form(answer)
    if split_truth.form is split_answer.form is Form.SINGLE:
        verdict = _compare_exactly(truth, answer)
        return decide(truth, answer) if verdict is None else verdict
    if split_truth.form is not split_answer.form and {split_truth.form, split_answer.form} != {Form.LIST, Form.SET}:
        # A relation or a plus-minus may stand for an interval or a list. Any other pair of forms is unequal.
        has_relation = any(sign in truth or sign in answer for sign in _RELATIONS)
        return has_relation and decide(truth, answer)
    if Form.SET in (split_truth.form, split_answer.form):
        # An element that a set repeats counts once.
        return _match_parts(_drop_repeated(split_truth.parts), _drop_repeated(split_answer.parts), decide)
    if len(split_truth.parts) != len(split_answer.parts):
        return False
    if split_truth.form.ordered:
        pairs = zip(split_truth.parts, split_answer.parts, strict=True)
        return all(answers_agree(truth_part, answer_part, decide) for truth_part, answer_part in pairs)
    return _match_parts(split_truth.parts, split_answer.parts, decide)


def _drop_repeated(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts without those that exactly equal an earlier one."""
    distinct: list[str] = []
    for part in parts:
        if not any(_compare_exactly(part, earlier) for earlier in distinct):
            distinct.append(part)
    return tuple(distinct)


def _compare_relations(truth: str, answer: str, decide: Decide) -> bool | None:
    r"""Return whether two texts agree of which at least one is a relation; `None` if relations cannot decide it.

    `x \ne 3` is not 3. `x < 5` equals `(-\infty, 5)`. Every side of `6/2 = 3` must equal the truth, unless the side
    only names the value. A side after `\approx` may be the rounded truth. math-verify would compare the last side only.
    """
    if bool(_NEGATED.search(truth)) != bool(_NEGATED.search(answer)):
        return False
    truth_interval = _as_interval(truth)
    answer_interval = _as_interval(answer)
    if truth_interval is not None and answer_interval is not None:
        truth_name, truth_bounds = truth_interval
        answer_name, answer_bounds = answer_interval
        return truth_name == answer_name and answers_agree(truth_bounds, answer_bounds, decide)
    for interval, other_text in ((truth_interval, answer), (answer_interval, truth)):
        if interval is not None and parse_outer_form(other_text).form.is_interval:
            return answers_agree(interval[1], other_text, decide)
        if interval is not None and not any(sign in other_text for sign in _RELATIONS):
            return False
    if _EQUALITY.search(truth) or not _EQUALITY.search(answer) or len(parse_outer_form(answer).parts) > 1:
        return None
    sides = [side.strip() for side in _EQUALITY.split(answer) if side.strip()]
    is_approximate = any(match[0] != "=" for match in _EQUALITY.finditer(answer))
    equal = [answers_agree(truth, side, decide) for side in sides]
    if not any(equal):
        return False
    for side, is_equal in zip(sides, equal, strict=True):
        is_name = bool(_NAME.fullmatch(side))
        if not is_equal and not is_name and not (is_approximate and _is_rounded_truth(truth, side)):
            return False
    return True


def _as_interval(text: str) -> tuple[str, str] | None:
    r"""Return the variable and the interval of `x < 5`, `5 > x` or `2 \le x < 3`; `None` for any other text."""
    match = _INEQUALITY.fullmatch(text)
    if match is None:
        return None
    # The bound and whether it belongs to the interval, by whether it is the upper bound.
    bounds: dict[bool, tuple[str, bool]] = {}
    for bound, relation, is_left in ((match["left"], match["first"], True), (match["right"], match["second"], False)):
        if bound is not None:
            is_less = relation in ("<", "\\lt") or relation.startswith("\\le")
            is_upper = is_less is not is_left
            is_closed = relation[1:2] in ("l", "g") and relation[2:3] == "e"
            bounds[is_upper] = (bound, is_closed)
    num_bounds = sum(match[name] is not None for name in ("left", "right"))
    # `1 < x > 2` has two lower bounds, of which one would be lost.
    if not num_bounds or len(bounds) < num_bounds:
        return None
    low, low_closed = bounds.get(False, ("-\\infty", False))
    high, high_closed = bounds.get(True, ("\\infty", False))
    opening = "[" if low_closed else "("
    closing = "]" if high_closed else ")"
    return match["name"], f"{opening}{low},{high}{closing}"


def _is_rounded_truth(truth: str, decimal: str) -> bool:
    """Return whether a decimal is the truth, rounded or cut off after as many places as the decimal has."""
    value = _approximate(truth)
    rounded_value = parse_rational(decimal)
    if value is None or rounded_value is None:
        return False
    places = len(decimal.split(".")[1].strip()) if "." in decimal else 0
    return abs(value - rounded_value) < Fraction(1, 10**places)


def _approximate(text: str) -> Fraction | None:
    """Return the value of an expression to 12 places; `None` if it has more than numbers, pi and integers' roots."""
    text = _SQUARE_ROOT.sub(lambda match: f"({math.sqrt(int(match[1])):.12f})", text)
    text = re.sub(r"\\pi(?![A-Za-z])\s?", f"({math.pi:.12f})", text)
    return parse_rational(re.sub(r"(?<=[0-9)}])\s?(?=\()", "*", text))


def is_precise(text: str) -> bool:
    """Return whether a decimal has enough places and significant digits to stand for an endless decimal."""
    return bool(_DECIMAL.fullmatch(text)) and len(re.sub("[^0-9]", "", text).lstrip("0")) >= PLACES


def _rounds_endless_decimal(text: str, value: Fraction, other: Fraction) -> bool:
    """Return whether a decimal text of this value rounds `other`, an endless decimal, as 0.333333 rounds 1/3."""
    # A fraction in lowest terms is a finite decimal if and only if its denominator divides a power of ten.
    is_finite_decimal = pow(10, other.denominator.bit_length(), other.denominator) == 0
    if not is_precise(text) or is_finite_decimal:
        return False
    return round(value, PLACES) == round(other, PLACES)


def _strip_names(truth: str, answer: str) -> tuple[str, str]:
    """Drop the name of `x = 5`, so that it equals `5`. Two equations with different names keep theirs."""
    names = [text.split("=")[0].replace(" ", "") for text in (truth, answer) if "=" in text]
    return (truth, answer) if len({*names}) == 2 else (strip_variable_name(truth), strip_variable_name(answer))


def _compare_exactly(truth: str, answer: str) -> bool | None:
    """Return whether two texts are equal as texts, values or words; `None` if neither comparison can tell."""
    if truth.replace(" ", "") == answer.replace(" ", "") and _DIGITS.findall(truth) == _DIGITS.findall(answer):
        return True
    truth_bases = sorted(_BASE.findall(truth))
    answer_bases = sorted(_BASE.findall(answer))
    # math-verify ignores the base of `101_2`, so a difference must be found here.
    if truth_bases and answer_bases and truth_bases != answer_bases:
        return False
    truth_value = parse_rational(truth)
    answer_value = parse_rational(answer)
    if truth_value is not None and answer_value is not None:
        return (
            truth_value == answer_value
            or _rounds_endless_decimal(truth, truth_value, answer_value)
            or _rounds_endless_decimal(answer, answer_value, truth_value)
        )
    truth_words = parse_words(truth)
    answer_words = parse_words(answer)
    # Two single letters may be symbols of equal value, so only longer texts are compared as words.
    if truth_words is not None and answer_words is not None and max(len(truth), len(answer)) > 1:
        return truth_words == answer_words
    truth_is_number = truth_value is not None and answer_words is not None
    answer_is_number = answer_value is not None and truth_words is not None
    return False if truth_is_number or answer_is_number else None


def _match_parts(truths: tuple[str, ...], answers: tuple[str, ...], decide: Decide) -> bool:
    """Return whether every part of the truth has a partner in the answer.

    The first partner that agrees can be taken, because equality is transitive. All exact comparisons come first, since
    `decide` is slow.
    """
    if len(truths) != len(answers):
        return False
    unmatched = list(answers)
    undecided: list[str] = []
    for truth in truths:
        partner = next((answer for answer in unmatched if _compare_exactly(truth, answer)), None)
        if partner is None:
            undecided.append(truth)
        else:
            unmatched.remove(partner)
    for truth in undecided:
        partner = next((answer for answer in unmatched if answers_agree(truth, answer, decide)), None)
        if partner is None:
            return False
        unmatched.remove(partner)
    return True
