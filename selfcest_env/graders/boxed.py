r"""Find the final answer of a solution: in the last `\boxed{...}`, in `<answer>` tags, or after "the answer is"."""

from __future__ import annotations

import re

# Only the end of a text is searched, so that a huge answer cannot cost much time. No real answer is so long.
SEARCHED_CHARACTERS = 50_000
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*(\{|[^\s{}$]+)?")
_ANSWER_IS = re.compile(
    r"(?<!wrong\s)(?<!incorrect\s)(?<!false\s)(?<!\bno\s)(?<!not\s)(?<!n['’]t\s)(?<!never\s)"
    r"(?<!not the\s)(?<!not an\s)(?<!not my\s)(?<!n['’]t the\s)(?<!n['’]t my\s)\banswer\s*(?:is\b\s*:?|:\**|\*\*:)",
    re.IGNORECASE,
)
_ANSWER_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.IGNORECASE | re.DOTALL)
_EMPHASIS_END = re.compile(r"(\*{1,3})[\s.]*$")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# Solutions in the style of Minerva's prompt end in this sentence (arXiv 2206.14858, appendix D).
_MINERVA_ENDING = re.compile(r"\.\s*I hope it is correct\.?\s*$")


def extract_final_answer(text: str) -> str:
    """Return the part of a text that holds its final answer.

    That is the content of the last box, else of the last `<answer>`, else the text after the last "answer is", else the
    whole text. Only the last `SEARCHED_CHARACTERS` are searched.
    """
    boxed = extract_last_boxed(text)
    if boxed is not None:
        return boxed
    tagged = _ANSWER_TAG.findall(text, max(0, len(text) - SEARCHED_CHARACTERS))
    if tagged and tagged[-1].strip():
        text = tagged[-1].strip()
    phrases = list(_ANSWER_IS.finditer(text, max(0, len(text) - SEARCHED_CHARACTERS)))
    if not phrases:
        return text
    phrase_end = phrases[-1].end()
    after_phrase = _MINERVA_ENDING.sub("", text[phrase_end:].strip())
    return _drop_closing_emphasis(after_phrase, text[:phrase_end]) or text


def _drop_closing_emphasis(answer: str, before: str) -> str:
    """Remove asterisks at the end that close emphasis opened before the answer, as in `**Answer: 5**`."""
    closing = _EMPHASIS_END.search(answer)
    if closing is None or not before.count(closing[1]) % 2 or not answer.count(closing[1]) % 2:
        return answer
    return answer[: closing.start()].rstrip()


def extract_last_boxed(text: str) -> str | None:
    r"""Return the stripped content of the last complete box, or `None` if there is no box.

    `\boxed{...}` and `\fbox{...}` need balanced braces (`\{` and `\}` do not count). `\boxed 5` needs none. Of a box
    inside a box the inner one is returned. Only the last `SEARCHED_CHARACTERS` are searched.
    """
    text = text[-SEARCHED_CHARACTERS:]
    boxes = list(_BOX.finditer(text))
    closing_braces = _match_braces(text) if boxes else {}
    content: slice | None = None
    for box in boxes:
        if box[1] == "{":
            end = closing_braces.get(box.end() - 1)
            # A box that never closes was cut off; an earlier complete one still counts.
            if end is not None:
                content = slice(box.end(), end)
        elif box[1]:
            content = slice(*box.span(1))
    if content is None:
        return None
    boxed = text[content].strip()
    has_braces = text[content.start - 1] == "{"
    return boxed if has_braces else boxed.rstrip(".,;:")


def _match_braces(text: str) -> dict[int, int]:
    """Return the position of the closing brace by the position of its opening brace."""
    open_positions: list[int] = []
    closing_braces: dict[int, int] = {}
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            open_positions.append(match.start())
        elif match[0] == "}" and open_positions:
            closing_braces[open_positions.pop()] = match.start()
    return closing_braces
