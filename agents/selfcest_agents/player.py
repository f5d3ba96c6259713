"""Players turn requests into records. The trainer, studies, `solve` and remote workers use only this interface."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from selfcest_agents.codec import Codec
from selfcest_agents.language import Language
from selfcest_agents.openai_client import ServerConfig
from selfcest_agents.openai_engine import OpenAIPolicy
from selfcest_agents.policy import EnginePolicy, Policy, RolePolicy, SamplingConfig
from selfcest_agents.replay import PlayedReplay, play_replays
from selfcest_agents.rollout import FailedEpisode, RolloutRequest, collect_failures, raise_failures, rollout
from selfcest_agents.samplers import Sampler, SamplerByRole, WeightSyncTarget
from selfcest_env.errors import InfrastructureError
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward
from selfcest_env.rules import Rules
from selfcest_env.text.markers import Markers
from selfcest_env.types import Limits

PolicyWrapper = Callable[[Policy, Codec | None], Policy]
"""Wraps the policy of a player. The second argument is its codec, or `None` for a policy of texts."""


class Player(Protocol):
    """Plays episodes and replays. All arguments and results of its methods can be pickled."""

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        weights: Mapping[str, float] | None = None,
        wrap: PolicyWrapper | None = None,
    ) -> list[EpisodeRecord]:
        """Play episodes to their end.

        Args:
            requests: episodes to play, with unique ids.
            temperature: temperature of sampling; 0 is greedy.
            weights: weights of the reward's terms, see `Reward.score`.
            wrap: wrapper of the player's policy, as `partial(ScriptedRoot, script=...)`; `None` for the policy itself.

        Returns:
            Records in the order of the requests, scored if the player has a reward.

        Raises:
            ConfigError: the limits of a request allow contexts that are too long for the model.
            UnplayedError: infrastructure failures left some episodes unplayed or unjudged. It holds the other records.
        """
        ...

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        """Play counterfactual replays of episodes of this player, and score each with the weights of its episode.

        Raises:
            UnplayedError: infrastructure failures left some replays unplayed or unjudged. It holds the other results.
        """
        ...

    def close(self) -> None:
        """Release processes and connections. Nothing can be played afterwards."""
        ...


class TrainedPlayer(Player, Protocol):
    """A player with the policy that is trained.

    Attributes:
        language: language of its model.
        limits: limits of requests that have none.
        sampler: receives the weights of every update.
    """

    @property
    def language(self) -> Language: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def sampler(self) -> WeightSyncTarget: ...

    def without_reward(self) -> Player:
        """Return the same player without a reward, whose records are not scored."""
        ...


@dataclass(frozen=True, kw_only=True)
class LocalPlayer(Player):
    """Base class of players that play in this process. A subclass makes the policy for a temperature.

    Attributes:
        limits: limits of requests that have none.
        reward: scores every record; `None` leaves records unscored.
    """

    limits: Limits = Limits()
    reward: Reward | None = None

    @property
    def codec(self) -> Codec | None:
        """The codec of the policy; `None` for a policy of texts."""
        return None

    @abstractmethod
    def rules(self, limits: Limits) -> Rules:
        """Return the rules of an episode. Raises `ConfigError` if its contexts could be too long for the model."""

    @abstractmethod
    def policy(self, temperature: float) -> Policy:
        """Return the policy that samples at this temperature."""

    def play(
        self,
        requests: Sequence[RolloutRequest],
        temperature: float,
        weights: Mapping[str, float] | None = None,
        wrap: PolicyWrapper | None = None,
    ) -> list[EpisodeRecord]:
        if not requests:
            return []
        policy = self.policy(temperature)
        requests = [replace(request, limits=request.limits or self.limits) for request in requests]
        # Each request replaces the limits of the rules by its own. All limits are still made into rules, because this
        # checks them.
        distinct_limits = dict.fromkeys(request.limits or self.limits for request in requests)
        distinct_rules = [self.rules(limits) for limits in distinct_limits]
        if wrap is not None:
            policy = wrap(policy, self.codec)
        records, unplayed = collect_failures(partial(rollout, requests, policy, distinct_rules[0]))
        scored, unjudged = self._score([(record, weights, record.cost.generated_tokens) for record in records])
        return raise_failures(scored, [*unplayed, *unjudged])

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        # Each replay replaces the limits of the rules by those of its episode.
        rules = self.rules(factual[0].limits if factual else self.limits)
        weights_by_episode = {record.episode_id: record.weights for record in factual}
        played, unplayed = collect_failures(partial(play_replays, factual, replays, self.policy(temperature), rules))
        items = []
        for replay, result in played.items():
            items.append((result.record, weights_by_episode[replay.episode_id], result.generated_tokens))
        scored, unjudged = self._score(items)
        record_by_id = {record.episode_id: record for record in scored}
        judged: dict[Replay, PlayedReplay] = {}
        for replay, result in played.items():
            if str(replay) in record_by_id:
                judged[replay] = replace(result, record=record_by_id[str(replay)])
        return raise_failures(judged, [*unplayed, *unjudged])

    def _score(
        self, items: Sequence[tuple[EpisodeRecord, Mapping[str, float] | None, int]]
    ) -> tuple[list[EpisodeRecord], list[FailedEpisode]]:
        """Score records.

        Args:
            items: each record with the weights of the reward's terms and the number of tokens sampled for it.

        Returns:
            The scored records, and those for which the reward had an infrastructure failure.
        """
        records = [record for record, *_ in items]
        if self.reward is None:
            return records, []
        self.reward.prepare(records)
        scored: list[EpisodeRecord] = []
        unjudged: list[FailedEpisode] = []
        for record, weights, generated_tokens in items:
            try:
                scored.append(self.reward.score(record, weights))
            except InfrastructureError as error:
                unjudged.append(FailedEpisode(record.episode_id, error, generated_tokens))
        return scored, unjudged


@dataclass(frozen=True)
class ModelPlayer(LocalPlayer):
    """A player with an engine, which samples from the latest weights of the sampler, or of one sampler per role."""

    language: Language
    sampler: Sampler | SamplerByRole

    @property
    def codec(self) -> Codec:
        return self.language.codec

    def rules(self, limits: Limits) -> Rules:
        return self.language.rules(limits)

    def without_reward(self) -> ModelPlayer:
        return replace(self, reward=None)

    def policy(self, temperature: float) -> Policy:
        if isinstance(self.sampler, SamplerByRole):
            return RolePolicy(
                {role: self._make_policy(sampler, temperature) for role, sampler in self.sampler.by_role.items()}
            )
        return self._make_policy(self.sampler, temperature)

    def _make_policy(self, sampler: Sampler, temperature: float) -> Policy:
        return EnginePolicy(sampler.engine, self.codec, SamplingConfig(temperature))

    def close(self) -> None:
        self.sampler.close()


@dataclass(frozen=True)
class ServerPlayer(LocalPlayer):
    """A player with an OpenAI-compatible server, and a client per temperature. Its records have no token ids.

    Attributes:
        server: address of the server, and limits of the requests.
        make_rules: makes the rules for limits. Their counter prices the prompts.
        markers: special tokens of the served model.
    """

    server: ServerConfig
    make_rules: Callable[[Limits], Rules]
    markers: Markers = Markers()
    _policies: dict[float, OpenAIPolicy] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rules(self, limits: Limits) -> Rules:
        return self.make_rules(limits)

    def policy(self, temperature: float) -> Policy:
        if temperature not in self._policies:
            self._policies[temperature] = OpenAIPolicy(self.server, SamplingConfig(temperature), self.markers)
        return self._policies[temperature]

    def close(self) -> None:
        for policy in self._policies.values():
            policy.close()
