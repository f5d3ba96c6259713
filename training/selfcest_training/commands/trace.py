"""`selfcest trace`: an episode's tree in words."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from rich.console import Console

from selfcest_env.errors import RecordError, did_you_mean
from selfcest_env.record import EpisodeRecord, read_episodes
from selfcest_env.render import render_record


def find_episode(file: Path, episode_id: str | None) -> EpisodeRecord:
    """The named episode of a file, or its last. Raises `RecordError` if there is none."""
    if not file.is_file():
        raise RecordError(f"there is no file {file}; give the episodes.jsonl of a run")
    if episode_id is None:
        last = deque(read_episodes(file), maxlen=1)
        if not last:
            raise RecordError(f"{file} holds no episode")
        return last[0]
    ids = []
    for record in read_episodes(file):
        if record.episode_id == episode_id:
            return record
        ids.append(record.episode_id)
    raise RecordError(f"{file} holds no episode '{episode_id}'.{did_you_mean(episode_id, ids)}")


def print_trace(file: Path, episode_id: str | None, console: Console, *, texts: bool = False) -> None:
    """Print task, tree, cost and reward of one episode, and with `texts` all that its agents wrote."""
    record = find_episode(file, episode_id)
    console.print(render_record(record, texts=texts), markup=False, highlight=False, soft_wrap=True)
