"""Numbers of a job, one JSON object a line, and the same for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord, write_episode


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
        _rewrite(path, "".join(line + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only a job writes

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


def _rewrite(path: Path, text: str) -> None:
    beside = path.with_suffix(".partial")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def drop_episodes(path: Path, from_step: int) -> None:
    """Remove the episodes of steps that will be played again from a job's log; ids begin with `s<step>.`."""
    if not path.exists():
        return
    kept = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = _parse(line)
            if row is not None and int(str(row["episode_id"]).partition(".")[0][1:]) < from_step:
                kept.append(line)
    _rewrite(path, "".join(kept))


def _parse(line: str) -> dict[str, float] | None:
    try:
        row: dict[str, float] = json.loads(line)
    except ValueError:  # the line that a crash cut short
        return None
    return row


def log_episodes(path: Path, groups: Sequence[EpisodeGroup], replayed: Sequence[Sequence[EpisodeRecord]]) -> None:
    """Append the episodes of these groups to a JSON-lines file, those of a group after its replays."""
    with path.open("a", encoding="utf-8") as file:
        for group, records in zip(groups, replayed, strict=True):
            file.writelines(write_episode(episode) for episode in (*records, *group.episodes))


def describe(groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Means over the episodes of one step."""
    episodes: list[EpisodeRecord] = [episode for group in groups for episode in group.episodes]
    clones = sum(episode.cost.clones for episode in episodes)
    failed = sum(agent.failed for episode in episodes for agent in episode.agents[1:])
    return {
        "return": float(np.mean([episode.team_return for episode in episodes])),
        "grader_floors": sum(episode.grade_note != "" for episode in episodes) / len(episodes),
        "answered": float(np.mean([episode.answer is not None for episode in episodes])),
        "total_tokens": float(np.mean([episode.cost.total_tokens for episode in episodes])),
        "critical_path": float(np.mean([episode.cost.critical_path_tokens for episode in episodes])),
        "clones": clones / len(episodes),
        "failed_clones": failed / max(1, clones),
    }
