"""The rollout plays requests with a policy and returns records. The game and the policy meet only here.

Episodes do not wait for each other: a parent continues as soon as its call has joined. The submitted requests depend on
the episodes and on the policy's answers, never on the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from selfcest_agents.policy import Policy, PolicyRequest
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import PromptVariant
from selfcest_env.record import EpisodeRecord, Generation, build_record
from selfcest_env.replay import replayed_episode
from selfcest_env.rules import Rules
from selfcest_env.seeding import turn_seed
from selfcest_env.types import AgentId, Limits, Task, TurnKey, Usage
from selfcest_env.views import observe

T = TypeVar("T")

MAX_IDLE_S = 3600.0  # seconds without an answer after which the rollout raises
_MAX_PAUSE_S = 0.05  # longest pause after a poll without an answer

Generations = Mapping[tuple[AgentId, int], Generation]
"""Generations by agent and turn."""


@dataclass(frozen=True)
class FailedEpisode:
    """An episode that could not be played to its end, or not be judged, because of an infrastructure failure.

    Attributes:
        episode_id: id of the episode or of the replay.
        cause: first failure of the episode.
        generated_tokens: number of tokens that were sampled for the episode.
    """

    episode_id: str
    cause: InfrastructureError
    generated_tokens: int


class UnplayedError(InfrastructureError):
    """Some episodes of a call failed. All other episodes of the call have been played to their end.

    Attributes:
        played: the value that the call would have returned, without the failed episodes.
        unplayed: the failed episodes.
    """

    played: Any
    unplayed: tuple[FailedEpisode, ...]

    @classmethod
    def of(cls, played: Any, unplayed: Sequence[FailedEpisode]) -> UnplayedError:
        first = unplayed[0]
        error = cls(f"episodes not played: {len(unplayed)}, the first is {first.episode_id}: {first.cause}")
        error.__cause__ = first.cause
        error.played = played
        error.unplayed = tuple(unplayed)
        return error


class Request(Protocol):
    """An episode to play: a `RolloutRequest` from its start, or a `replay.ReplayRequest` from a given past.

    Attributes:
        episode_id: id that is unique within a rollout.
        seed: key of all randomness of the episode.
    """

    @property
    def episode_id(self) -> str: ...

    @property
    def seed(self) -> int: ...

    def begin(self, rules: Rules) -> tuple[Kernel, Generations]:
        """Return the game to continue, and the generations of its turns so far."""
        ...

    def turn_seed(self, agent_id: AgentId, turn: int) -> int:
        """Return the seed of a turn that is still to be played."""
        ...


@dataclass(frozen=True)
class RolloutRequest:
    """A complete episode to play.

    Attributes:
        episode_id: id that is unique within a rollout.
        task: task of the root.
        seed: key of all randomness of the episode.
        limits: limits of this episode; `None` for those of the rules.
        prompt_variant: change of the protocol's prompts; `None` for the prompts as they are. A replay of the episode
            needs rules with the same prompt variant.

    Raises:
        ConfigError: the id has the form of a replay's id, as `e7/root.0=default/sample0`.
    """

    episode_id: str
    task: Task
    seed: int
    limits: Limits | None = None
    prompt_variant: PromptVariant | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if replayed_episode(self.episode_id) is not None:
            raise ConfigError(
                f"episode_id is {self.episode_id!r}, which has the form of a replay's id; expected an id that does not "
                "end in AGENT=KIND/sampleN"
            )

    def begin(self, rules: Rules) -> tuple[Kernel, Generations]:
        rules = rules if self.limits is None else rules.with_limits(self.limits)
        return Kernel(self.task, rules.with_variant(self.prompt_variant)), {}

    def turn_seed(self, agent_id: AgentId, turn: int) -> int:
        return turn_seed(self.seed, agent_id, turn)


@dataclass
class _Episode:
    """State of an episode during the rollout.

    Attributes:
        in_flight: agents whose turn was submitted to the policy and is not answered.
        failure: first infrastructure failure. After it no further turns are submitted.
    """

    request: Request
    kernel: Kernel
    generations: dict[tuple[AgentId, int], Generation]
    in_flight: set[AgentId] = field(default_factory=set)
    generated_tokens: int = 0
    failure: InfrastructureError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the game has ended, or has failed and has no turn in flight.

        A retry uses the same turn keys. It must not receive a late answer to a turn of the failed attempt.
        """
        return self.kernel.done if self.failure is None else not self.in_flight

    def open_turns(self) -> list[PolicyRequest]:
        """Return requests for all agents that can act and are not in flight, and mark these as in flight."""
        requests: list[PolicyRequest] = []
        if self.failure is not None:
            return requests
        for agent_id in self.kernel.ready():
            if agent_id in self.in_flight:
                continue
            observation = observe(self.kernel, agent_id)
            key = TurnKey(self.request.episode_id, agent_id, observation.turn)
            history = tuple(self.generations[agent_id, turn] for turn in range(observation.turn))
            seed = self.request.turn_seed(agent_id, observation.turn)
            requests.append(PolicyRequest(key, observation, history, seed))
            self.in_flight.add(agent_id)
        return requests

    def apply(self, key: TurnKey, generation: Generation | InfrastructureError) -> None:
        """Play a turn by the policy's answer, or note that it failed.

        Raises:
            PolicyError: the policy's prompt has another number of tokens than the ledger charged for it.
        """
        agent_id = key.agent_id
        self.in_flight.discard(agent_id)
        if isinstance(generation, InfrastructureError):
            self.failure = self.failure or generation
            return
        turn = self.kernel.agents[agent_id].turn
        if generation.prompt_ids and turn is not None and len(generation.prompt_ids) != turn.prompt_tokens:
            raise PolicyError(
                f"{key}: the policy encoded its prompt as {len(generation.prompt_ids)} tokens, the ledger charged "
                f"{turn.prompt_tokens}; the rules' token counter must be the policy's own codec"
            )
        generated_tokens = len(generation.token_ids) or generation.charged_tokens
        if generated_tokens is None:
            generated_tokens = self.kernel.rules.counter.count_text(generation.text)
        self.generated_tokens += generated_tokens
        if self.failure is None:
            self.generations[agent_id, key.turn] = generation
            self.kernel.play(agent_id, generation.text, Usage(generated_tokens, generation.finish_reason))

    def result(self) -> EpisodeRecord | FailedEpisode:
        request = self.request
        if self.failure is not None:
            return FailedEpisode(request.episode_id, self.failure, self.generated_tokens)
        return build_record(self.kernel, self.generations, episode_id=request.episode_id, seed=request.seed)


def rollout(
    requests: Sequence[Request],
    policy: Policy,
    rules: Rules,
    *,
    max_concurrent: int = 512,
) -> list[EpisodeRecord]:
    """Play all requests to their end.

    Args:
        requests: episodes to play. Complete episodes and replays can be mixed.
        policy: policy that generates every turn.
        rules: limits, protocol and token counter. The counter must be the policy's own codec.
        max_concurrent: maximum number of episodes that are played at the same time.

    Returns:
        Records in the order of the requests.

    Raises:
        ConfigError: `max_concurrent` is below 1.
        PolicyError: the policy answered a turn that was not submitted, or gave no answer for an hour.
        UnplayedError: an infrastructure failure ended some episodes. It is raised after all others have been played.
    """
    if max_concurrent < 1:
        raise ConfigError(f"max_concurrent is {max_concurrent}; expected a whole number >= 1")
    if len({request.episode_id for request in requests}) != len(requests):
        raise PolicyError("found an episode id twice in one rollout; episode ids must be unique")
    waiting = list(reversed(requests))  # a stack with the first request on top
    playing: dict[str, _Episode] = {}
    result_by_id: dict[str, EpisodeRecord | FailedEpisode] = {}
    answered_at = time.monotonic()
    pause = 0.0  # seconds
    while waiting or playing:
        opened: list[PolicyRequest] = []
        while waiting and len(playing) < max_concurrent:
            request = waiting.pop()
            kernel, generations = request.begin(rules)
            episode = _Episode(request, kernel, dict(generations))
            playing[request.episode_id] = episode
            opened += episode.open_turns()
        num_answers = _advance(policy, opened, playing)
        if num_answers or opened:
            answered_at, pause = time.monotonic(), 0.0
        elif time.monotonic() - answered_at > MAX_IDLE_S:
            raise PolicyError(f"the policy gave no answer in {MAX_IDLE_S:g} s while {len(playing)} episodes waited")
        else:
            # A policy that is busy elsewhere, such as on a server, may return from `poll` at once.
            pause = min(2 * pause + 0.001, _MAX_PAUSE_S)
            time.sleep(pause)
        for episode_id, episode in list(playing.items()):
            if episode.has_ended:
                result_by_id[episode_id] = episode.result()
                del playing[episode_id]
    results = [result_by_id[request.episode_id] for request in requests]
    records = [result for result in results if isinstance(result, EpisodeRecord)]
    failed = [result for result in results if isinstance(result, FailedEpisode)]
    return raise_failures(records, failed)


def raise_failures(played: T, unplayed: Sequence[FailedEpisode]) -> T:
    """Return the results of a call, or raise `UnplayedError` with them if some episodes failed."""
    if unplayed:
        raise UnplayedError.of(played, unplayed)
    return played


def collect_failures(play: Callable[[], T]) -> tuple[T, tuple[FailedEpisode, ...]]:
    """Return the results of a call and its failed episodes: the opposite of `raise_failures`."""
    try:
        return play(), ()
    except UnplayedError as error:
        return error.played, error.unplayed


def _advance(policy: Policy, requests: Sequence[PolicyRequest], playing: dict[str, _Episode]) -> int:
    """Submit requests, poll once, play the answers, and submit the turns they open; return the number of answers."""
    if requests:
        policy.submit(requests)
    answers = policy.poll()
    answered: dict[str, _Episode] = {}
    # Sorted by key, so that the next submission does not depend on the order in which answers arrived.
    for key, generation in sorted(answers, key=lambda answer: answer[0]):
        episode = playing.get(key.episode_id)
        if episode is None or key.agent_id not in episode.in_flight:
            raise PolicyError(f"the policy answered {key}, which is not in flight")
        episode.apply(key, generation)
        answered[key.episode_id] = episode
    # Once for each episode and not for each answer, since it looks at all agents that can act. The order is the same:
    # an agent has no open turns below it while it is in flight, so turns open in tree order.
    opened: list[PolicyRequest] = []
    for episode in answered.values():
        opened += episode.open_turns()
    if opened:
        policy.submit(opened)
    return len(answers)
