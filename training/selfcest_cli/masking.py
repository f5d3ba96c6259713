"""Mask the characters that a terminal would obey or hide, in all output of the command line."""

from __future__ import annotations

import re
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import IO, Any

# Control, format (zero width, direction), half of a surrogate pair, line and paragraph separators.
_MASKED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # letters and marks that are drawn as nothing
_BETWEEN_RETURNS = re.compile(r"\r?(.*?)\r?", re.DOTALL)


def printable(text: str) -> str:
    r"""Return the text with an escape, as `\x1b`, in place of every invisible character but line ends and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _is_visible(char) else char.encode("unicode_escape").decode() for char in text)


def _is_visible(char: str) -> bool:
    return char in "\n\t" or not (unicodedata.category(char) in _MASKED or char in _FILLERS)


class MaskedStream:
    """A text stream that writes only `printable` text.

    Rich finds the original stream in the attribute `rich_proxied_file` and writes to it without masking, because its
    colours are control characters. Texts of models and tasks must therefore be printed with a `Terminal`.

    Args:
        stream: the stream of the terminal.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        # Progress bars of libraries begin or end with a carriage return, which stays.
        body = _BETWEEN_RETURNS.fullmatch(text)
        assert body is not None
        start, end = body.span(1)
        self.rich_proxied_file.write(text[:start] + printable(body[1]) + text[end:])
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def masked_output() -> Iterator[None]:
    """Make all output to the standard streams `printable` within the block: prints, warnings and logs."""
    format_warning = warnings.formatwarning

    def format_masked(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return printable(format_warning(message, category, filename, lineno, line))

    # While Rich draws a table, it takes warnings before they reach the masked stream, and would obey their escapes.
    warnings.formatwarning = format_masked
    try:
        with redirect_stdout(MaskedStream(sys.stdout)), redirect_stderr(MaskedStream(sys.stderr)):
            yield
    finally:
        warnings.formatwarning = format_warning
