"""Lines for a terminal, which break between words."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

# A plain install reads episodes without Rich.
if TYPE_CHECKING:
    from rich.console import Console


def print_text(console: Console, text: str) -> None:
    """Print lines; a terminal gets lines that break between words, and rows of tables that break between columns."""
    if console.is_terminal:
        text = "\n".join(_wrap_line(line, console.width) for line in text.split("\n"))
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _wrap_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    columns = re.split(" {2,}", line.strip())
    if len(columns) > 1 and max(map(len, columns)) <= width - len(indent) - 4:
        # The columns of one row stay whole, as many as fit stand on a line.
        rows = [indent + columns[0]]
        for column in columns[1:]:
            if len(rows[-1]) + 2 + len(column) <= width:
                rows[-1] += f"  {column}"
            else:
                rows.append(f"{indent}    {column}")
        return "\n".join(rows)
    return textwrap.fill(
        line.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
