"""Who plays: requests in, scored records out. The trainer, studies, `solve` and remote workers know nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from selfcest_agents.engine import Engine
from selfcest_agents.language import Language
from selfcest_agents.policy import EnginePolicy, SamplingConfig
from selfcest_agents.replay import PlayedReplay, play_replays
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward
from selfcest_env.types import Limits

OnFinish = Callable[[EpisodeRecord], None]


class Player(Protocol):
    """Everything that crosses it can be pickled: requests, replays and records."""

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        weights: Mapping[str, float] | None = None,
        on_finish: OnFinish | None = None,
    ) -> list[EpisodeRecord]:
        """Play episodes to their end.

        Args:
            requests: with different ids.
            temperature: of sampling; 0 is greedy.
            weights: of the reward's terms, see `Reward.score`.
            on_finish: called with each record, not yet scored, as its episode ends.

        Returns:
            Scored records, in the order of the requests.
        """
        ...

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        """Counterfactuals of scored episodes that this player played; each is scored with its episode's weights."""
        ...


@dataclass
class ModelPlayer:
    """A model at the table, in this process."""

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
        weights: Mapping[str, float] | None = None,
        on_finish: OnFinish | None = None,
    ) -> list[EpisodeRecord]:
        records = rollout(requests, self._policy(temperature), self.rules, on_finish=on_finish)
        return [self.reward.score(record, weights) for record in records]

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        played = play_replays(factual, replays, self._policy(temperature), self.rules)
        weights = {record.episode_id: record.weights for record in factual}
        return {
            replay: replace(found, record=self.reward.score(found.record, weights[replay.episode_id]))
            for replay, found in played.items()
        }

    def _policy(self, temperature: float) -> EnginePolicy:
        return EnginePolicy(self.engine, self.language.codec, SamplingConfig(temperature))
