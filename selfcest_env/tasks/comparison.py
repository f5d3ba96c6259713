"""Answer comparison questions from the answers of two steps: order dates and numbers, and match names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EARLIEST = "earliest"
LATEST = "latest"
LONGEST = "longest"
SHORTEST = "shortest"
MOST = "most"
FEWEST = "fewest"
SAME = "same"
_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, 1)}
_DAY_FIRST = re.compile(r"\b([0-9]{1,2})(?:st|nd|rd|th)?\s+([A-Za-z]{3})[a-z]*\.?,?\s+([0-9]{1,4})\b")
_MONTH_FIRST = re.compile(r"\b([A-Za-z]{3})[a-z]*\.?\s+([0-9]{1,2})(?:st|nd|rd|th)?,?\s+([0-9]{1,4})\b")
_MONTH_ALONE = re.compile(r"\b([A-Za-z]{3})[a-z]*\.?,?\s+([0-9]{3,4})\b")
_NUMBER = re.compile(r"(?<![0-9])[0-9][0-9,]{,30}(?![0-9,])")
_BEFORE_CHRIST = re.compile(r"\bB\.?\s?C\.?(?:E\.?)?\b", re.I)

Point = tuple[int, ...]


def read_point(text: str) -> Point | None:
    """Read a date as (year, month, day) or a prefix of it, or a number as (number,). Years before Christ are negative.

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
    """A comparison of several things.

    Attributes:
        kind: "earliest" or "latest" for dates and numbers, "longest" or "shortest" for spans of two dates, "most" or
            "fewest" for counts of names, or "same" for equal names.
        options: names of the things. One of them is the answer; for "same" the answer is yes or no.
        steps: indices of the steps whose answers are compared, for each option. A span has two, its start and its end.
    """

    kind: str
    options: tuple[str, ...]
    steps: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Comparison:
        return cls(data["kind"], tuple(data["options"]), tuple(tuple(steps) for steps in data["steps"]))

    def decide(self, known: Mapping[int, str]) -> str | None:
        """Return the answer.

        Args:
            known: answers of the steps, by the index of the step.

        Returns:
            The answer; `None` if a step's answer cannot be read, or if two things cannot be told apart.
        """
        texts_by_option: list[list[str]] = []
        for steps in self.steps:
            texts_by_option.append([known[index] for index in steps])
        if self.kind == SAME:
            return "yes" if set.intersection(*map(_split_names, texts_by_option)) else "no"
        points: list[Point | None]
        if self.kind in (MOST, FEWEST):
            points = [(len(_split_names(texts)),) for texts in texts_by_option]
        else:
            points = [_measure(texts, self.kind in (LONGEST, SHORTEST)) for texts in texts_by_option]
        if None in points:
            return None
        ordered = sorted(range(len(points)), key=lambda index: points[index] or ())
        if self.kind in (LATEST, LONGEST, MOST):
            ordered.reverse()
        best = points[ordered[0]] or ()
        second = points[ordered[1]] or ()
        # 1968 and July 1968 cannot be ordered: only the fields that both dates have are compared.
        common = min(len(best), len(second))
        return None if best[:common] == second[:common] else self.options[ordered[0]]


def _split_names(texts: list[str]) -> set[str]:
    names: set[str] = set()
    for text in texts:
        names.update(name.strip().casefold() for name in text.split(";"))
    return names - {""}


def _measure(texts: list[str], span: bool) -> Point | None:
    """Return the date or number of the first text, or for a span the approximate days between two dates."""
    points = [read_point(text) for text in texts]
    if not span:
        return points[0]
    if len(points) != 2 or points[0] is None or points[1] is None:
        return None
    start, end = (tuple(point) + (1, 1)[len(point) - 1 :] for point in (points[0], points[1]))
    # Months of 31 days keep the order of spans, except for spans that differ by a few days.
    return (372 * (end[0] - start[0]) + 31 * (end[1] - start[1]) + end[2] - start[2],)
