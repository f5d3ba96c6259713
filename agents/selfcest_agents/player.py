"""Who plays: requests in, records out. The trainer, studies, `solve` and remote workers know nothing else."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from selfcest_agents.codec import Codec
from selfcest_agents.language import Language
from selfcest_agents.openai_client import ServerConfig
from selfcest_agents.openai_engine import OpenAIPolicy
from selfcest_agents.policy import EnginePolicy, Policy, SamplingConfig
from selfcest_agents.replay import PlayedReplay, play_replays
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.samplers import Sampler
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward
from selfcest_env.rules import Rules
from selfcest_env.types import Limits

# A policy around the player's, which may encode its own turns by the player's codec (`None`: it plays by text).
Wrapper = Callable[[Policy, Codec | None], Policy]


class Player(Protocol):
    """Everything that crosses it can be pickled: requests, wrappers, replays and records."""

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        weights: Mapping[str, float] | None = None,
        wrap: Wrapper | None = None,
    ) -> list[EpisodeRecord]:
        """Play episodes to their end.

        Args:
            requests: with different ids.
            temperature: of sampling; 0 is greedy.
            weights: of the reward's terms, see `Reward.score`.
            wrap: makes of the player's policy the one that plays, as `partial(ScriptedRoot, script=...)`.

        Returns:
            Records in the order of the requests, scored if the player has a reward.

        Raises:
            ConfigError: by a request's limits its contexts could outgrow the model.
        """
        ...

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        """Counterfactuals of episodes that this player played; each is scored with its episode's weights."""
        ...

    def close(self) -> None:
        """End what holds more than this process's memory; nothing is played after."""
        ...


@dataclass(frozen=True, kw_only=True)
class LocalPlayer(Player):
    """Plays in this process, with the policy that a subclass has for a temperature.

    Attributes:
        limits: of requests without limits of their own.
        reward: scores every record; `None`: they stay unscored.
    """

    limits: Limits = Limits()
    reward: Reward | None = None

    @property
    def codec(self) -> Codec | None:
        """Messages to the policy's ids; `None` for policies of text."""
        return None

    @abstractmethod
    def rules(self, limits: Limits) -> Rules:
        """The rules of an episode. Raises `ConfigError` if its contexts could outgrow the model."""

    @abstractmethod
    def policy(self, temperature: float) -> Policy: ...

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        weights: Mapping[str, float] | None = None,
        wrap: Wrapper | None = None,
    ) -> list[EpisodeRecord]:
        if not requests:
            return []
        policy = self.policy(temperature)
        limits = [request.limits or self.limits for request in requests]
        requests = [replace(request, limits=own) for request, own in zip(requests, limits, strict=True)]
        rules, *_ = [self.rules(own) for own in dict.fromkeys(limits)]  # all are checked
        records = rollout(requests, policy if wrap is None else wrap(policy, self.codec), rules)
        return self._scored(records, [weights] * len(records))

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        rules = self.rules(factual[0].limits if factual else self.limits)
        weights = {record.episode_id: record.weights for record in factual}
        found = play_replays(factual, replays, self.policy(temperature), rules)
        records = self._scored([play.record for play in found.values()], [weights[one.episode_id] for one in found])
        pairs = zip(found.items(), records, strict=True)
        return {replay: replace(play, record=record) for (replay, play), record in pairs}

    def _scored(
        self, records: list[EpisodeRecord], weights: Sequence[Mapping[str, float] | None]
    ) -> list[EpisodeRecord]:
        if self.reward is None:
            return records
        self.reward.prepare(records)
        return [self.reward.score(record, own) for record, own in zip(records, weights, strict=True)]


@dataclass(frozen=True)
class ModelPlayer(LocalPlayer):
    """A model, token by token, with the weights that its sampler was given last."""

    language: Language
    sampler: Sampler

    @property
    def codec(self) -> Codec:
        return self.language.codec

    def rules(self, limits: Limits) -> Rules:
        return self.language.rules(limits)

    def policy(self, temperature: float) -> Policy:
        return EnginePolicy(self.sampler.engine, self.codec, SamplingConfig(temperature))

    def close(self) -> None:
        self.sampler.close()


@dataclass(frozen=True)
class ServerPlayer(LocalPlayer):
    """An OpenAI-compatible server of text, with a client per temperature; its records have no token ids.

    Attributes:
        server: where it is.
        rules_of: the rules for limits; their counter prices what it is sent.
    """

    server: ServerConfig
    rules_of: Callable[[Limits], Rules]
    _policies: dict[float, OpenAIPolicy] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rules(self, limits: Limits) -> Rules:
        return self.rules_of(limits)

    def policy(self, temperature: float) -> Policy:
        if temperature not in self._policies:
            self._policies[temperature] = OpenAIPolicy(self.server, SamplingConfig(temperature))
        return self._policies[temperature]

    def close(self) -> None:
        for policy in self._policies.values():
            policy.close()
