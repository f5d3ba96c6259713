"""Numbers of a job, one JSON object a line, and the same for whoever else the config names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord, write_episode
from selfcest_training.files import AppendLog
from selfcest_training.run.boards import Board


class MetricsLog:
    """Rows of numbers.

    Args:
        rows: `metrics.jsonl`, where to go on.
    """

    def __init__(self, rows: AppendLog) -> None:
        self._rows, self._boards = rows, list[Board]()

    def tell(self, board: Board) -> None:
        """From now on this one too, which is closed with the rows."""
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


def episode_lines(groups: Sequence[EpisodeGroup], replayed: Sequence[Sequence[EpisodeRecord]]) -> str:
    """The episodes of these groups as lines of JSON, those of a group after its replays."""
    return "".join(
        write_episode(episode)
        for group, records in zip(groups, replayed, strict=True)
        for episode in (*records, *group.episodes)
    )


def describe(groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Means over the episodes of one step; `term/NAME` are what each term of the reward adds to `return`,
    nothing where an episode's reward has no such term, so that they sum to it.

    `entropy` is minus the mean log-prob of the tokens sampled, in nats: an unbiased estimate of the entropy per token
    at the sampling temperature. It is missing where no ids were sampled. `equal_groups` is the share of groups whose
    episodes all earn the same, from which no credit relative to the group can learn. `correct` is the share of episodes
    whose term of that name is above 0; it is missing where the reward has none.
    """
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
        "equal_groups": float(np.mean([equal_returns(group) for group in groups])),
        **_correct(episodes),
        **_terms(episodes),
        **_entropy(episodes),
    }


def describe_probe(played: Mapping[str, Sequence[EpisodeRecord]], asked: int) -> dict[str, float]:
    """Means over the episodes of each family, called `probe/FAMILY/...`; `return` and its terms by the reward's own
    weights, whatever a schedule makes of them. `unplayed` of the `asked` are left out."""
    found: dict[str, float] = {}
    for family, records in played.items():
        found[f"probe/{family}/unplayed"] = asked - len(records)
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
        found.update({f"probe/{family}/{name}": value for name, value in values.items()})
    return found


def equal_returns(group: EpisodeGroup) -> bool:
    """Whether all episodes of a group earn the same, but for rounding."""
    returns = [episode.team_return for episode in group.episodes]
    return max(returns) - min(returns) <= 1e-9


def _terms(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    scored = [(episode.reward_terms or {}, episode.weights) for episode in episodes]
    names = dict.fromkeys(name for terms, _ in scored for name in terms)
    return {f"term/{name}": float(np.mean([w.get(name, 1.0) * t.get(name, 0.0) for t, w in scored])) for name in names}


def _correct(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    terms = [episode.reward_terms or {} for episode in episodes]
    found = [one["correct"] > 0 for one in terms if "correct" in one]
    return {"correct": float(np.mean(found))} if found else {}


def _entropy(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    sampled = [p for episode in episodes for _, turn in episode.turns() for p in turn.generation.behavior_logprobs]
    return {"entropy": -float(np.mean(sampled))} if sampled else {}
