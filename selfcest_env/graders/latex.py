r"""Normalise the LaTeX of an answer, and split it by its outer form: a value, a list, a set, a tuple or an interval.

Only equivalent spellings become equal here: `\dfrac` and `\frac`, `\left(` and `(`, units, degree signs. Values are
compared elsewhere.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

_DROPPED = re.compile(
    r"\\\\|\\(?:left|right|[bB]ig[lr]?|displaystyle)(?![A-Za-z])|\\[!,;:>()\[\] ]|\\q?quad(?![A-Za-z])|~|\$|\\\$"
    r"|\\(?:therefore|checkmark|blacksquare|qed|bf|rm|large|Large|boldsymbol|mathbf|textbf)(?![A-Za-z])"
    r"|\^\s*\{?\s*\\circ\s*\}?|\^\s*\{?\s*\\degree\s*\}?|°|`"
)
_BOLD = re.compile(r"(?<![\w)])\*\*([^*]+)\*\*(?![\w(])")
_REPLACED = {"\\\\": "\\\\", "\\quad": " ", "\\qquad": " ", "~": " ", "\\ ": " "}
_TEXT = re.compile(r"\\(?:text|textit|textrm|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_UPRIGHT = re.compile(r"\\mathrm\s+([a-zA-Z])(?![a-zA-Z])")
_UNIT = re.compile(
    r"(?<=[0-9)}])\s*\\(?:text|mbox|textrm|mathrm)\s*\{\s*"
    # Not a unit: a conjunction, a verb, a denial, a scale, a change of the value such as "doubled" or "below zero".
    r"(?!(?:or|and|but|to|is|was|isn['’]t|not|no|if|than|plus|minus|times|over|wrong|false|negative|below|maybe|perhaps|more|less|fewer|half|factorials?|k|short"
    r"|hundreds?|thousands?|\w{1,6}illions?|dozens?|[a-z]+ed)\b)[A-Za-z][^{}]*\}(?:\^\{?[23]\}?)?[\s.,;:]*$"
)
_NAMED = re.compile(r"^\s*(?:[A-Za-z]|\\(?!pi\b|infty\b|not\b|neg\b|lnot\b)[a-z]+)\s*(?:=|\\in(?![A-Za-z]))\s*(?=\S)")
_NAMED_TUPLE = re.compile(r"^\s*\(\s*((?:[A-Za-z]|\\[a-z]+)(?:\s*,\s*(?:[A-Za-z]|\\[a-z]+))+)\s*\)\s*=\s*(?=\()")
_ROOT_OF_ONE = re.compile(r"\\sqrt(?:\s*([0-9])|\s+([A-Za-z])(?![A-Za-z]))")

_SYMBOLS = {
    "π": r"\pi", "θ": r"\theta", "α": r"\alpha", "β": r"\beta", "φ": r"\phi", "∞": r"\infty", "×": r"\times",
    "·": r"\cdot", "⋅": r"\cdot", "÷": r"\div", "≤": r"\le", "≥": r"\ge", "≠": r"\neq", "≈": r"\approx", "±": r"\pm",
    "∪": r"\cup", "∩": r"\cap", "∈": r"\in", "½": r"\frac12", "⅓": r"\frac13", "⅔": r"\frac23", "¼": r"\frac14",
    "¾": r"\frac34", "⅕": r"\frac15", "⅙": r"\frac16", "⅛": r"\frac18",
}  # fmt: skip
_SYMBOL = re.compile(f"[{''.join(_SYMBOLS)}]")
_ROOT = re.compile(r"([√∛])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+(?:\.[0-9]+)?|[A-Za-z]))")
_RAISED = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_ON_THE_LINE = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_MINUS = re.compile(r"[−－]|(?<![0-9A-Za-z)}\]])\s?[–‒](?=\s?[0-9.\\A-Za-z(])")
_AT_MOST = re.compile(r"<=(?![=>])")
_AT_LEAST = re.compile(r"(?<![=<])>=(?!=)")
_FRAC = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+[A-Za-z]|[A-Za-z]")
_CHOICE = re.compile(r"\(\s*([A-Za-z])\s*\)")
_SEPARATOR = re.compile(r",|;|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])")
_PERCENT = re.compile(r"\s*\\?%\s*$")
# A percentage without a number before it, which is asked for. One with a number is given: "a 10% discount".
_PERCENT_SIGN = re.compile(r"\\?%|\bper\s?cent", re.IGNORECASE)
_GIVEN_BEFORE = re.compile(
    r"(?:[0-9]|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|half|quarter|third|same"
    r"|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty))[$}\s,-]*$",
    re.IGNORECASE,
)
_PER_CENT = re.compile(r"(?<=[0-9)}])\s*(?:\\(?:text|mbox|textrm|mathrm)\s*\{\s*per ?cent\s*\}|per ?cent\b)")


def from_unicode(text: str) -> str:
    r"""Replace the mathematical symbols of Unicode by LaTeX: `2√3` by `2\sqrt{3}`, `x≤π²` by `x\le \pi ^{2}`."""

    def write_root(match: re.Match[str]) -> str:
        index = "" if match[1] == "√" else "[3]"
        radicand = next(group for group in match.groups()[1:] if group is not None)
        return f"\\sqrt{index}{{{radicand}}}"

    # Roots come before exponents: the pattern of a radicand allows no braces inside, and an exponent would add some.
    text = _ROOT.sub(write_root, text)
    text = _RAISED.sub(lambda match: f"^{{{match[0].translate(_ON_THE_LINE)}}}", text)
    text = _MINUS.sub("-", text)
    text = _AT_LEAST.sub("≥", _AT_MOST.sub("≤", text))
    return _SYMBOL.sub(lambda match: f"{_SYMBOLS[match[0]]} ", text)


def asks_for_percent(prompt: str) -> bool:
    """Return whether a prompt asks for a percentage, so that a percent sign in an answer is a unit."""
    signs = _PERCENT_SIGN.finditer(prompt)
    return any(not _GIVEN_BEFORE.search(prompt[max(0, sign.start() - 20) : sign.start()]) for sign in signs)


def normalise(text: str, *, drop_percent: bool = False) -> str:
    r"""Return the answer without spacing, `$`, `\(`, `\[`, units, degree signs, Markdown and a final full stop.

    Args:
        text: an answer, such as the content of its box.
        drop_percent: whether to drop a percent sign at the end. If the question asks for a percentage, it is a unit.
    """
    text = _BOLD.sub(r"\1", text.strip())
    text = _DROPPED.sub(lambda match: _REPLACED.get(match[0], ""), text)
    # A percent sign changes the value. It must be a sign before units are dropped.
    text = _PER_CENT.sub(r"\\%", text)
    text = _UNIT.sub("", text)
    text = _TEXT.sub(r" \1 ", text)
    text = _UPRIGHT.sub(r"\1", text)
    text = _ROOT_OF_ONE.sub(lambda match: f"\\sqrt{{{match[1] or match[2]}}}", text)
    text = _FRAC.sub(r"\\frac", text)
    # Braces of a set get names, so that all other braces are grouping.
    text = text.replace("\\{", "\\lbrace ").replace("\\}", "\\rbrace ")
    text = re.sub(r"\s+", " ", text).strip()
    # A final `!` may be a factorial.
    text = text.rstrip(".,;:? " if "!" in text else ".,;:!? ").strip()
    if drop_percent:
        text = _PERCENT.sub("", text)
    return _strip_outer_braces(re.sub(r"^=\s*(?![=>])", "", text))


def _strip_outer_braces(text: str) -> str:
    """Drop braces around the whole text, as a font command leaves them. `{1, 2}` is a set and keeps its braces."""
    if text.startswith("{") and text.endswith("}"):
        inner = text[1:-1].strip()
        parts = _split(inner)
        if parts is not None and len(parts) == 1:
            return inner
    return text


def strip_variable_name(text: str) -> str:
    r"""Return the value of `x = 5`, `x \in [0, 1]` or `(x, y) = (1, 2)`. Any other equation is returned unchanged.

    The names of a tuple must be in alphabetical order, because `(y, x) = (1, 2)` is a different point than `(1, 2)`.
    """
    match = _NAMED.match(text)
    if match is None:
        match = _NAMED_TUPLE.match(text)
        names = [name.strip() for name in match[1].split(",")] if match else []
        has_greek = any(name.startswith("\\") for name in names)
        if not has_greek and names != sorted({*names}):
            match = None
    if match is None or "=" in text[match.end() :]:
        return text
    return text[match.end() :].strip()


def parse_words(text: str) -> str | None:
    """Return an answer that consists of words or of a lettered choice, `(B)` or `B`, in lower case; else `None`."""
    match = _CHOICE.fullmatch(text)
    text = match[1] if match else text
    return " ".join(text.lower().split()) if _WORDS.fullmatch(text) else None


class Form(enum.Enum):
    """The way in which several values are written as one answer."""

    SINGLE = ""
    LIST = ","
    SET = "\\lbrace\\rbrace"
    TUPLE = "()"
    CLOSED = "[]"
    RIGHT_OPEN = "[)"
    LEFT_OPEN = "(]"

    @property
    def ordered(self) -> bool:
        """Whether the order of the values counts."""
        return self not in (Form.LIST, Form.SET)

    @property
    def is_interval(self) -> bool:
        return len(self.value) == 2 and self is not Form.SET


@dataclass(frozen=True, slots=True)
class SplitAnswer:
    """An answer, split by its outer form. The only part of a single value is the answer itself."""

    form: Form
    parts: tuple[str, ...]


def parse_outer_form(text: str) -> SplitAnswer:
    r"""Split a normalised answer: `(1, 2)` is a tuple, `[0, 1)` is an interval, `1, 2` and `5 or 6` are lists."""
    parts = _split(text)
    if parts is None:
        return SplitAnswer(Form.SINGLE, (text,))
    if len(parts) > 1:
        return SplitAnswer(Form.LIST, parts)
    if text.startswith("{") and text.endswith("}"):
        inner = _split(text[1:-1].strip())
        if inner is not None and len(inner) > 1:
            return SplitAnswer(Form.SET, inner)
    for form in Form:
        opening, closing = ("\\lbrace", "\\rbrace") if form is Form.SET else (form.value[:1], form.value[1:])
        if closing and text.startswith(opening) and text.endswith(closing):
            inner = _split(text[len(opening) : len(text) - len(closing)].strip())
            if inner is not None and (len(inner) > 1 or form is Form.SET):
                return SplitAnswer(form, inner)
    return SplitAnswer(Form.SINGLE, (text,))


def _split(text: str) -> tuple[str, ...] | None:
    """Split a text at the separators outside all brackets.

    A comma between digits and exactly three digits separates thousands, not parts.

    Returns:
        The stripped parts; `None` if brackets do not balance or a part is empty.
    """
    parts: list[str] = []
    depth = 0
    start = 0
    position = 0
    thousands_commas = _find_thousands_commas(text)
    while position < len(text):
        char = text[position]
        if char in "([{" or text.startswith("\\lbrace", position):
            depth += 1
        elif char in ")]}" or text.startswith("\\rbrace", position):
            depth -= 1
            if depth < 0:
                return None
        match = _SEPARATOR.match(text, position) if depth == 0 else None
        if match and position not in thousands_commas:
            parts.append(text[start:position].strip())
            position = start = match.end()
        else:
            position += 1
    parts.append(text[start:].strip())
    # "1, 2, or 3" has an empty part between the comma and the word.
    parts = [part for index, part in enumerate(parts) if part or not 0 < index < len(parts) - 1]
    return tuple(parts) if depth == 0 and all(parts) else None


_DIGITS_AND_COMMAS = re.compile(r"[0-9,]+")
_THOUSANDS = re.compile(r"(?!0)[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")


def _find_thousands_commas(text: str) -> set[int]:
    """Return the positions of the commas that separate thousands, in linear time."""
    commas: set[int] = set()
    for run in _DIGITS_AND_COMMAS.finditer(text):
        number = _THOUSANDS.match(run[0])
        if number:
            commas.update(run.start() + offset for offset, char in enumerate(number[0]) if char == ",")
    return commas
