"""Comparing what two readers brought: dates and numbers by order, names by equality."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EARLIEST, LATEST, LONGEST, SHORTEST, SAME = "earliest", "latest", "longest", "shortest", "same"
MOST, FEWEST = "most", "fewest"
_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, 1)}
_DAY_FIRST = re.compile(r"\b([0-9]{1,2})(?:st|nd|rd|th)?\s+([A-Za-z]{3})[a-z]*\.?,?\s+([0-9]{1,4})\b")
_MONTH_FIRST = re.compile(r"\b([A-Za-z]{3})[a-z]*\.?\s+([0-9]{1,2})(?:st|nd|rd|th)?,?\s+([0-9]{1,4})\b")
_MONTH_ALONE = re.compile(r"\b([A-Za-z]{3})[a-z]*\.?,?\s+([0-9]{3,4})\b")
_NUMBER = re.compile(r"(?<![0-9])[0-9][0-9,]{,30}(?![0-9,])")
_BEFORE_CHRIST = re.compile(r"\bB\.?\s?C\.?(?:E\.?)?\b", re.I)

Point = tuple[int, ...]


def read_point(text: str) -> Point | None:
    """A date as (year, month, day), as far as it is given, or a number as (number,); years before Christ are negative.

    Example:
        >>> read_point("July 23, 1968"), read_point("23 July 1968"), read_point("1968"), read_point("1,204 people")
        ((1968, 7, 23), (1968, 7, 23), (1968,), (1204,))
    """
    sign = -1 if _BEFORE_CHRIST.search(text) else 1
    for pattern, day, month, year in ((_DAY_FIRST, 1, 2, 3), (_MONTH_FIRST, 2, 1, 3)):
        match = pattern.search(text)
        if match and match[month].lower() in _MONTHS:
            return sign * int(match[year]), _MONTHS[match[month].lower()], int(match[day])
    match = _MONTH_ALONE.search(text)
    if match and match[1].lower() in _MONTHS:
        return sign * int(match[2]), _MONTHS[match[1].lower()]
    match = _NUMBER.search(text)
    return (sign * int(match[0].replace(",", "")),) if match else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a question asks of several things.

    Attributes:
        kind: "earliest", "latest" (dates and numbers), "longest", "shortest" (a span of two dates each), "most",
            "fewest" (names), or "same".
        options: names of the things, one of which is the answer; for "same" the answer is yes or no.
        steps: for each option the steps whose answers count, a start and an end for spans.
    """

    kind: str
    options: tuple[str, ...]
    steps: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Comparison:
        return cls(data["kind"], tuple(data["options"]), tuple(tuple(steps) for steps in data["steps"]))

    def decide(self, known: Mapping[int, str]) -> str | None:
        """The answer, `None` if an answer of a step cannot be read or two things cannot be told apart."""
        values = [[known[index] for index in steps] for steps in self.steps]
        if self.kind == SAME:
            return "yes" if set.intersection(*map(_names, values)) else "no"
        if self.kind in (MOST, FEWEST):
            points: list[Point | None] = [(len(_names(texts)),) for texts in values]
        else:
            points = [_measure(texts, self.kind in (LONGEST, SHORTEST)) for texts in values]
        if None in points:
            return None
        ordered = sorted(range(len(points)), key=lambda index: points[index] or ())
        if self.kind in (LATEST, LONGEST, MOST):
            ordered.reverse()
        best, second = points[ordered[0]] or (), points[ordered[1]] or ()
        common = min(len(best), len(second))
        return None if best[:common] == second[:common] else self.options[ordered[0]]


def _names(texts: list[str]) -> set[str]:
    return {name.strip().casefold() for text in texts for name in text.split(";") if name.strip()}


def _measure(texts: list[str], span: bool) -> Point | None:
    points = [read_point(text) for text in texts]
    if not span:
        return points[0]
    if len(points) != 2 or points[0] is None or points[1] is None:
        return None
    start, end = (tuple(point) + (1, 1)[len(point) - 1 :] for point in (points[0], points[1]))
    return (372 * (end[0] - start[0]) + 31 * (end[1] - start[1]) + end[2] - start[2],)
