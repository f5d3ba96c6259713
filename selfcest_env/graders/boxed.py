r"""The last `\boxed{...}` of a text: where mathematical solutions and answers put their result."""

from __future__ import annotations

import re

SEARCHED_CHARACTERS = 50_000  # at the end of a text: what an answer to a task never fills
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*(\{|[^\s{}$]+)?")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete box, stripped; `None` if there is none.

    `\boxed{...}` and `\fbox{...}` with balanced braces (`\{` and `\}` do not count), and `\boxed 5` without braces. A
    box inside a box counts as the inner one. Only the last `SEARCHED_CHARACTERS` are looked at.
    """
    text = text[-SEARCHED_CHARACTERS:]
    boxes = list(_BOX.finditer(text))
    closing = _closing_braces(text) if boxes else {}
    found = None
    for match in boxes:
        if match[1] == "{":
            start, end = match.end(), closing.get(match.end() - 1)
            found = found if end is None else slice(start, end)
        elif match[1]:
            found = slice(*match.span(1))
    if found is None:
        return None
    inside = text[found].strip()
    return inside if text[found.start - 1] == "{" else inside.rstrip(".,;:")


def _closing_braces(text: str) -> dict[int, int]:
    """Where the brace opened at each position is closed, for those that are."""
    opened: list[int] = []
    closing: dict[int, int] = {}
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            closing[opened.pop()] = match.start()
    return closing
