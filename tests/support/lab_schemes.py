"""Schemes of a user for the tests of the laboratory, classical mistakes and some that probe its judgement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.types import TurnKey
from selfcest_training.credit import (
    Coma,
    Credit,
    Difference,
    Grpo,
    Promise,
    ReplayRecords,
    Rloo,
    ToGo,
    broadcast,
    draw_index,
)


def changed(record: EpisodeRecord, **terms: float) -> EpisodeRecord:
    return replace(record, reward_terms={**(record.reward_terms or {}), **terms})


def by_name(group: EpisodeGroup) -> Mapping[str, EpisodeRecord]:
    return {episode.episode_id: episode for episode in group.episodes}


class LaterActionsKept:
    """A counterfactual in which the root's recorded answer stands, whatever it would have read instead."""

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        factual = by_name(group)
        kept = {
            replay: changed(record, payoff=(factual[replay.episode_id].reward_terms or {})["payoff"])
            for replay, record in replayed.items()
        }
        credit: Credit = super().assign(group, kept)  # type: ignore[misc]
        return credit


@dataclass(frozen=True)
class ComaLaterActionsKept(LaterActionsKept, Coma):
    name: ClassVar[str] = "coma_later_actions_kept"


@dataclass(frozen=True)
class DifferenceLaterActionsKept(LaterActionsKept, Difference):
    name: ClassVar[str] = "difference_later_actions_kept"


@dataclass(frozen=True)
class DifferenceSpendKept(Difference):
    """A counterfactual in which the removed clone's tokens are still paid for."""

    name: ClassVar[str] = "difference_spend_kept"

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        factual = by_name(group)
        return super().assign(
            group, {replay: self._paid(replay, record, factual) for replay, record in replayed.items()}
        )

    def _paid(self, replay: Replay, record: EpisodeRecord, factual: Mapping[str, EpisodeRecord]) -> EpisodeRecord:
        episode = factual[replay.episode_id]
        price = (episode.reward_terms or {})["token_cost"] / episode.cost.total_tokens
        clone: AgentRecord = episode.by_id[replay.interventions[0][0]]
        spend = price * (clone.prompt_tokens + clone.generated_tokens)
        return changed(record, token_cost=(record.reward_terms or {})["token_cost"] + spend)


@dataclass(frozen=True)
class Centred(Grpo):
    """`grpo` without the division: half of `rloo` in a group of two."""

    name: ClassVar[str] = "centred"
    promise: ClassVar[Promise] = Promise.UNBIASED_UP_TO_SCALE
    scale: bool = False


@dataclass(frozen=True)
class Backwards(Rloo):
    """Minus `rloo`."""

    name: ClassVar[str] = "backwards"
    promise: ClassVar[Promise] = Promise.UNBIASED_UP_TO_SCALE

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = super().assign(group, replayed).advantage
        return Credit({key: -value for key, value in advantage.items() if isinstance(value, float)})


@dataclass(frozen=True)
class Entangled(Coma):
    """An unbiased `rloo` whose baseline is the others' replays, where there are any."""

    name: ClassVar[str] = "entangled"

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = dict(Rloo().assign(group, replayed).advantage)
        for episode in group.episodes:
            others = [r.team_return for name, r in replayed.items() if name.episode_id != episode.episode_id]
            if others:
                mean = sum(others) / len(others)
                advantage.update((key, episode.team_return - mean) for key, _ in episode.turns())
        return Credit(advantage)


@dataclass(frozen=True)
class OwnCoins(Difference):
    """`difference` that draws whom it replays with a generator of its own."""

    name: ClassVar[str] = "own_coins"

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        for agent in episode.agents[1:]:
            if np.random.default_rng((episode.seed, *agent.agent_id.path)).random() < self.max_share:
                yield TurnKey(episode.episode_id, agent.agent_id, 0)


@dataclass(frozen=True)
class OthersByValue(Rloo):
    """Leave-one-out that takes every equal return for the episode's own; right in groups of two."""

    name: ClassVar[str] = "others_by_value"

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        returns = [episode.team_return for episode in group.episodes]
        others = [[value for value in returns if value != own] or [own] for own in returns]
        means = [sum(values) / len(values) for values in others]
        return Credit(broadcast(group, [own - mean for own, mean in zip(returns, means, strict=True)]))


@dataclass(frozen=True)
class GoodOthers(Rloo):
    """A baseline of those others alone that are no worse than the worst of them; the only one in groups of two."""

    name: ClassVar[str] = "good_others"

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        returns = [episode.team_return for episode in group.episodes]
        advantages = []
        for k, own in enumerate(returns):
            others = [value for j, value in enumerate(returns) if j != k]
            good = [value for value in others if value >= own] or others
            advantages.append(own - sum(good) / len(good))
        return Credit(broadcast(group, advantages))


@dataclass(frozen=True)
class OneReplayed(Difference):
    """One clone of every episode is replayed, whichever: who causes more clones lowers its own chance."""

    name: ClassVar[str] = "one_replayed"

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        clones = [agent.agent_id for agent in episode.agents[1:] if agent.turns]
        if clones:
            chosen = clones[draw_index((1 / len(clones),) * len(clones), "the one", episode)]
            yield TurnKey(episode.episode_id, chosen, 0)


@dataclass(frozen=True)
class OneReplayedByOwnDraw(Difference):
    """`one_replayed` with a generator of its own, which the laboratory can only sample."""

    name: ClassVar[str] = "one_replayed_by_own_draw"

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        clones = [agent.agent_id for agent in episode.agents[1:] if agent.turns]
        if clones:
            chosen = clones[int(np.random.default_rng(episode.seed).integers(len(clones)))]
            yield TurnKey(episode.episode_id, chosen, 0)


@dataclass(frozen=True)
class MeanWithinClass(Rloo):
    """A baseline of the other episodes of the same class, or of all others where the class has no other.

    The class is an event that the episode's own agents decide. In a group of two this is leave-one-out.
    """

    name: ClassVar[str] = "mean_within_class"

    def class_of(self, episode: EpisodeRecord) -> object:
        """Good episodes are those in which no clone failed."""
        return not any(agent.failed for agent in episode.agents[1:])

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantages = []
        for episode in group.episodes:
            others = [other for other in group.episodes if other is not episode]
            same_class = [other for other in others if self.class_of(other) == self.class_of(episode)]
            returns = [other.team_return for other in same_class or others]
            advantages.append(episode.team_return - sum(returns) / len(returns))
        return Credit(broadcast(group, advantages))


@dataclass(frozen=True)
class MeanWithinSize(MeanWithinClass):
    """The class is the number of agents."""

    name: ClassVar[str] = "mean_within_size"

    def class_of(self, episode: EpisodeRecord) -> object:
        return len(episode.agents)


@dataclass(frozen=True)
class MeanWithinDepth(MeanWithinClass):
    """The class is the depth of the tree."""

    name: ClassVar[str] = "mean_within_depth"

    def class_of(self, episode: EpisodeRecord) -> object:
        return max(agent.depth for agent in episode.agents)


@dataclass(frozen=True)
class MeanWithinTries(MeanWithinClass):
    """The class is whether some clone's first turn was malformed."""

    name: ClassVar[str] = "mean_within_tries"

    def class_of(self, episode: EpisodeRecord) -> object:
        return any(agent.turns[0].facts.outcome == "malformed" for agent in episode.agents[1:])


@dataclass(frozen=True)
class OwnRewardsAlone(ToGo):
    """Reward to go that ends with the agent: what its reply costs its ancestors is left out."""

    name: ClassVar[str] = "own_rewards_alone"

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = dict(super().assign(group, replayed).advantage)
        after = [
            {
                agent.agent_id: sum(
                    value for key, value in e.returns_by_turn.items() if not key.agent_id.depth and key.turn > 0
                )
                for agent in e.agents[1:]
            }
            for e in group.episodes
        ]
        for k, episode in enumerate(group.episodes):
            for key in (key for key, _ in episode.turns() if key.agent_id.depth):
                others = [found[key.agent_id] for j, found in enumerate(after) if j != k and key.agent_id in found]
                if others:
                    own = advantage[key]
                    assert isinstance(own, float)
                    advantage[key] = own - after[k][key.agent_id] + sum(others) / len(others)
        return Credit(advantage)


@dataclass(frozen=True)
class FlippedBelow(Rloo):
    """The sign is lost three levels down."""

    name: ClassVar[str] = "flipped_below"

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        advantage = super().assign(group, replayed).advantage
        return Credit({key: -value if key.agent_id.depth == 3 else value for key, value in advantage.items()})  # type: ignore[operator]
