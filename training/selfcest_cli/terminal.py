"""The terminal that commands print to with Rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style

from selfcest_cli.masking import printable
from selfcest_training.printing import print_text


class Terminal(Console):
    """A console that prints `printable` texts only and renders no markup, link or emoji name in them.

    Args:
        stderr: print to the standard error.
        file: print to this file instead.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        stream = file or (sys.stderr if stderr else sys.stdout)
        # Rich's own control characters must not be masked. A live display wraps the stream again, hence the attribute.
        super().__init__(file=getattr(stream, "rich_proxied_file", stream), markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `Console.render`. Texts are masked before Rich measures, wraps and crops them."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), _without_link(segment.style))


def _without_link(style: Style | None) -> Style | None:
    return style.update_link(None) if style is not None and style.link else style


@contextmanager
def progress_bar(total: int, completed: int = 0) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on the standard error, and yield the function that advances it by one.

    The function takes the line beside the bar. Where bars cannot be drawn it prints the line after a count.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Terminal(stderr=True)
    line_column = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), line_column)
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=total, completed=completed)

        def advance(line: str) -> None:
            progress.update(bar, advance=1, description=line)
            if not console.is_terminal:
                print_text(console, f"{progress.tasks[bar].completed:.0f}/{total} {line}")

        yield advance
