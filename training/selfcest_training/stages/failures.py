"""Replays of a step under infrastructure failures: a group that cannot be replayed is dropped whole, and counted.

No group is learned from in part: what fails is rarely random (long episodes make more requests), and a group baseline
over the episodes that survived would take that for credit.
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
from selfcest_training.stages.crediting import GroupReplays, PlayReplays, counterfactuals


def replay_groups(
    assigner: CreditAssigner, groups: Sequence[EpisodeGroup], play: PlayReplays, max_retries: int
) -> tuple[list[EpisodeGroup], tuple[GroupReplays, ...], FailureStats]:
    """The groups whose `counterfactuals` could all be played, these, and what the others cost.

    A group's own episodes are not played again: by their seeds they would be the same.
    """
    retries = Retries[Replay, PlayedReplay](max_retries)

    def one_try(episodes: Sequence[EpisodeRecord], missing: list[Replay]) -> Attempt[Replay, PlayedReplay]:
        return Attempt(*collect_failures(partial(play, episodes, missing)))

    def play_missing(episodes: Sequence[EpisodeRecord], replays: Sequence[Replay]) -> dict[Replay, PlayedReplay]:
        return retries.play(list(dict.fromkeys(replays)), partial(one_try, episodes))

    replayed, kept, dropped = drop_failed(
        groups,
        lambda left: counterfactuals(assigner, left, play_missing),
        lambda group, replay: root_episode(replay) in {episode.episode_id for episode in group.episodes},
    )
    episodes = [episode for group, _ in dropped for episode in group.episodes]
    names = {episode.episode_id for episode in episodes}
    tokens = sum(episode.cost.generated_tokens for episode in episodes)
    replays = [played for replay, played in retries.results.items() if root_episode(replay.episode_id) in names]
    tokens += sum(played.generated_tokens for played in replays)
    return kept, replayed, retries.stats + FailureStats(len(dropped), tokens=tokens)
