"""Shows the progress of a run: a live table on a terminal, and lines elsewhere."""

from __future__ import annotations

import math
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from selfcest_training.config import RunConfig
from selfcest_training.printing import print_text
from selfcest_training.run.evaluator import Evaluator
from selfcest_training.run.progress import DONE, WAITING, JobStatus, RunStatus, read_run

# Seconds between two updates.
UPDATE_SECONDS = 1.0
HEADS = ("job", "stage", "done", "left", "tokens/s", "return", "right", "clones", "checkpoint", "now")
_UNKNOWN = "–"
# Columns of a terminal that has room for the last of `HEADS`.
_WIDE = 110


class Display:
    """Shows the progress of a run whenever `update` is called. It is a context manager.

    A terminal shows a table. Elsewhere a line is printed when a job begins a stage, has done another tenth of it, or
    was probed.
    """

    def __init__(self, config: RunConfig, console: Console) -> None:
        self._config = config
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._headline = ""
        # For each job, the values that the last line was printed for.
        self._printed: dict[str, tuple[object, ...]] = {}

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self) -> None:
        """Read the run's files and show the changes."""
        run = read_run(self._config)
        if self._live is not None:
            self._live.update(build_table(run, self._console.width), refresh=True)
            return
        headline = format_headline(run)
        if headline != self._headline:
            self._headline = headline
            print_text(self._console, headline)
        for job in run.jobs:
            tenths = math.floor(10 * (job.share or 0))
            probe_accuracy = job.accuracy if job.stage == "warm start" else None
            values = (job.stage, tenths, probe_accuracy)
            if job.stage != WAITING and self._printed.get(job.job) != values:
                print_text(self._console, format_job_line(job))
            self._printed[job.job] = values


def print_status(run: RunStatus, console: Console) -> None:
    """Print all jobs once."""
    if console.is_terminal:
        console.print(build_table(run, console.width))
        return
    print_text(console, format_headline(run))
    for job in run.jobs:
        print_text(console, format_job_line(job))


def format_headline(run: RunStatus) -> str:
    """Format the run's folder with the process that works on it."""
    if run.owner is not None:
        return f"{run.folder}: {run.owner}"
    done = all(job.stage == DONE for job in run.jobs)
    return f"{run.folder}: {'done' if done else 'no process works here'}"


def format_cells(job: JobStatus) -> tuple[str, ...]:
    """Format the table cells of a job, one for each of `HEADS`."""
    return (
        job.job,
        job.stage,
        _UNKNOWN if job.share is None else f"{math.floor(100 * job.share)}%",
        _UNKNOWN if job.seconds_left is None else format_duration(job.seconds_left),
        _UNKNOWN if job.tokens_per_second is None else f"{job.tokens_per_second:.0f}",
        *(_UNKNOWN if value is None else f"{value:.2f}" for value in (job.team_return, job.accuracy, job.clones)),
        job.checkpoint or _UNKNOWN,
        job.note,
    )


def format_job_line(job: JobStatus) -> str:
    """Format a job as one line, without unknown values."""
    name, stage, *values = format_cells(job)
    parts = [stage]
    for head, text in zip(HEADS[2:], values, strict=True):
        if text in (_UNKNOWN, ""):
            continue
        if head == "left":
            parts.append(f"{text} left")
        elif head in ("done", "now"):
            parts.append(text)
        else:
            parts.append(f"{head} {text}")
    return f"{name}: {', '.join(parts)}"


def build_table(run: RunStatus, width: int) -> Table:
    """Build a table with one row per job, for a terminal of `width` columns."""
    num_columns = len(HEADS) if width >= _WIDE else len(HEADS) - 1
    title = Text(format_headline(run))
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for head in HEADS[:num_columns]:
        is_text = head in ("job", "stage", "checkpoint", "now")
        table.add_column(head, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    for job in run.jobs:
        table.add_row(*map(Text, format_cells(job)[:num_columns]))
    return table


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    total_seconds = round(seconds)
    if total_seconds < 60:
        return f"{total_seconds} s"
    minutes, rest = divmod(total_seconds, 60)
    if minutes < 60:
        return f"{minutes} min" if minutes > 9 else f"{minutes}:{rest:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h"


def print_report(config: RunConfig, console: Console, evaluator: Evaluator) -> None:
    """Write and print the report of a run."""
    print_text(console, evaluator.report(config))
    hint = "; table.md has the complete report" if (config.folder / "table.md").is_file() else ""
    print_text(console, f"written to {config.folder}{hint}")
