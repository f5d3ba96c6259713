"""Numbers of a job, one JSON object a line, and the same for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord, write_episode
from selfcest_training.files import Growing


class MetricsLog:
    """Rows of numbers.

    Args:
        rows: `metrics.jsonl`, where to go on.
        board: folder of the same for TensorBoard, which no checkpoint counts on.
    """

    def __init__(self, rows: Growing, board: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only a job writes

        self._rows, self._board = rows, SummaryWriter(str(board))

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        self._rows.append(json.dumps({"stage": stage, "step": step, **values}) + "\n")
        for name, value in values.items():
            self._board.add_scalar(f"{stage}/{name}", value, step)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.close()
        self._board.close()


def episode_lines(groups: Sequence[EpisodeGroup], replayed: Sequence[Sequence[EpisodeRecord]]) -> str:
    """The episodes of these groups as lines of JSON, those of a group after its replays."""
    return "".join(
        write_episode(episode)
        for group, records in zip(groups, replayed, strict=True)
        for episode in (*records, *group.episodes)
    )


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
