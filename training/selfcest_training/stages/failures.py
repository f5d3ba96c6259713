"""Plays the replays of a step under infrastructure failures: a group with a failed replay is dropped and counted.

Groups are never trained in part. Failures are not random, as long episodes make more requests, and a group baseline
over the remaining episodes would be biased.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from selfcest_agents.replay import PlayedReplay
from selfcest_agents.retries import Attempt, FailureStats, Retries, drop_failed
from selfcest_agents.rollout import collect_failures
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay, root_episode
from selfcest_training.credit import CreditAssigner
from selfcest_training.stages.crediting import GroupReplays, PlayReplays, play_counterfactuals


def replay_groups(
    assigner: CreditAssigner, groups: Sequence[EpisodeGroup], play: PlayReplays, max_retries: int
) -> tuple[list[EpisodeGroup], tuple[GroupReplays, ...], FailureStats]:
    """Play the counterfactual replays of groups, with retries.

    The episodes of a group are not played again after a failure, as their seeds would give the same episodes.

    Returns:
        The groups whose replays could all be played, their replays, and statistics of the failures.
    """
    retries = Retries[Replay, PlayedReplay](max_retries)

    def attempt(episodes: Sequence[EpisodeRecord], missing: list[Replay]) -> Attempt[Replay, PlayedReplay]:
        return Attempt(*collect_failures(partial(play, episodes, missing)))

    def play_missing(episodes: Sequence[EpisodeRecord], replays: Sequence[Replay]) -> dict[Replay, PlayedReplay]:
        return retries.play(list(dict.fromkeys(replays)), partial(attempt, episodes))

    replayed, replayed_groups, dropped = drop_failed(
        groups,
        lambda remaining: play_counterfactuals(assigner, remaining, play_missing),
        lambda group, replay: root_episode(replay) in {episode.episode_id for episode in group.episodes},
    )
    # The tokens of dropped episodes and of their replays still count as compute.
    tokens = 0
    dropped_ids: set[str] = set()
    for group, _ in dropped:
        for episode in group.episodes:
            dropped_ids.add(episode.episode_id)
            tokens += episode.cost.generated_tokens
    for replay, played in retries.results.items():
        if root_episode(replay.episode_id) in dropped_ids:
            tokens += played.generated_tokens
    return replayed_groups, replayed, retries.stats + FailureStats(len(dropped), tokens=tokens)
