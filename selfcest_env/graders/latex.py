r"""Light normalisation of mathematical answers, and their outer form: one value, a list, a set, a tuple, an interval.

Only writing is made equal here (`\dfrac` and `\frac`, `\left(` and `(`, `\(`, units, degree signs); no mathematics is
done.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

_DROPPED = re.compile(
    r"\\\\|\\(?:left|right|[bB]ig[lr]?|displaystyle)(?![A-Za-z])|\\[!,;:>()\[\] ]|\\q?quad(?![A-Za-z])|~|\$|\\\$"
    r"|\^\s*\{?\s*\\circ\s*\}?|\^\s*\{?\s*\\degree\s*\}?|°|`"
)
_BOLD = re.compile(r"(?<![\w)])\*\*([^*]+)\*\*(?![\w(])")
_KEPT = {"\\\\": "\\\\", "\\quad": " ", "\\qquad": " ", "~": " ", "\\ ": " "}
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_UPRIGHT = re.compile(r"\\mathrm\s+([a-zA-Z])(?![a-zA-Z])")
_UNIT = re.compile(
    r"(?<=[0-9)}])\s*\\(?:text|mbox|textrm|mathrm)\s*\{\s*(?!or\b|and\b)[A-Za-z][^{}]*\}(?:\^\{?[23]\}?)?[\s.,;:]*$"
)
_NAMED = re.compile(r"^\s*(?:[A-Za-z]|\\[a-z]+)\s*(?:=|\\in(?![A-Za-z]))\s*(?=\S)")
_FRAC = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+[A-Za-z]|[A-Za-z]")
_CHOICE = re.compile(r"\(\s*([A-Za-z])\s*\)")
_SEPARATOR = re.compile(r",|;|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])")
_PERCENT = re.compile(r"\s*\\?%\s*$")
_PER_CENT = re.compile(r"(?<=[0-9)}])\s*(?:\\(?:text|mbox|textrm|mathrm)\s*\{\s*per ?cent\s*\}|per ?cent\b)")


def normalise(text: str, *, drop_percent: bool = False) -> str:
    r"""The answer without what does not count: spacing, `$`, `\(`, `\[`, units, degree signs, markdown, a full stop.

    Args:
        text: an answer, what stood in its box.
        drop_percent: leave out a percent sign at the end, a mere unit where the question asks for a percentage.
    """
    text = _DROPPED.sub(lambda match: _KEPT.get(match[0], ""), _BOLD.sub(r"\1", text.strip()))
    text = _UNIT.sub("", _PER_CENT.sub(r"\\%", text))
    text = _UPRIGHT.sub(r"\1", _TEXT.sub(r" \1 ", text))
    text = _FRAC.sub(r"\\frac", text).replace("\\{", "\\lbrace ").replace("\\}", "\\rbrace ")
    text = re.sub(r"\s+", " ", text).strip().rstrip(".,;:!? " if "!" not in text else ".,;:? ").strip()
    if drop_percent:
        text = _PERCENT.sub("", text)
    return text


def unnamed(text: str) -> str:
    r"""The value alone of `x = 5` or `x \in [0, 1]`; an equation with more on its left stays what it is."""
    match = _NAMED.match(text)
    return text[match.end() :].strip() if match and "=" not in text[match.end() :] else text


def word(text: str) -> str | None:
    """The answer in lower case if it is words or a lettered choice, `(B)` or `B`; else `None`."""
    match = _CHOICE.fullmatch(text)
    text = match[1] if match else text
    return " ".join(text.lower().split()) if _WORDS.fullmatch(text) else None


class Form(enum.Enum):
    """How several values are written together. The order counts in tuples and intervals, not in lists and sets."""

    SINGLE = ""
    LIST = ","
    SET = "\\lbrace\\rbrace"
    TUPLE = "()"
    CLOSED = "[]"
    RIGHT_OPEN = "[)"
    LEFT_OPEN = "(]"

    @property
    def ordered(self) -> bool:
        return self not in (Form.LIST, Form.SET)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer by its outer form; a single one has itself as its only part."""

    form: Form
    parts: tuple[str, ...]


def outer_form(text: str) -> Answer:
    r"""What a normalised answer is: `(1, 2)` is a tuple of two, `[0, 1)` an interval, `1, 2` and `5 or 6` lists."""
    parts = _split(text)
    if parts is None:
        return Answer(Form.SINGLE, (text,))
    if len(parts) > 1:
        return Answer(Form.LIST, parts)
    for form in Form:
        opened, closed = ("\\lbrace", "\\rbrace") if form is Form.SET else (form.value[:1], form.value[1:])
        if closed and text.startswith(opened) and text.endswith(closed):
            inner = _split(text[len(opened) : len(text) - len(closed)].strip())
            if inner is not None and (len(inner) > 1 or form is Form.SET):
                return Answer(form, inner)
    return Answer(Form.SINGLE, (text,))


def _split(text: str) -> tuple[str, ...] | None:
    """The parts between separators outside all brackets, `None` if brackets do not balance or a part is empty.

    A comma between digits and exactly three digits separates thousands.
    """
    depth, start, parts = 0, 0, list[str]()
    position = 0
    while position < len(text):
        char = text[position]
        if char in "([{" or text.startswith("\\lbrace", position):
            depth += 1
        elif char in ")]}" or text.startswith("\\rbrace", position):
            depth -= 1
            if depth < 0:
                return None
        match = _SEPARATOR.match(text, position) if depth == 0 else None
        if match and not _thousands(text, position):
            parts.append(text[start:position].strip())
            position = start = match.end()
        else:
            position += 1
    parts.append(text[start:].strip())
    # "1, 2, or 3" has an empty part between the comma and the word.
    parts = [part for index, part in enumerate(parts) if part or not 0 < index < len(parts) - 1]
    return tuple(parts) if depth == 0 and all(parts) else None


_THOUSANDS = re.compile(r"(?<![0-9])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")


def _thousands(text: str, comma: int) -> bool:
    first = comma
    while first > 0 and (text[first - 1].isdecimal() or text[first - 1] == ","):
        first -= 1
    match = _THOUSANDS.match(text, first)
    return text[comma] == "," and match is not None and comma < match.end()
