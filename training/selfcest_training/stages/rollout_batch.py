"""The rollouts of one training step: its episodes, the groups that a filter kept, and their counterfactual replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from selfcest_agents.player import Player
from selfcest_agents.replay import PlayedReplay
from selfcest_agents.retries import Attempt, FailureStats, Retries
from selfcest_agents.rollout import RolloutRequest, collect_failures
from selfcest_env.errors import TrainingError
from selfcest_env.record import EpisodeGroup, EpisodeRecord, from_json, to_json
from selfcest_env.seeding import stream_seed
from selfcest_env.stored import by_field, to_stored
from selfcest_training.credit import CreditAssigner, request_more_replays, request_replays
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
    """Play and score one group for each plan. Episode ids are `s<step>.g<group>.e<episode>`.

    A group with an episode that fails is retried as a whole, with the same seeds.

    Args:
        player: plays the episodes.
        planned: the tasks, each with its number of rollouts.
        step: the training step. It keys ids and seeds.
        seed: the seed of the job.
        temperature: of sampling.
        weights: by reward term.
        after: the plans that the same step has played before. Groups and episodes are numbered on from theirs, so no
            two episodes of a step share an id or a seed.
        max_retries: tries of a group after the first one.

    Returns:
        The groups that could be played, in the order of their plans, and statistics of the failures.
    """
    num_episodes = sum(plan.num_rollouts for plan in after)
    requests: dict[int, list[RolloutRequest]] = {}
    for number, plan in enumerate(planned, len(after)):
        requests[number] = []
        for k in range(plan.num_rollouts):
            episode_seed = stream_seed("episode", seed, step, num_episodes + k)
            requests[number].append(RolloutRequest(f"s{step}.g{number}.e{k}", plan.task, episode_seed, plan.limits))
        num_episodes += plan.num_rollouts

    def play_missing(missing: list[int]) -> Attempt[int, EpisodeGroup]:
        missing_requests = list(chain.from_iterable(requests[number] for number in missing))
        records, failures = collect_failures(partial(player.play, missing_requests, temperature, weights))
        record_by_id = {record.episode_id: record for record in records}
        groups = {}
        for number in missing:
            if all(request.episode_id in record_by_id for request in requests[number]):
                episodes = tuple(record_by_id.pop(request.episode_id) for request in requests[number])
                groups[number] = EpisodeGroup(planned[number - len(after)].task, episodes)
        # Records that are left belong to groups that are played again, so their tokens are lost.
        lost_tokens = sum(record.cost.generated_tokens for record in record_by_id.values())
        return Attempt(groups, failures, lost_tokens)

    retries = Retries[int, EpisodeGroup](max_retries)
    groups, _ = collect_failures(partial(retries.play, list(requests), play_missing))
    return list(groups.values()), retries.stats + FailureStats(len(requests) - len(groups))


def remove_episodes(groups: Sequence[EpisodeGroup], episodes: Sequence[EpisodeRecord]) -> list[EpisodeGroup]:
    """Return the groups without these episodes, and without groups that have no episode left."""
    removed_ids = {episode.episode_id for episode in episodes}
    if not removed_ids:
        return list(groups)
    remaining_groups = []
    for group in groups:
        remaining = tuple(episode for episode in group.episodes if episode.episode_id not in removed_ids)
        if remaining:
            remaining_groups.append(EpisodeGroup(group.task, remaining))
    return remaining_groups


@dataclass(frozen=True)
class RolloutBatch:
    """The rollouts of a step.

    Attributes:
        groups: all groups that were played, in order.
        train_groups: the groups to train on, which a group filter made of episodes of `groups`.
        replayed: the replays of each train group.
        planned_episodes: the episodes planned in the first round. The step's loss denominators count them, whatever was
            dropped or refilled.
        rounds: number of rounds of rollouts.
        failures: the groups and tokens that infrastructure failures took.
    """

    groups: tuple[EpisodeGroup, ...]
    train_groups: tuple[EpisodeGroup, ...]
    replayed: tuple[GroupReplays, ...]
    planned_episodes: int
    rounds: int
    failures: FailureStats = FailureStats()

    @property
    def sampled_tokens(self) -> int:
        """The generated tokens of all episodes and replays, also of dropped and failed ones."""
        tokens = self.failures.tokens
        for group in self.groups:
            tokens += sum(episode.cost.generated_tokens for episode in group.episodes)
        for replays in self.replayed:
            tokens += sum(replay.generated_tokens for replay in replays.values())
        return tokens

    def staleness(self, step: int) -> int:
        """Return how many steps the oldest weights of a turn are behind the weights that step `step` begins with."""
        staleness: list[int] = []
        for group in self.groups:
            for episode in group.episodes:
                staleness += [step - turn.generation.policy_version for _, turn in episode.turns()]
        return max(staleness, default=0)

    def diagnostics(self) -> dict[str, float]:
        """Return metrics of the group filter and of infrastructure failures."""
        train_ids: set[str] = set()
        for group in self.train_groups:
            train_ids.update(episode.episode_id for episode in group.episodes)
        dropped_groups = 0
        dropped_tokens = 0
        for group in self.groups:
            dropped = [episode for episode in group.episodes if episode.episode_id not in train_ids]
            dropped_groups += len(dropped) == len(group.episodes)
            dropped_tokens += sum(episode.cost.generated_tokens for episode in dropped)
        return {
            # The names that stored metrics have.
            "gate/rounds": self.rounds,
            "gate/dropped_groups": dropped_groups,
            "gate/dropped_tokens": dropped_tokens,
            **self.failures.metrics(),
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a checkpoint, with the keys that the first release wrote."""
        groups = [list(map(to_json, group.episodes)) for group in self.groups]
        train_ids = []
        for group in self.train_groups:
            train_ids.append([episode.episode_id for episode in group.episodes])
        replayed = []
        for replays in self.replayed:
            replayed.append(
                [[to_json(replay.record), replay.generated_tokens, replay.prompt_tokens] for replay in replays.values()]
            )
        return {
            "groups": groups,
            "learned_from": train_ids,
            "replayed": replayed,
            "planned_episodes": self.planned_episodes,
            "rounds": self.rounds,
            "outages": to_stored(self.failures),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], assigner: CreditAssigner) -> RolloutBatch:
        """Inverse of `to_json`.

        Args:
            data: the stored values.
            assigner: the credit scheme. Checkpoints hold no requests for replays, so it is asked for them again.

        Raises:
            TrainingError: the scheme asks for other replays than the checkpoint holds.
        """
        groups = []
        episode_by_id = {}
        for stored_episodes in data["groups"]:
            episodes = tuple(map(from_json, stored_episodes))
            groups.append(EpisodeGroup(episodes[0].task, episodes))
            episode_by_id.update({episode.episode_id: episode for episode in episodes})
        train_groups = []
        for episode_ids in data["learned_from"]:
            episodes = tuple(episode_by_id[episode_id] for episode_id in episode_ids)
            train_groups.append(EpisodeGroup(episodes[0].task, episodes))
        replayed = []
        for group, stored_replays in zip(train_groups, data["replayed"], strict=True):
            played = [PlayedReplay(from_json(record), *tokens) for record, *tokens in stored_replays]
            stored_names = [replay.record.episode_id for replay in played]
            requested = request_replays(assigner, group)
            if list(map(str, requested)) == stored_names[: len(requested)]:
                # The replays of the second round are stored behind those of the first.
                first_round = zip(requested, (replay.record for replay in played), strict=False)
                requested += request_more_replays(assigner, group, dict(first_round))
            if list(map(str, requested)) != stored_names:
                raise TrainingError(
                    f"the checkpoint's waiting rollouts hold {len(stored_replays)} replays that credit scheme "
                    f"'{assigner.name}' does not ask for; resume with the config that wrote the checkpoint"
                )
            replayed.append(dict(zip(requested, played, strict=True)))
        failures = FailureStats(**by_field(FailureStats, data["outages"]))
        return cls(
            tuple(groups), tuple(train_groups), tuple(replayed), data["planned_episodes"], data["rounds"], failures
        )
