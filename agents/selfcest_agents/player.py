"""A model at the table: limits, reward, language and engine, playing requests into scored records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from selfcest_agents.engine import Engine
from selfcest_agents.language import Language
from selfcest_agents.policy import EnginePolicy, SamplingConfig
from selfcest_agents.replay import PlayedReplay, play_replays
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward
from selfcest_env.types import Limits, Task


@dataclass
class Player:
    """Plays episodes with a model and scores them."""

    limits: Limits
    reward: Reward
    language: Language
    engine: Engine

    def __post_init__(self) -> None:
        self.rules = self.language.rules(self.limits)

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        on_finish: Callable[[EpisodeRecord], None] | None = None,
    ) -> list[EpisodeRecord]:
        """Scored records, in the order of the requests."""
        policy = EnginePolicy(self.engine, self.language.codec, SamplingConfig(temperature))
        records = rollout(requests, policy, self.rules, on_finish=on_finish)
        return [self.reward.score(record) for record in records]

    def play_replays(
        self, factual: Iterable[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        """Counterfactuals of episodes that this player played, all in one rollout, scored by the same reward."""
        policy = EnginePolicy(self.engine, self.language.codec, SamplingConfig(temperature))
        played = play_replays(factual, replays, policy, self.rules)
        return {replay: replace(found, record=self.reward.score(found.record)) for replay, found in played.items()}


def group_requests(tasks: Sequence[Task], group_size: int, name: str, seeds: Sequence[int]) -> list[RolloutRequest]:
    """`group_size` episodes per task, each with its own seed; ids are `name/g<task>e<episode>`."""
    return [
        RolloutRequest(f"{name}.g{i}.e{k}", task, seeds[i * group_size + k])
        for i, task in enumerate(tasks)
        for k in range(group_size)
    ]
