"""Parse the scores in a model's reply, strictly: an ambiguous reply has no scores."""

from __future__ import annotations

import math
import re

_DIGITS = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?!\w|\.[0-9])"
_NUMBER = rf"(?<![\w.+\-−–/])[+\-−]?{_DIGITS}"
# The number of a list item, where the rest of the line is words followed by figures.
_ITEM = re.compile(r"^[ \t]*([0-9]+)[.):][ \t]+(?=[^0-9\n]*[0-9](?:[0-9 \t./%)*]|out|of)*$)", re.M)


def read_scores(text: str | None, count: int, most: float) -> tuple[float, ...] | None:
    """Return the scores in a text, or `None` if they cannot be read without a guess.

    A score is a number with or without a sign, a share of the scale ("2/10", "2 out of 10", "20%"), or a line of a list
    that is numbered from 1. "2 of 10" is a score only if 10 is the scale: "part 2 of 3" is none. The text may repeat
    the scale ("from 0 to 10", "out of 10"). Any other digit makes the whole text unreadable.

    Args:
        text: the reply; `None` is unreadable.
        count: expected number of scores.
        most: end of the scale, which begins at 0. A score outside the scale makes the text unreadable.
    """
    text = text or ""
    numbers = _ITEM.findall(text)
    if numbers == [str(i + 1) for i in range(len(numbers))]:
        text = _ITEM.sub("", text)
    end = rf"{most:g}(?:\.0+)?(?!\w|\.[0-9]|\s*[/%])"
    # The order of the alternatives matters: a range and a share must be tried before their first number alone.
    pattern = re.compile(
        rf"(?<![\w.+\-−–/])0(?:\.0+)?\s*(?:to|[-−–])\s*{end}"
        rf"|(?P<part>{_NUMBER})\s*(?:(?:/|out\s+of\s)\s*(?P<whole>{_DIGITS})(?!\s*[/%])|of\s+{end})"
        rf"|(?:/|\bout\s+of)\s*{end}"
        rf"|(?P<percent>{_NUMBER})\s*%|(?P<plain>{_NUMBER})",
        re.I,
    )
    if any(char.isdigit() for char in pattern.sub("", text)):
        return None
    # A match without a group is the scale and no score.
    scores = tuple(_score(match, most) for match in pattern.finditer(text) if match.lastgroup)
    is_in_range = all(0 <= score <= most for score in scores)  # False for nan
    return scores if is_in_range and len(scores) == count else None


def _score(match: re.Match[str], most: float) -> float:
    """Return the score of a match on the scale from 0 to `most`; `nan` for a share of nothing."""
    if match["plain"]:
        return _number(match["plain"])
    if match["percent"]:
        return _number(match["percent"]) * most / 100
    scale_end = _number(match["whole"]) if match["whole"] else most
    return _number(match["part"]) * most / scale_end if 0 < scale_end < math.inf else math.nan


def _number(digits: str) -> float:
    return float(digits.replace("−", "-"))  # the minus sign U+2212, which `float` does not take
