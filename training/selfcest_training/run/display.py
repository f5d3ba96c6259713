"""How far a run is, on a terminal: a table that is drawn again, or lines where there is none to draw on."""

from __future__ import annotations

import math
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from selfcest_training.config import RunConfig
from selfcest_training.run.evaluator import Evaluator
from selfcest_training.run.progress import DONE, WAITING, JobStatus, RunStatus, read_run

EVERY = 1.0  # seconds between two looks at the files
HEADS = ("job", "stage", "done", "left", "tokens/s", "return", "right", "clones", "checkpoint", "now")
_NONE = "–"
_WIDE = 110  # columns of a terminal that has room for the last of `HEADS`


class Display:
    """Shows what a run's files say, whenever `update` is called; use it in a `with`.

    A terminal has a table. Elsewhere a line is printed where a job begins a stage, has done another tenth of it, or was
    probed.
    """

    def __init__(self, config: RunConfig, console: Console) -> None:
        self._config, self._console = config, console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._head = ""
        self._seen = dict[str, tuple[object, ...]]()

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
        """Read the files and show what is new."""
        run = read_run(self._config)
        if self._live is not None:
            self._live.update(table(run, self._console.width), refresh=True)
            return
        if (head := headline(run)) != self._head:
            self._head = head
            _print(self._console, head)
        for job in run.jobs:
            probed = job.accuracy if job.stage == "warm start" else None
            key = (job.stage, math.floor(10 * (job.share or 0)), probed)
            if job.stage != WAITING and self._seen.get(job.job) != key:
                _print(self._console, line(job))
            self._seen[job.job] = key


def show(run: RunStatus, console: Console) -> None:
    """Print all jobs once."""
    if console.is_terminal:
        console.print(table(run, console.width))
        return
    for text in (headline(run), *map(line, run.jobs)):
        _print(console, text)


def headline(run: RunStatus) -> str:
    """Whether anybody works there."""
    if run.owner is not None:
        return f"{run.folder}: {run.owner}"
    done = all(job.stage == DONE for job in run.jobs)
    return f"{run.folder}: {'done' if done else 'no process works here'}"


def cells(job: JobStatus) -> tuple[str, ...]:
    """What is shown of a job, under `HEADS`."""
    return (
        job.job,
        job.stage,
        _NONE if job.share is None else f"{math.floor(100 * job.share)}%",
        _NONE if job.seconds_left is None else duration(job.seconds_left),
        _NONE if job.tokens_per_second is None else f"{job.tokens_per_second:.0f}",
        *(_NONE if value is None else f"{value:.2f}" for value in (job.team_return, job.accuracy, job.clones)),
        job.checkpoint or _NONE,
        job.note,
    )


def line(job: JobStatus) -> str:
    """A job in a line, without what is not known."""
    name, stage, *others = cells(job)
    named = [
        f"{text} left" if head == "left" else text if head in ("done", "now") else f"{head} {text}"
        for head, text in zip(HEADS[2:], others, strict=True)
        if text not in (_NONE, "")
    ]
    return f"{name}: {', '.join([stage, *named])}"


def table(run: RunStatus, width: int) -> Table:
    """All jobs, a row each, for a terminal of so many columns."""
    shown = len(HEADS) if width >= _WIDE else len(HEADS) - 1
    found = Table(title=Text(headline(run)), title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for head in HEADS[:shown]:
        left = head in ("job", "stage", "checkpoint", "now")
        found.add_column(head, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    for job in run.jobs:
        found.add_row(*map(Text, cells(job)[:shown]))
    return found


def duration(seconds: float) -> str:
    """In the two largest units."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min" if minutes > 9 else f"{minutes}:{rest:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h"


def _print(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def print_report(config: RunConfig, console: Console, evaluator: Evaluator) -> None:
    """Write and print the report of what the run's folder holds."""
    console.print(evaluator.report(config), soft_wrap=True, highlight=False, markup=False)
    whole = "; the whole report is its table.md" if (config.folder / "table.md").is_file() else ""
    console.print(f"written to {config.folder}{whole}", soft_wrap=True, highlight=False, markup=False)
