"""Computes the credit of stored episodes under any scheme, without a policy or a game."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfcest_env.errors import ConfigError, RecordError, RewardError
from selfcest_env.record import EpisodeGroup, EpisodeRecord, read_episodes
from selfcest_env.replay import Replay, replayed_episode, root_episode
from selfcest_env.types import TurnKey
from selfcest_training.credit import (
    Credit,
    CreditAssigner,
    NotInRecordsError,
    ReplayRecords,
    assign,
    request_more_replays,
    request_replays,
)
from selfcest_training.credit.base import overrides


@dataclass(frozen=True)
class StoredEpisodes:
    """The episodes of a file.

    Attributes:
        source: name of the file, for errors.
        groups: the groups of episodes.
        replayed: the replays in the file, by id.
    """

    source: str
    groups: tuple[EpisodeGroup, ...]
    replayed: Mapping[str, EpisodeRecord]


def read_groups(path: Path) -> StoredEpisodes:
    """Read the episodes of a JSON-lines file and group them, see `group_episodes`.

    If the last line of the file is cut, the last group is omitted with a warning, as it may lack episodes.

    Raises:
        RecordError: there is no such file, a line is no record, or `group_episodes` refuses the records.
    """
    if not path.is_file():
        raise RecordError(
            f"there is no file {path}; expected a file of episodes, as in runs/NAME/VARIANT/seed0/episodes.jsonl"
        )
    cut: list[str] = []
    records = list(read_episodes(path, on_cut=cut.append))
    if cut and records:
        warnings.warn(f"{cut[0]}, and so is its group {get_train_group(records[-1])}", stacklevel=2)
    return group_episodes(records, str(path), cut=bool(cut))


def group_episodes(records: Sequence[EpisodeRecord], source: str, *, cut: bool = False) -> StoredEpisodes:
    """Group episodes of one task that have one `train_group`, or ids that agree up to the last dot (`s3.g0.e5`).

    Their replays are separated.

    Args:
        records: episodes and replays. A record whose id is `str(Replay)` is that replay.
        source: name of the file, for errors.
        cut: whether to omit the last group.

    Raises:
        RecordError: two records have one id, a replay has no episode, or there are no episodes.
    """
    by_id: dict[str, EpisodeRecord] = {}
    omitted_group = get_train_group(records[-1]) if cut and records else None
    for record in records:
        if get_train_group(record) == omitted_group:
            continue
        if record.episode_id in by_id:
            raise RecordError(
                f"{source} holds two records named {record.episode_id}; give the file of one job at a time"
            )
        by_id[record.episode_id] = record
    replayed: dict[str, EpisodeRecord] = {}
    episodes_by_group: dict[tuple[str, str], list[EpisodeRecord]] = {}
    for record_id, record in by_id.items():
        episode_id = replayed_episode(record_id)
        if episode_id is None:
            episodes_by_group.setdefault((get_train_group(record), record.task.task_id), []).append(record)
        elif episode_id in by_id:
            replayed[record_id] = record
        else:
            raise RecordError(
                f"{source} holds the replay {record_id} without its episode; give a complete file of one job"
            )
    if not episodes_by_group:
        raise RecordError(f"{source} holds no episode; give a file of episodes")
    groups = tuple(EpisodeGroup(episodes[0].task, tuple(episodes)) for episodes in episodes_by_group.values())
    return StoredEpisodes(source, groups, replayed)


def get_train_group(record: EpisodeRecord) -> str:
    """Get the id of the group that an episode or replay was trained in."""
    return record.train_group or get_group_id(record.episode_id)


def get_group_id(record_id: str) -> str:
    """Get the id of the group of an episode or replay: the episode's id up to its last dot."""
    return root_episode(record_id).rpartition(".")[0]


def assign_stored(assigner: CreditAssigner, stored: StoredEpisodes) -> list[Credit]:
    """Compute the credit of every group.

    Raises:
        NotInRecordsError: the file lacks records that the scheme needs, or the scheme learns.
    """
    refuse_learning(assigner, stored.source)
    credits = []
    for group in stored.groups:
        replayed = find_stored_replays(assigner, group, stored)
        credits.append(assign_stored_group(assigner, group, replayed, stored))
    return credits


def refuse_learning(assigner: CreditAssigner, file: str) -> None:
    """Raise `NotInRecordsError` if a scheme learns over steps, or needs all groups of one, which no file has."""
    if overrides(assigner, "fit") or overrides(assigner, "assign_step"):
        # A file has `log_groups` groups of each step, so neither what was learned nor a whole step can be repeated.
        raise NotInRecordsError(
            f"credit scheme '{assigner.name}' learns over the steps of a run or needs all groups of a step, which "
            f"{file} does not hold; train with it, or choose another scheme"
        )


def assign_stored_group(
    assigner: CreditAssigner, group: EpisodeGroup, replayed: ReplayRecords, stored: StoredEpisodes
) -> Credit:
    """Compute the credit of one group of a file. Raises `NotInRecordsError` if the scheme refuses the group."""
    try:
        return assign(assigner, group, replayed)
    except (NotInRecordsError, ConfigError, RewardError) as error:
        first = group.episodes[0].episode_id
        raise NotInRecordsError(
            f"{stored.source}: credit scheme '{assigner.name}' cannot be computed for the group of {first}: {error}"
        ) from error


def find_stored_replays(
    assigner: CreditAssigner, group: EpisodeGroup, stored: StoredEpisodes
) -> dict[Replay, EpisodeRecord]:
    """Find the replays of both rounds. Raises `NotInRecordsError` if the file lacks one of them."""
    first = _select_replays(assigner, group, request_replays(assigner, group), stored)
    second = _select_replays(assigner, group, request_more_replays(assigner, group, first), stored)
    return {**first, **second}


def _select_replays(
    assigner: CreditAssigner, group: EpisodeGroup, replays: Sequence[Replay], stored: StoredEpisodes
) -> dict[Replay, EpisodeRecord]:
    missing = [replay for replay in replays if str(replay) not in stored.replayed]
    if missing:
        raise NotInRecordsError(
            f"{stored.source}: credit scheme '{assigner.name}' needs {len(replays)} replays for the group of "
            f"{group.episodes[0].episode_id}, and {len(missing)} are not in the file (first: {missing[0]}); "
            "take a file of a run with this scheme, which stores its replays, or a scheme without replays"
        )
    return {replay: stored.replayed[str(replay)] for replay in replays}


def format_credit_lines(groups: Sequence[EpisodeGroup], credits: Sequence[Credit]) -> Iterator[str]:
    """Write one JSON object per turn, with `turn` and `advantage` (a number, or a list by token) or `excluded`.

    A turn with a weight also has `weight`. Trained turns of replays come after those of their group's episodes.
    """
    for group, credit in zip(groups, credits, strict=True):
        # A dict, because it keeps the order of the turns and drops repetitions.
        keys: dict[TurnKey, None] = {}
        for episode in group.episodes:
            keys.update((key, None) for key, _ in episode.turns())
        keys.update(dict.fromkeys(credit.advantage))
        for key in keys:
            line: dict[str, object] = {"turn": str(key)}
            if key in credit.excluded:
                line["excluded"] = True
            else:
                line["advantage"] = credit.advantage[key]
            if key in credit.weight:
                line["weight"] = credit.weight[key]
            # JSON has no NumPy numbers, and an advantage may be one.
            yield json.dumps(line, default=float)
