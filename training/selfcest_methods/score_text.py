"""Scores that a model wrote, as numbers; what could mean something else is not read at all."""

from __future__ import annotations

import math
import re

_DIGITS = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?!\w|\.[0-9])"
_NUMBER = rf"(?<![\w.+\-−–/])[+\-−]?{_DIGITS}"
# The number of a list: the rest of its line is words and then figures.
_ITEM = re.compile(r"^[ \t]*([0-9]+)[.):][ \t]+(?=[^0-9\n]*[0-9](?:[0-9 \t./%)*]|out|of)*$)", re.M)


def read_scores(text: str | None, count: int, most: float) -> tuple[float, ...] | None:
    """So many scores from 0 to `most`; `None` where there are more or fewer, or one that is not in this range.

    A score is a number with or without a sign, a share of the scale ("2/10", "2 out of 10", "20%"; "of" alone only with
    the scale, "2 of 10", for "part 2 of 3" is none), or a line of a list that is numbered from 1. The scale itself
    ("from 0 to 10", "out of 10") may be repeated. A digit that is none of this makes all of it unreadable: which of
    several numbers was meant is not guessed.
    """
    text = text or ""
    numbers = _ITEM.findall(text)
    if numbers == [str(i + 1) for i in range(len(numbers))]:
        text = _ITEM.sub("", text)
    end = rf"{most:g}(?:\.0+)?(?!\w|\.[0-9]|\s*[/%])"
    pattern = re.compile(
        rf"(?<![\w.+\-−–/])0(?:\.0+)?\s*(?:to|[-−–])\s*{end}"
        rf"|(?P<part>{_NUMBER})\s*(?:(?:/|out\s+of\s)\s*(?P<whole>{_DIGITS})(?!\s*[/%])|of\s+{end})"
        rf"|(?:/|\bout\s+of)\s*{end}"
        rf"|(?P<percent>{_NUMBER})\s*%|(?P<plain>{_NUMBER})",
        re.I,
    )
    if any(char.isdigit() for char in pattern.sub("", text)):
        return None
    found = [_score(match, most) for match in pattern.finditer(text) if match.lastgroup]
    scores = tuple(score for score in found if 0 <= score <= most)  # not a number is in no range
    return scores if len(scores) == len(found) == count else None


def _score(match: re.Match[str], most: float) -> float:
    if match["plain"]:
        return _number(match["plain"])
    if match["percent"]:
        return _number(match["percent"]) * most / 100
    whole = _number(match["whole"]) if match["whole"] else most
    return _number(match["part"]) * most / whole if 0 < whole < math.inf else math.nan


def _number(written: str) -> float:
    return float(written.replace("−", "-"))
