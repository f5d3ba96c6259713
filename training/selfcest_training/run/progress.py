"""How far jobs are: what each writes beside its metrics while it works, and what a reader makes of a run's files.

The terminal display of `selfcest train` and `selfcest watch` are both `read_run`, so they cannot differ.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfcest_training.config import RunConfig
from selfcest_training.files import read_regular, replace_text
from selfcest_training.lock import find_lock_owner
from selfcest_training.run.checkpoint import checkpoints

PROGRESS = "progress.json"
WAITING, DONE = "waiting", "done"
STEPS = 10  # of RL that are averaged, since one step says little
_MARKS = 32
_TAIL = 1 << 16  # bytes: some thirty steps


class ProgressFile:
    """What a job says of itself in its folder's `progress.json`. Nothing counts on it, so it is not synced.

    Args:
        folder: of the job.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._stage = folder / PROGRESS, ""
        self._marks: deque[tuple[float, float, int]] = deque(maxlen=_MARKS)

    def report(self, stage: str, share: float, note: str, compute_tokens: int) -> None:
        """So much of a stage is done, in [0, 1], and so much compute has been used by now."""
        if stage != self._stage or (self._marks and share < self._marks[-1][1]):  # an attempt that begins again
            self._marks.clear()
        self._stage = stage
        self._marks.append((time.time(), share, compute_tokens))
        with suppress(OSError):  # on a full disk the metrics end the job, in their own words
            replace_text(self._path, json.dumps({"stage": stage, "note": note, "marks": list(self._marks)}))


@dataclass(frozen=True)
class JobStatus:
    """How far a job is. Numbers that are not known are `None`.

    Attributes:
        job: as `VARIANT/seedN`.
        stage: `waiting`, `warm start`, `RL`, `evaluate` or `done`.
        share: of the stage that is done, in [0, 1].
        seconds_left: of the stage, at its pace of late; of a run that goes on.
        tokens_per_second: of compute (sampled + scored + 3 x trained), by the clock, of late.
        team_return, clones: mean over the last `STEPS` steps of RL.
        accuracy: share of right answers; over the same steps, or of the last probe where no step knows it.
        checkpoint: name of the newest.
        note: what it is at.
    """

    job: str
    stage: str = WAITING
    share: float | None = None
    seconds_left: float | None = None
    tokens_per_second: float | None = None
    team_return: float | None = None
    accuracy: float | None = None
    clones: float | None = None
    checkpoint: str | None = None
    note: str = ""


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Attributes:
        folder: of the run.
        owner: the process that works there, in words; `None`: none does, as far as can be seen from here.
        jobs: in the order in which they are begun.
    """

    folder: Path
    owner: str | None
    jobs: tuple[JobStatus, ...]


def read_run(config: RunConfig, now: float | None = None) -> RunStatus:
    """What a run's folder says at this moment, or at `now` in seconds of the epoch.

    It reads alone and takes no lock. What is damaged, or half-written, counts as missing: the report names it.
    """
    now, owner = time.time() if now is None else now, find_lock_owner(config.folder)
    jobs = [(variant, seed) for seed in config.seeds for variant in config.variants]
    return RunStatus(
        config.folder,
        owner,
        tuple(
            _job(f"{variant}/seed{seed}", config.folder / variant / f"seed{seed}", None if owner is None else now)
            for variant, seed in jobs
        ),
    )


def _job(name: str, folder: Path, now: float | None) -> JobStatus:
    """`now` is `None` where no process works: then nothing comes to an end."""
    rows = last_rows(folder / "metrics.jsonl")
    steps = [row for row in rows if row["stage"] == "rl"][-STEPS:]
    probes = [row for row in rows if row["stage"] == "probe"]
    accuracy = _mean([row.get("correct") for row in steps])
    if accuracy is None and probes:
        accuracy = _mean([value for key, value in probes[-1].items() if key.startswith("accuracy/")])
    found = checkpoints(folder / "checkpoints")
    known = _read_progress(folder / PROGRESS)
    stage, note, marks = known or (WAITING, "", ())
    running = stage not in (WAITING, DONE)
    return JobStatus(
        name,
        stage,
        share=marks[-1][1] if marks else None,
        seconds_left=_seconds_left(marks, now) if running and now is not None else None,
        tokens_per_second=_speed(marks, 2) if running else None,
        team_return=_mean([row.get("return") for row in steps]),
        accuracy=accuracy,
        clones=_mean([row.get("clones") for row in steps]),
        checkpoint=found[-1].name if found else None,
        note=note,
    )


_Marks = Sequence[Sequence[float]]


def _read_progress(path: Path) -> tuple[str, str, _Marks] | None:
    try:
        data = json.loads(read_regular(path))
        marks = [tuple(map(float, mark)) for mark in data["marks"]]
        if any(len(mark) != 3 for mark in marks):
            return None
        return str(data["stage"]), str(data["note"]), marks
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _speed(marks: _Marks, index: int) -> float | None:
    """How fast a number of the marks grows, per second; `None` if it does not."""
    if not marks:
        return None
    seconds, grown = marks[-1][0] - marks[0][0], marks[-1][index] - marks[0][index]
    return grown / seconds if seconds > 0 and grown > 0 else None


def _seconds_left(marks: _Marks, now: float) -> float | None:
    pace = _speed(marks, 1)
    return None if pace is None else max(0.0, (1 - marks[-1][1]) / pace - (now - marks[-1][0]))


def last_rows(path: Path) -> list[Mapping[str, Any]]:
    """The newest rows of a job's metrics, oldest first; none where there is no file. A line without an end is left out,
    for it is being written."""
    try:
        text = read_regular(path, _TAIL + 1)
    except OSError:
        return []
    rows = list[Mapping[str, Any]]()
    # A file of more bytes begins in the middle of a line.
    lines = text.split(b"\n")[1 if len(text) > _TAIL else 0 : -1]
    for line in lines:
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and "stage" in row:
                rows.append(row)
    return rows


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else None
