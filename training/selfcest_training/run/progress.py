"""Writes the progress of a job, and reads the progress of a run from its files.

Both the display of `selfcest train` and `selfcest watch` show the result of `read_run`.
"""

from __future__ import annotations

import itertools
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
from selfcest_training.run.checkpoint import list_checkpoints

PROGRESS = "progress.json"
WAITING = "waiting"
DONE = "done"
# Number of the last RL steps in means, as a single step is noisy.
STEPS = 10
# Number of the last reports that a job's file holds, for its speed.
_MAX_MARKS = 32
# Bytes that are read at the end of a metrics file: about thirty steps.
_TAIL_BYTES = 1 << 16


class ProgressFile:
    """The file `progress.json` in a job's folder. It is not flushed to the disk, as nothing depends on it.

    Args:
        folder: the job's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._stage = ""
        # Time in seconds, share done and compute tokens of the last reports.
        self._marks: deque[tuple[float, float, int]] = deque(maxlen=_MAX_MARKS)

    def report(self, stage: str, share: float, note: str, compute_tokens: int) -> None:
        """Write the progress.

        Args:
            stage: name of the stage.
            share: share of the stage that is done, in [0, 1].
            note: a short text for the display.
            compute_tokens: compute of the job so far.
        """
        is_new_attempt = bool(self._marks) and share < self._marks[-1][1]
        if stage != self._stage or is_new_attempt:
            self._marks.clear()
        self._stage = stage
        self._marks.append((time.time(), share, compute_tokens))
        # On a full disk, the error of the metrics file ends the job.
        with suppress(OSError):
            replace_text(self._path, json.dumps({"stage": stage, "note": note, "marks": list(self._marks)}))


@dataclass(frozen=True)
class JobStatus:
    """The progress of a job. Unknown numbers are `None`.

    Attributes:
        job: name of the job, as `VARIANT/seedN`.
        stage: `waiting`, `warm start`, `RL`, `evaluate` or `done`.
        share: share of the stage that is done, in [0, 1].
        seconds_left: estimated seconds until the end of the stage, if a process works on the run.
        tokens_per_second: recent compute tokens (sampled + scored + 3 x trained) per second of wall-clock time.
        team_return: mean return over the last `STEPS` steps of RL.
        accuracy: share of right answers over the same steps, or in the last probe if the steps have none.
        clones: mean number of clones over the same steps.
        checkpoint: name of the newest checkpoint.
        note: a short text about the current work.
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
    """The progress of a run.

    Attributes:
        folder: the run's folder.
        owner: description of the process that works on the run; `None` if there is none.
        jobs: the jobs, in the order in which they begin.
    """

    folder: Path
    owner: str | None
    jobs: tuple[JobStatus, ...]


def read_run(config: RunConfig, now: float | None = None) -> RunStatus:
    """Read the progress of a run from its folder, without taking its lock.

    Damaged or incomplete files count as missing; the report of the run names them.

    Args:
        config: the run's config.
        now: the current time in seconds since the epoch; `None` for that of the clock.
    """
    if now is None:
        now = time.time()
    owner = find_lock_owner(config.folder)
    jobs = []
    for seed, variant in itertools.product(config.seeds, config.variants):
        folder = config.job_folder(variant, seed)
        jobs.append(_read_job(f"{variant}/seed{seed}", folder, None if owner is None else now))
    return RunStatus(config.folder, owner, tuple(jobs))


def _read_job(name: str, folder: Path, now: float | None) -> JobStatus:
    """Read the progress of a job. `now` is `None` if no process works on the run."""
    rows = _read_last_rows(folder / "metrics.jsonl")
    steps = [row for row in rows if row["stage"] == "rl"][-STEPS:]
    probes = [row for row in rows if row["stage"] == "probe"]
    accuracy = _mean([row.get("correct") for row in steps])
    if accuracy is None and probes:
        accuracy = _mean([value for key, value in probes[-1].items() if key.startswith("accuracy/")])
    checkpoints = list_checkpoints(folder / "checkpoints")
    stage, note, marks = _read_progress(folder / PROGRESS) or (WAITING, "", ())
    running = stage not in (WAITING, DONE)
    return JobStatus(
        name,
        stage,
        share=marks[-1][1] if marks else None,
        seconds_left=_estimate_seconds_left(marks, now) if running and now is not None else None,
        tokens_per_second=_compute_rate(marks, 2) if running else None,
        team_return=_mean([row.get("return") for row in steps]),
        accuracy=accuracy,
        clones=_mean([row.get("clones") for row in steps]),
        checkpoint=checkpoints[-1].name if checkpoints else None,
        note=note,
    )


_Marks = Sequence[Sequence[float]]


def _read_progress(path: Path) -> tuple[str, str, _Marks] | None:
    """Read stage, note and marks of a `ProgressFile`; `None` for a missing or damaged file."""
    try:
        data = json.loads(read_regular(path))
        marks = [tuple(map(float, mark)) for mark in data["marks"]]
        if any(len(mark) != 3 for mark in marks):
            return None
        return str(data["stage"]), str(data["note"]), marks
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _compute_rate(marks: _Marks, index: int) -> float | None:
    """Compute the growth per second of a number of the marks; `None` if it does not grow."""
    if not marks:
        return None
    seconds = marks[-1][0] - marks[0][0]
    growth = marks[-1][index] - marks[0][index]
    return growth / seconds if seconds > 0 and growth > 0 else None


def _estimate_seconds_left(marks: _Marks, now: float) -> float | None:
    rate = _compute_rate(marks, 1)
    if rate is None:
        return None
    last_time, share, _ = marks[-1]
    return max(0.0, (1 - share) / rate - (now - last_time))


def _read_last_rows(path: Path) -> list[Mapping[str, Any]]:
    """Read the newest rows of a job's metrics, oldest first; an empty list if there is no file."""
    try:
        text = read_regular(path, _TAIL_BYTES + 1)
    except OSError:
        return []
    rows: list[Mapping[str, Any]] = []
    # The text after the last line break is a line that is being written.
    lines = text.split(b"\n")[:-1]
    if len(text) > _TAIL_BYTES:
        # The text begins in the middle of a line.
        lines = lines[1:]
    for line in lines:
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and "stage" in row:
                rows.append(row)
    return rows


def _mean(values: Sequence[Any]) -> float | None:
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else None
