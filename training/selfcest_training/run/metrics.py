"""The metrics of a job: rows of `metrics.jsonl`, which also go to the boards that the config names."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord, write_episode
from selfcest_training.credit.base import are_equal
from selfcest_training.credit.offline import get_group_id
from selfcest_training.files import AppendLog
from selfcest_training.run.boards import Board


class MetricsLog:
    """Writes rows of metrics, and closes the file and the boards at its end.

    Args:
        rows: the file `metrics.jsonl`.
    """

    def __init__(self, rows: AppendLog) -> None:
        self._rows = rows
        self._boards: list[Board] = []

    def add_board(self, board: Board) -> None:
        """Send all rows from now on to this board as well."""
        self._boards.append(board)

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        self._rows.append(json.dumps({"stage": stage, "step": step, **values}) + "\n")
        for board in self._boards:
            board.write(stage, step, values)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as closing:
            closing.callback(self._rows.close)
            for board in self._boards:
                closing.callback(board.close)


def format_episode_lines(groups: Sequence[EpisodeGroup], replayed: Sequence[Sequence[EpisodeRecord]]) -> str:
    """Return the episodes of the groups as lines of JSON. The episodes of a group come after its replays.

    Where a group filter joined groups, so that the episodes' ids differ in their group, each line names the first one.
    """
    lines: list[str] = []
    for group, records in zip(groups, replayed, strict=True):
        episodes = group.episodes
        group_id, *others = dict.fromkeys(get_group_id(episode.episode_id) for episode in episodes)
        if others:
            records = [replace(record, train_group=group_id) for record in records]
            episodes = tuple(replace(episode, train_group=group_id) for episode in episodes)
        lines += map(write_episode, [*records, *episodes])
    return "".join(lines)


def compute_rollout_metrics(groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Return means over the episodes of one step.

    `term/NAME` is the part of `return` that a reward term adds, 0 where an episode's reward lacks the term, so the
    parts sum to `return`. `entropy` is minus the mean log-prob of the sampled tokens, in nats: an unbiased estimate of
    the entropy per token at the sampling temperature. It is missing where no ids were sampled. `equal_groups` is the
    share of groups whose episodes all earn the same, so that a group baseline gives them no gradient. Groups are those
    that were rolled out, before the group filter. `correct` is the
    share of episodes whose term of that name is above 0. It is missing where the reward has no such term.
    """
    episodes = list(itertools.chain.from_iterable(group.episodes for group in groups))
    clones = sum(episode.cost.clones for episode in episodes)
    failed = 0
    for episode in episodes:
        # The first agent of an episode is its root.
        failed += sum(agent.failed for agent in episode.agents[1:])
    return {
        "return": float(np.mean([episode.team_return for episode in episodes])),
        "grader_floors": sum(episode.grade_note != "" for episode in episodes) / len(episodes),
        "answered": float(np.mean([episode.answer is not None for episode in episodes])),
        "total_tokens": float(np.mean([episode.cost.total_tokens for episode in episodes])),
        "critical_path": float(np.mean([episode.cost.critical_path_tokens for episode in episodes])),
        "clones": clones / len(episodes),
        "failed_clones": failed / max(1, clones),
        "equal_groups": float(np.mean([has_equal_returns(group) for group in groups])),
        **_correct(episodes),
        **_terms(episodes),
        **_entropy(episodes),
    }


def compute_probe_metrics(
    records_by_family: Mapping[str, Sequence[EpisodeRecord]], num_requested: int
) -> dict[str, float]:
    """Return means over the episodes of each family, named `probe/FAMILY/...`.

    `return` and its terms have the reward's own weights, not those of a schedule.

    Args:
        records_by_family: records of each family.
        num_requested: number of requested episodes per family. Those without a record count as `unplayed`.
    """
    metrics: dict[str, float] = {}
    for family, records in records_by_family.items():
        metrics[f"probe/{family}/unplayed"] = num_requested - len(records)
        if not records:
            continue
        values = {
            "return": float(np.mean([record.team_return for record in records])),
            "total_tokens": float(np.mean([record.cost.total_tokens for record in records])),
            "critical_path": float(np.mean([record.cost.critical_path_tokens for record in records])),
            "clones": float(np.mean([record.cost.clones for record in records])),
            **_correct(records),
            **_terms(records),
        }
        metrics.update({f"probe/{family}/{name}": value for name, value in values.items()})
    return metrics


def has_equal_returns(group: EpisodeGroup) -> bool:
    """Return whether all episodes of a group earn the same, up to rounding."""
    return are_equal([episode.team_return for episode in group.episodes])


def _terms(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the mean weighted value of every reward term."""
    names: dict[str, None] = {}
    for episode in episodes:
        names.update(dict.fromkeys(episode.reward_terms or {}))
    means: dict[str, float] = {}
    for name in names:
        values = []
        for episode in episodes:
            term = (episode.reward_terms or {}).get(name, 0.0)
            values.append(episode.weights.get(name, 1.0) * term)
        means[f"term/{name}"] = float(np.mean(values))
    return means


def _correct(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    all_terms = [episode.reward_terms or {} for episode in episodes]
    is_correct = [terms["correct"] > 0 for terms in all_terms if "correct" in terms]
    return {"correct": float(np.mean(is_correct))} if is_correct else {}


def _entropy(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    logprobs: list[float] = []
    for episode in episodes:
        for _, turn in episode.turns():
            logprobs.extend(turn.generation.behavior_logprobs)
    return {"entropy": -float(np.mean(logprobs))} if logprobs else {}
