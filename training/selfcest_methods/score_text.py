"""Parse the scores in a model's reply, strictly: an ambiguous reply has no scores."""

from __future__ import annotations

import math
import re

_DIGITS = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?!\w|\.[0-9])"
_NUMBER = rf"(?<![\w.+\-−–/])[+\-−]?{_DIGITS}"
# The number of a list item, if the rest of the line is words and then figures.
_LIST_NUMBER = re.compile(r"^[ \t]*([0-9]+)[.):][ \t]+(?=[^0-9\n]*[0-9](?:[0-9 \t./%)*]|out|of)*$)", re.M)


def read_scores(text: str | None, count: int, max_score: float) -> tuple[float, ...] | None:
    """Return the scores in a text, or `None` if they cannot be read without a guess.

    A score is a number with or without a sign, a share of the scale ("2/10", "2 out of 10", "20%"), or a line of a list
    that is numbered from 1. "2 of 10" is a score only if 10 is the scale: "part 2 of 3" is none. The text may repeat
    the scale ("from 0 to 10", "out of 10"). Any other digit makes the whole text unreadable.

    Args:
        text: the reply; `None` is unreadable.
        count: expected number of scores.
        max_score: end of the scale, which begins at 0. A score outside the scale makes the text unreadable.
    """
    text = text or ""
    list_numbers = _LIST_NUMBER.findall(text)
    if list_numbers == [str(i + 1) for i in range(len(list_numbers))]:
        text = _LIST_NUMBER.sub("", text)
    end = rf"{max_score:g}(?:\.0+)?(?!\w|\.[0-9]|\s*[/%])"
    # The order of the alternatives matters: a range and a share must be tried before a plain number.
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
    scores = tuple(_parse_score(match, max_score) for match in pattern.finditer(text) if match.lastgroup)
    is_in_range = all(0 <= score <= max_score for score in scores)  # False for nan
    return scores if is_in_range and len(scores) == count else None


def _parse_score(match: re.Match[str], max_score: float) -> float:
    """Return the score of a match on the scale from 0 to `max_score`; `nan` for a share of 0 or of infinity."""
    if match["plain"]:
        return _parse_number(match["plain"])
    if match["percent"]:
        return _parse_number(match["percent"]) * max_score / 100
    whole = _parse_number(match["whole"]) if match["whole"] else max_score
    return _parse_number(match["part"]) * max_score / whole if 0 < whole < math.inf else math.nan


def _parse_number(digits: str) -> float:
    return float(digits.replace("−", "-"))  # the minus sign U+2212, which `float` does not take
