r"""Where solutions put their result: in the last `\boxed{...}` or `<answer>`, or after "the answer is"."""

from __future__ import annotations

import re

SEARCHED_CHARACTERS = 50_000  # at the end of a text: what an answer to a task never fills
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*(\{|[^\s{}$]+)?")
_ANSWER_IS = re.compile(
    r"(?<!wrong\s)(?<!incorrect\s)(?<!false\s)(?<!not the\s)\banswer\s*(?:is\b\s*:?|:\**|\*\*:)", re.IGNORECASE
)
_ANSWER_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.IGNORECASE | re.DOTALL)
_HOPE = re.compile(r"\.\s*I hope it is correct\.?\s*$")  # the end of an answer in Minerva's prompt
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def extract_final_answer(text: str) -> str:
    """What stands in the last box, else in the last `<answer>`, else after the last "answer is", else the whole text.

    Only the last `SEARCHED_CHARACTERS` are looked at for either.
    """
    box = extract_last_boxed(text)
    if box is not None:
        return box
    tags = _ANSWER_TAG.findall(text, max(0, len(text) - SEARCHED_CHARACTERS))
    if tags and tags[-1].strip():
        text = tags[-1].strip()
    found = [match.end() for match in _ANSWER_IS.finditer(text, max(0, len(text) - SEARCHED_CHARACTERS))]
    return _HOPE.sub("", text[found[-1] :].strip() if found else "") or text


def extract_last_boxed(text: str) -> str | None:
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
