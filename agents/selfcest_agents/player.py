"""Who plays: requests in, records out. The trainer, studies, `solve` and remote workers know nothing else."""

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
from selfcest_agents.rollout import FailedEpisode, RolloutRequest, all_of, collect_failures, rollout
from selfcest_agents.samplers import Sampler, SamplerByRole, WeightSyncTarget
from selfcest_env.errors import InfrastructureError
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward
from selfcest_env.rules import Rules
from selfcest_env.text.markers import Markers
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
            UnplayedError: a server's fault left some unplayed or unjudged; it holds the others.
        """
        ...

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        """Counterfactuals of episodes that this player played; each is scored with its episode's weights.

        Raises `UnplayedError` as `play`.
        """
        ...

    def close(self) -> None:
        """End what holds more than this process's memory; nothing is played after."""
        ...


class TrainedPlayer(Player, Protocol):
    """A player of the policy that is being trained.

    Attributes:
        language: of its model.
        limits: of requests without limits of their own.
        sampler: is told the weights to play with.
    """

    @property
    def language(self) -> Language: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def sampler(self) -> WeightSyncTarget: ...

    def unjudged(self) -> Player:
        """The same, without a reward: its records stay unscored."""
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
        played = policy if wrap is None else wrap(policy, self.codec)
        records, unplayed = collect_failures(partial(rollout, requests, played, rules))
        scored, unjudged = self._scored([(record, weights, record.cost.generated_tokens) for record in records])
        return all_of(scored, [*unplayed, *unjudged])

    def play_replays(
        self, factual: Sequence[EpisodeRecord], replays: Sequence[Replay], temperature: float
    ) -> dict[Replay, PlayedReplay]:
        rules = self.rules(factual[0].limits if factual else self.limits)
        weights = {record.episode_id: record.weights for record in factual}
        found, unplayed = collect_failures(partial(play_replays, factual, replays, self.policy(temperature), rules))
        items = [(play.record, weights[one.episode_id], play.generated_tokens) for one, play in found.items()]
        scored, unjudged = self._scored(items)
        records = {record.episode_id: record for record in scored}
        judged = {replay: play for replay, play in found.items() if str(replay) in records}
        return all_of(
            {replay: replace(play, record=records[str(replay)]) for replay, play in judged.items()},
            [*unplayed, *unjudged],
        )

    def _scored(
        self, played: Sequence[tuple[EpisodeRecord, Mapping[str, float] | None, int]]
    ) -> tuple[list[EpisodeRecord], list[FailedEpisode]]:
        """Of records with their weights and prices those that could be judged, scored, and the others."""
        if self.reward is None:
            return [record for record, *_ in played], []
        self.reward.prepare([record for record, *_ in played])
        scored, unjudged = [], []
        for record, weights, tokens in played:
            try:
                scored.append(self.reward.score(record, weights))
            except InfrastructureError as error:
                unjudged.append(FailedEpisode(record.episode_id, error, tokens))
        return scored, unjudged


@dataclass(frozen=True)
class ModelPlayer(LocalPlayer):
    """A model, token by token, with the weights that its sampler was given last, or one model per role."""

    language: Language
    sampler: Sampler | SamplerByRole

    @property
    def codec(self) -> Codec:
        return self.language.codec

    def rules(self, limits: Limits) -> Rules:
        return self.language.rules(limits)

    def unjudged(self) -> ModelPlayer:
        return replace(self, reward=None)

    def policy(self, temperature: float) -> Policy:
        if isinstance(self.sampler, SamplerByRole):
            return RolePolicy({role: self._policy_of(one, temperature) for role, one in self.sampler.by_role.items()})
        return self._policy_of(self.sampler, temperature)

    def _policy_of(self, sampler: Sampler, temperature: float) -> Policy:
        return EnginePolicy(sampler.engine, self.codec, SamplingConfig(temperature))

    def close(self) -> None:
        self.sampler.close()


@dataclass(frozen=True)
class ServerPlayer(LocalPlayer):
    """An OpenAI-compatible server of text, with a client per temperature; its records have no token ids.

    Attributes:
        server: where it is.
        rules_of: the rules for limits; their counter prices what it is sent.
        markers: of the model that it serves.
    """

    server: ServerConfig
    rules_of: Callable[[Limits], Rules]
    markers: Markers = Markers()
    _policies: dict[float, OpenAIPolicy] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rules(self, limits: Limits) -> Rules:
        return self.rules_of(limits)

    def policy(self, temperature: float) -> Policy:
        if temperature not in self._policies:
            self._policies[temperature] = OpenAIPolicy(self.server, SamplingConfig(temperature), self.markers)
        return self._policies[temperature]

    def close(self) -> None:
        for policy in self._policies.values():
            policy.close()
