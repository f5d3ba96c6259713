"""Credit from stored episodes: the same records under any scheme, without a policy or a game."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfcest_env.errors import ConfigError, RecordError, RewardError
from selfcest_env.record import EpisodeGroup, EpisodeRecord, read_episodes
from selfcest_env.replay import Replay, replayed_episode
from selfcest_training.credit import Credit, CreditAssigner, NotInRecordsError, Replayed, ask, ask_more, assign


@dataclass(frozen=True)
class StoredEpisodes:
    """Groups of a file, and the replays stored beside them by id; `place` is the file in errors."""

    place: str
    groups: tuple[EpisodeGroup, ...]
    replayed: Mapping[str, EpisodeRecord]


def read_groups(path: Path) -> StoredEpisodes:
    """Episodes of a JSON-lines file in groups, see `in_groups`.

    Of a file whose last line was cut the last group is left out, for it may lack episodes; a warning says so.

    Raises:
        RecordError: no such file, a line that is no record, or as `in_groups`.
    """
    if not path.is_file():
        raise RecordError(
            f"there is no file {path}; give a file of episodes, as in runs/NAME/VARIANT/seed0/episodes.jsonl"
        )
    cut: list[str] = []
    records = list(read_episodes(path, on_cut=cut.append))
    if cut and records:
        warnings.warn(f"{cut[0]}, and so is its group {_group(records[-1].episode_id)}", stacklevel=2)
    return in_groups(records, str(path), cut=bool(cut))


def in_groups(records: Sequence[EpisodeRecord], place: str, *, cut: bool = False) -> StoredEpisodes:
    """Groups of episodes: those of one task whose ids agree up to the last dot (`s3.g0.e5`).

    A record whose id is that of a replay (`str(Replay)`) is that replay. `cut`: the last group is left out.

    Raises:
        RecordError: two records of one id, a replay without its episode, or no episode at all; `place` is in the words.
    """
    by_id: dict[str, EpisodeRecord] = {}
    last = _group(records[-1].episode_id) if cut and records else None
    for record in records:
        if _group(record.episode_id) == last:
            continue
        if by_id.setdefault(record.episode_id, record) is not record:
            raise RecordError(
                f"{place} holds two records named {record.episode_id}; give the file of one job at a time"
            )
    replayed = {name: record for name, record in by_id.items() if replayed_episode(name) is not None}
    for name in replayed:
        if replayed_episode(name) not in by_id:
            raise RecordError(f"{place} holds the replay {name} without its episode; the file has been cut")
    groups: dict[tuple[str, str], list[EpisodeRecord]] = {}
    for name, record in by_id.items():
        if name not in replayed:
            groups.setdefault((_group(name), record.task.task_id), []).append(record)
    if not groups:
        raise RecordError(f"{place} holds no episode")
    return StoredEpisodes(place, tuple(EpisodeGroup(rows[0].task, tuple(rows)) for rows in groups.values()), replayed)


def _group(name: str) -> str:
    """Of an episode's id, or of that of its replay."""
    return name.partition("/")[0].rpartition(".")[0]


def apply(assigner: CreditAssigner, stored: StoredEpisodes) -> list[Credit]:
    """Credit of every group. Raises `NotInRecordsError` where the file does not hold what the scheme needs."""
    return [credit_of(assigner, group, replays_of(assigner, group, stored), stored) for group in stored.groups]


def credit_of(assigner: CreditAssigner, group: EpisodeGroup, replayed: Replayed, stored: StoredEpisodes) -> Credit:
    """Credit of one group of a file. Raises `NotInRecordsError` that names file and group, if the scheme refuses it."""
    try:
        return assign(assigner, group, replayed)
    except (NotInRecordsError, ConfigError, RewardError) as error:
        first = group.episodes[0].episode_id
        raise NotInRecordsError(
            f"{stored.place}: credit scheme '{assigner.name}' cannot be computed for the group of {first}: {error}"
        ) from error


def replays_of(assigner: CreditAssigner, group: EpisodeGroup, stored: StoredEpisodes) -> dict[Replay, EpisodeRecord]:
    """What the scheme asks for, in both rounds. Raises `NotInRecordsError` for a replay that the file lacks."""
    first = _found(assigner, group, ask(assigner, group), stored)
    return {**first, **_found(assigner, group, ask_more(assigner, group, first), stored)}


def _found(
    assigner: CreditAssigner, group: EpisodeGroup, asked: Sequence[Replay], stored: StoredEpisodes
) -> dict[Replay, EpisodeRecord]:
    missing = [replay for replay in asked if str(replay) not in stored.replayed]
    if missing:
        raise NotInRecordsError(
            f"{stored.place}: credit scheme '{assigner.name}' needs {len(asked)} replays for the group of "
            f"{group.episodes[0].episode_id}, and {len(missing)} are not in the file (first: {missing[0]}); "
            "take a file of a run with this scheme, which stores its replays, or a scheme without replays"
        )
    return {replay: stored.replayed[str(replay)] for replay in asked}


def credit_lines(groups: Sequence[EpisodeGroup], credits: Sequence[Credit]) -> Iterator[str]:
    """One JSON object per turn: `turn`, and `advantage` (a number, or a list by token) or `excluded`; `weight` if it
    has one.

    Turns of replays that are trained on come after those of their group's episodes.
    """
    for group, credit in zip(groups, credits, strict=True):
        own = [key for episode in group.episodes for key, _ in episode.turns()]
        seen = set(own)
        for key in (*own, *(key for key in credit.advantage if key not in seen)):
            excluded = key in credit.excluded
            value: dict[str, object] = {"excluded": True} if excluded else {"advantage": credit.advantage[key]}
            if key in credit.weight:
                value["weight"] = credit.weight[key]
            yield json.dumps({"turn": str(key), **value}, default=float)  # a NumPy number is a number too
