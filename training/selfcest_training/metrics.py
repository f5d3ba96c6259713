"""Numbers of a job, one JSON object a line, and the same for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from torch.utils.tensorboard import SummaryWriter


class MetricsLog:
    """Appends to `folder/metrics.jsonl`. Rows of a stage from `resume_at` on are dropped first.

    Args:
        folder: the job's folder.
        resume_at: for each stage the first step that will be played again.
    """

    def __init__(self, folder: Path, resume_at: Mapping[str, int]) -> None:
        path = folder / "metrics.jsonl"
        kept = []
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = _parse(line)
                if row is not None and row["step"] < resume_at.get(str(row["stage"]), 0):
                    kept.append(line)
        path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / "tensorboard"))

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        self._file.write(json.dumps({"stage": stage, "step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(f"{stage}/{name}", value, step)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._board.close()


def drop_episodes(path: Path, from_step: int) -> None:
    """Remove the episodes of steps that will be played again from a job's log; ids begin with `s<step>.`."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        row = _parse(line)
        if row is not None and int(str(row["episode_id"]).partition(".")[0][1:]) < from_step:
            kept.append(line)
    path.write_text("".join(kept), encoding="utf-8")


def _parse(line: str) -> dict[str, float] | None:
    try:
        row: dict[str, float] = json.loads(line)
    except ValueError:  # the line that a crash cut short
        return None
    return row
