"""The rollouts of one step of training: its episodes, those that a gate has kept, and their counterfactuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from selfcest_agents.player import Player
from selfcest_agents.replay import PlayedReplay
from selfcest_agents.rollout import RolloutRequest, what_played
from selfcest_env.errors import TrainingError
from selfcest_env.record import EpisodeGroup, EpisodeRecord, from_json, to_json
from selfcest_env.seeding import stream_seed
from selfcest_env.stored import by_field, to_stored
from selfcest_training.credit import CreditAssigner, ask, ask_more
from selfcest_training.stages.base import PlannedGroup
from selfcest_training.stages.crediting import GroupReplays
from selfcest_training.stages.outages import NO_OUTAGES, Outages


def play_groups(
    player: Player,
    planned: Sequence[PlannedGroup],
    *,
    step: int,
    seed: int,
    temperature: float,
    weights: Mapping[str, float],
    after: Sequence[PlannedGroup] = (),
    tries: int = 1,
) -> tuple[list[EpisodeGroup], Outages]:
    """One group per plan, scored, and what could not be played; ids are `s<step>.g<group>.e<episode>`.

    Args:
        weights: of the reward's terms.
        after: what was planned for the same step before; no two episodes of a step share an id or a seed.
        tries: at a group as a whole, the same each time.
    """
    count = sum(plan.num_rollouts for plan in after)
    waiting: dict[int, list[RolloutRequest]] = {}
    for i, plan in enumerate(planned, len(after)):
        names = [f"s{step}.g{i}.e{k}" for k in range(plan.num_rollouts)]
        seeds = [stream_seed("episode", seed, step, count + k) for k in range(plan.num_rollouts)]
        waiting[i] = [RolloutRequest(name, plan.task, own, plan.limits) for name, own in zip(names, seeds, strict=True)]
        count += plan.num_rollouts
    groups: dict[int, EpisodeGroup] = {}
    outages = NO_OUTAGES
    for _ in range(tries if waiting else 0):
        requests = [request for of_group in waiting.values() for request in of_group]
        records, unplayed = what_played(partial(player.play, requests, temperature, weights))
        found = {record.episode_id: record for record in records}
        for i, of_group in list(waiting.items()):
            if all(request.episode_id in found for request in of_group):
                episodes = tuple(found.pop(request.episode_id) for request in of_group)
                groups[i] = EpisodeGroup(of_group[0].task, episodes)
                del waiting[i]
        given_up = sum(record.cost.generated_tokens for record in found.values())
        outages += Outages.of(unplayed) + Outages(tokens=given_up)
        if not waiting:
            break
    return [groups[i] for i in sorted(groups)], outages + Outages(len(waiting))


def without(groups: Sequence[EpisodeGroup], episodes: Sequence[EpisodeRecord]) -> list[EpisodeGroup]:
    """The groups less these episodes; one without any left is gone."""
    names = {episode.episode_id for episode in episodes}
    if not names:
        return list(groups)
    left = [(group.task, tuple(e for e in group.episodes if e.episode_id not in names)) for group in groups]
    return [EpisodeGroup(task, rest) for task, rest in left if rest]


@dataclass(frozen=True)
class Produced:
    """The rollouts of a step.

    Attributes:
        groups: all that were played, in order.
        learned_from: what a gate has made of them, of their episodes.
        replayed: the replays of each group that is learned from.
        planned_episodes: of the first round; what the step's loss denominators count, whatever was dropped or refilled.
        rounds: of rollouts.
        outages: what infrastructure failures took.
    """

    groups: tuple[EpisodeGroup, ...]
    learned_from: tuple[EpisodeGroup, ...]
    replayed: tuple[GroupReplays, ...]
    planned_episodes: int
    rounds: int
    outages: Outages = NO_OUTAGES

    @property
    def sampled_tokens(self) -> int:
        """Generated tokens of all episodes and replays, dropped, failed and given up ones too."""
        episodes = sum(episode.cost.generated_tokens for group in self.groups for episode in group.episodes)
        replays = sum(played.generated_tokens for of_group in self.replayed for played in of_group.values())
        return episodes + replays + self.outages.tokens

    def policy_lag(self, step: int) -> int:
        """Most steps that separate the weights of a turn from those that step `step` begins with."""
        turns = (turn for group in self.groups for episode in group.episodes for _, turn in episode.turns())
        return max((step - turn.generation.policy_version for turn in turns), default=0)

    def diagnostics(self) -> dict[str, float]:
        """What the gate and infrastructure failures cost."""
        kept = {episode.episode_id for group in self.learned_from for episode in group.episodes}
        dropped = [[e for e in group.episodes if e.episode_id not in kept] for group in self.groups]
        whole = sum(len(lost) == len(group.episodes) for lost, group in zip(dropped, self.groups, strict=True))
        tokens = sum(episode.cost.generated_tokens for lost in dropped for episode in lost)
        gate = {"gate/rounds": self.rounds, "gate/dropped_groups": whole, "gate/dropped_tokens": tokens}
        return {**gate, **self.outages.metrics()}

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "groups": [[to_json(episode) for episode in group.episodes] for group in self.groups],
            "learned_from": [[episode.episode_id for episode in group.episodes] for group in self.learned_from],
            "replayed": [
                [[to_json(played.record), played.generated_tokens, played.prompt_tokens] for played in group.values()]
                for group in self.replayed
            ],
            "planned_episodes": self.planned_episodes,
            "rounds": self.rounds,
            "outages": to_stored(self.outages),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], assigner: CreditAssigner) -> Produced:
        """Inverse of `to_json`; the scheme is asked for its replays again, and they are the same."""
        records = [tuple(from_json(episode) for episode in episodes) for episodes in data["groups"]]
        groups = tuple(EpisodeGroup(episodes[0].task, episodes) for episodes in records)
        found = {episode.episode_id: episode for episodes in records for episode in episodes}
        kept = [tuple(found[name] for name in names) for names in data["learned_from"]]
        learned_from = tuple(EpisodeGroup(episodes[0].task, episodes) for episodes in kept)
        replayed = []
        for group, stored in zip(learned_from, data["replayed"], strict=True):
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
        outages = Outages(**by_field(Outages, data["outages"]))
        return cls(groups, learned_from, tuple(replayed), data["planned_episodes"], data["rounds"], outages)
