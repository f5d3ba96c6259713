"""The rollouts of one step of training: its episodes, those that a group filter has kept, and their counterfactuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from selfcest_agents.player import Player
from selfcest_agents.replay import PlayedReplay
from selfcest_agents.retries import FailureStats, Retries, Try
from selfcest_agents.rollout import RolloutRequest, collect_failures
from selfcest_env.errors import TrainingError
from selfcest_env.record import EpisodeGroup, EpisodeRecord, from_json, to_json
from selfcest_env.seeding import stream_seed
from selfcest_env.stored import by_field, to_stored
from selfcest_training.credit import CreditAssigner, ask, ask_more
from selfcest_training.stages.base import PlannedGroup
from selfcest_training.stages.crediting import GroupReplays


def play_groups(
    player: Player,
    planned: Sequence[PlannedGroup],
    *,
    step: int,
    seed: int,
    temperature: float,
    weights: Mapping[str, float],
    after: Sequence[PlannedGroup] = (),
    max_retries: int = 0,
) -> tuple[list[EpisodeGroup], FailureStats]:
    """One group per plan, scored, and what failed; ids are `s<step>.g<group>.e<episode>`.

    A group with an episode that fails is played again whole, with the same seeds.

    Args:
        weights: of the reward's terms.
        after: what was planned for the same step before; no two episodes of a step share an id or a seed.
        max_retries: further tries of a group.
    """
    count = sum(plan.num_rollouts for plan in after)
    requests: dict[int, list[RolloutRequest]] = {}
    for i, plan in enumerate(planned, len(after)):
        names = [f"s{step}.g{i}.e{k}" for k in range(plan.num_rollouts)]
        seeds = [stream_seed("episode", seed, step, count + k) for k in range(plan.num_rollouts)]
        requests[i] = [
            RolloutRequest(name, plan.task, episode_seed, plan.limits)
            for name, episode_seed in zip(names, seeds, strict=True)
        ]
        count += plan.num_rollouts

    def one_try(missing: list[int]) -> Try[int, EpisodeGroup]:
        of_missing = [request for i in missing for request in requests[i]]
        records, failed = collect_failures(partial(player.play, of_missing, temperature, weights))
        record_of = {record.episode_id: record for record in records}
        groups = {}
        for i in missing:
            if all(request.episode_id in record_of for request in requests[i]):
                episodes = tuple(record_of.pop(request.episode_id) for request in requests[i])
                groups[i] = EpisodeGroup(planned[i - len(after)].task, episodes)
        return Try(groups, failed, sum(record.cost.generated_tokens for record in record_of.values()))

    retries = Retries[int, EpisodeGroup](max_retries)
    groups, _ = collect_failures(partial(retries.play, list(requests), one_try))
    return list(groups.values()), retries.stats + FailureStats(len(requests) - len(groups))


def without(groups: Sequence[EpisodeGroup], episodes: Sequence[EpisodeRecord]) -> list[EpisodeGroup]:
    """The groups less these episodes; one without any left is gone."""
    names = {episode.episode_id for episode in episodes}
    if not names:
        return list(groups)
    left = [(group.task, tuple(e for e in group.episodes if e.episode_id not in names)) for group in groups]
    return [EpisodeGroup(task, rest) for task, rest in left if rest]


@dataclass(frozen=True)
class RolloutBatch:
    """The rollouts of a step.

    Attributes:
        groups: all that were played, in order.
        train_groups: the groups to learn from, which a group filter has made of episodes of `groups`.
        replayed: the replays of each of the train groups.
        planned_episodes: of the first round; what the step's loss denominators count, whatever was dropped or refilled.
        rounds: of rollouts.
        failures: what infrastructure failures took.
    """

    groups: tuple[EpisodeGroup, ...]
    train_groups: tuple[EpisodeGroup, ...]
    replayed: tuple[GroupReplays, ...]
    planned_episodes: int
    rounds: int
    failures: FailureStats = FailureStats()

    @property
    def sampled_tokens(self) -> int:
        """Generated tokens of all episodes and replays, dropped, failed and given up ones too."""
        episodes = sum(episode.cost.generated_tokens for group in self.groups for episode in group.episodes)
        replays = sum(played.generated_tokens for of_group in self.replayed for played in of_group.values())
        return episodes + replays + self.failures.tokens

    def staleness(self, step: int) -> int:
        """Most steps that separate the weights of a turn from those that step `step` begins with."""
        turns = (turn for group in self.groups for episode in group.episodes for _, turn in episode.turns())
        return max((step - turn.generation.policy_version for turn in turns), default=0)

    def diagnostics(self) -> dict[str, float]:
        """What the group filter and infrastructure failures cost."""
        kept = {episode.episode_id for group in self.train_groups for episode in group.episodes}
        dropped = [[e for e in group.episodes if e.episode_id not in kept] for group in self.groups]
        whole = sum(len(lost) == len(group.episodes) for lost, group in zip(dropped, self.groups, strict=True))
        tokens = sum(episode.cost.generated_tokens for lost in dropped for episode in lost)
        filtered = {"gate/rounds": self.rounds, "gate/dropped_groups": whole, "gate/dropped_tokens": tokens}
        return {**filtered, **self.failures.metrics()}

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint, with the keys that the first release wrote."""
        return {
            "groups": [[to_json(episode) for episode in group.episodes] for group in self.groups],
            "learned_from": [[episode.episode_id for episode in group.episodes] for group in self.train_groups],
            "replayed": [
                [[to_json(played.record), played.generated_tokens, played.prompt_tokens] for played in group.values()]
                for group in self.replayed
            ],
            "planned_episodes": self.planned_episodes,
            "rounds": self.rounds,
            "outages": to_stored(self.failures),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], assigner: CreditAssigner) -> RolloutBatch:
        """Inverse of `to_json`; the scheme is asked for its replays again, and they are the same."""
        records = [tuple(from_json(episode) for episode in episodes) for episodes in data["groups"]]
        groups = tuple(EpisodeGroup(episodes[0].task, episodes) for episodes in records)
        found = {episode.episode_id: episode for episodes in records for episode in episodes}
        kept = [tuple(found[name] for name in names) for names in data["learned_from"]]
        train_groups = tuple(EpisodeGroup(episodes[0].task, episodes) for episodes in kept)
        replayed = []
        for group, stored in zip(train_groups, data["replayed"], strict=True):
            played = [PlayedReplay(from_json(record), *price) for record, *price in stored]
            names = [replay.record.episode_id for replay in played]
            asked = ask(assigner, group)
            if [str(replay) for replay in asked] == names[: len(asked)]:
                first = zip(asked, (replay.record for replay in played), strict=False)  # the second round stands behind
                asked += ask_more(assigner, group, dict(first))
            if [str(replay) for replay in asked] != names:
                raise TrainingError(
                    f"the checkpoint's waiting rollouts hold {len(stored)} replays that credit scheme "
                    f"'{assigner.name}' does not ask for; go on with the config that it was written with"
                )
            replayed.append(dict(zip(asked, played, strict=True)))
        failures = FailureStats(**by_field(FailureStats, data["outages"]))
        return cls(groups, train_groups, tuple(replayed), data["planned_episodes"], data["rounds"], failures)
