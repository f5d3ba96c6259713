"""Requests and a policy to records: the only place where game and policy meet.

There is no barrier between episodes: when a call has joined, its parent goes on at once, and nobody waits for the
slowest episode. What is submitted depends on the requests and on what the policy answered, never on the clock.
"""

from __future__ import annotations

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

MAX_IDLE_POLLS = 1_000_000  # a policy that answers nothing for so long is taken for broken


Generations = Mapping[tuple[AgentId, int], Generation]


@dataclass(frozen=True)
class FailedEpisode:
    """An episode that could not be played to its end, or judged, for a fault that was nobody's answer.

    Attributes:
        cause: the first such fault.
        generated_tokens: what was sampled for it all the same.
    """

    episode_id: str
    cause: InfrastructureError
    generated_tokens: int


class UnplayedError(InfrastructureError):
    """Some of what was to be played was not. Whatever else was asked for with it has been played to its end.

    Attributes:
        played: what the call would have returned, less what was not played.
        unplayed: what was not.
    """

    played: Any
    unplayed: tuple[FailedEpisode, ...]

    @classmethod
    def of(cls, played: Any, unplayed: Sequence[FailedEpisode]) -> UnplayedError:
        first = unplayed[0]
        error = cls(f"episodes not played: {len(unplayed)}, the first is {first.episode_id}: {first.cause}")
        error.played, error.unplayed = played, tuple(unplayed)
        return error


class Request(Protocol):
    """An episode to play: a `RolloutRequest` from its start, a `replay.ReplayRequest` from another past.

    `episode_id` is unique within a rollout; `seed` keys all randomness.
    """

    @property
    def episode_id(self) -> str: ...

    @property
    def seed(self) -> int: ...

    def begin(self, rules: Rules) -> tuple[Kernel, Generations]:
        """The game to play on, and the generations of the turns that have been played in it."""
        ...

    def turn_seed(self, agent_id: AgentId, turn: int) -> int:
        """The random stream of a turn still to be played."""
        ...


@dataclass(frozen=True)
class RolloutRequest:
    """A whole episode, under limits of its own where they differ from those of the rules it is played by.

    `prompt_variant` is what it says around their protocol. A replay of such an episode needs rules with that
    prompt variant; others are refused.

    Raises `ConfigError` for an id of the form that names a replay, as `e7/root.0=default/sample0` does.
    """

    episode_id: str
    task: Task
    seed: int
    limits: Limits | None = None
    prompt_variant: PromptVariant | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if replayed_episode(self.episode_id) is not None:
            raise ConfigError(
                f"episode_id is {self.episode_id!r}, which names a replay; expected one that does not end in "
                "AGENT=KIND/sampleN"
            )

    def begin(self, rules: Rules) -> tuple[Kernel, Generations]:
        rules = rules if self.limits is None else rules.with_limits(self.limits)
        return Kernel(self.task, rules.with_variant(self.prompt_variant)), {}

    def turn_seed(self, agent_id: AgentId, turn: int) -> int:
        return turn_seed(self.seed, agent_id, turn)


@dataclass
class _Episode:
    """An episode in play."""

    request: Request
    kernel: Kernel
    generations: dict[tuple[AgentId, int], Generation]
    in_flight: set[AgentId] = field(default_factory=set)
    generated_tokens: int = 0
    failure: InfrastructureError | None = None

    @property
    def over(self) -> bool:
        """Nothing of it is under way: who plays on, or plays it again under its name, gets no answer of its past."""
        return self.kernel.done if self.failure is None else not self.in_flight

    def asks(self) -> list[PolicyRequest]:
        """Requests for the agents that may act and have not been asked."""
        asked: list[PolicyRequest] = []
        for agent_id in self.kernel.ready() if self.failure is None else ():
            if agent_id in self.in_flight:
                continue
            observation = observe(self.kernel, agent_id)
            key = TurnKey(self.request.episode_id, agent_id, observation.turn)
            history = tuple(self.generations[agent_id, turn] for turn in range(observation.turn))
            seed = self.request.turn_seed(agent_id, observation.turn)
            asked.append(PolicyRequest(key, observation, history, seed))
            self.in_flight.add(agent_id)
        return asked

    def apply(self, key: TurnKey, generation: Generation | InfrastructureError) -> None:
        """Play what the policy answered. The price of an encoded block must be the price the ledger charged."""
        kernel, agent_id = self.kernel, key.agent_id
        self.in_flight.discard(agent_id)
        if isinstance(generation, InfrastructureError):
            self.failure = self.failure or generation
            return
        turn = kernel.agents[agent_id].turn
        if generation.prompt_ids and turn is not None and len(generation.prompt_ids) != turn.prompt_tokens:
            raise PolicyError(
                f"{key}: the policy encoded its prompt as {len(generation.prompt_ids)} tokens, the ledger charged "
                f"{turn.prompt_tokens}; the rules' token counter must be the policy's own codec"
            )
        reported = len(generation.token_ids) or generation.charged_tokens
        used = kernel.rules.counter.count_text(generation.text) if reported is None else reported
        self.generated_tokens += used
        if self.failure is None:
            self.generations[agent_id, key.turn] = generation
            kernel.play(agent_id, generation.text, Usage(used, generation.finish_reason))

    def found(self) -> EpisodeRecord | FailedEpisode:
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
    """Play every request to its end.

    Args:
        requests: the episodes; whole ones and replays may be mixed.
        policy: who decides; one decision per turn.
        rules: limits, protocol and the policy's own token counter.
        max_concurrent: episodes in play at once; a finished one makes room for the next.

    Returns:
        Records in the order of the requests.

    Raises:
        PolicyError: the policy answered something it was not asked, or stopped answering.
        UnplayedError: an infrastructure failure ended some; raised when all others have been played.
    """
    if len({request.episode_id for request in requests}) != len(requests):
        raise PolicyError("episode ids of one rollout must be unique")
    waiting = list(reversed(requests))
    playing: dict[str, _Episode] = {}
    found: dict[str, EpisodeRecord | FailedEpisode] = {}
    idle_polls = 0
    while waiting or playing:
        asks: list[PolicyRequest] = []
        while waiting and len(playing) < max_concurrent:
            request = waiting.pop()
            kernel, generations = request.begin(rules)
            playing[request.episode_id] = _Episode(request, kernel, dict(generations))
            asks += playing[request.episode_id].asks()
        answers = _advance(policy, asks, playing)
        idle_polls = 0 if answers or asks else idle_polls + 1
        if idle_polls > MAX_IDLE_POLLS:
            raise PolicyError(f"the policy gave no answer in {MAX_IDLE_POLLS} polls while {len(playing)} episodes wait")
        for episode_id in [name for name, episode in playing.items() if episode.over]:
            found[episode_id] = playing.pop(episode_id).found()
    ended = [found[request.episode_id] for request in requests]
    records = [one for one in ended if isinstance(one, EpisodeRecord)]
    return all_of(records, [one for one in ended if isinstance(one, FailedEpisode)])


def all_of(played: T, unplayed: Sequence[FailedEpisode]) -> T:
    """What was played. Raises `UnplayedError` if something was not."""
    if unplayed:
        raise UnplayedError.of(played, unplayed)
    return played


def collect_failures(play: Callable[[], T]) -> tuple[T, tuple[FailedEpisode, ...]]:
    """What a call returned, or would have returned, and what it could not play."""
    try:
        return play(), ()
    except UnplayedError as error:
        return error.played, error.unplayed


def _advance(policy: Policy, asks: Sequence[PolicyRequest], playing: dict[str, _Episode]) -> int:
    """Submit, poll once, play the answers, and ask at once for the turns they opened; returns how many came."""
    if asks:
        policy.submit(asks)
    answers = policy.poll()
    opened: list[PolicyRequest] = []
    # In the order of keys, so that the next submission does not depend on the order in which answers arrived.
    for key, generation in sorted(answers, key=lambda answer: answer[0]):
        episode = playing.get(key.episode_id)
        if episode is None or key.agent_id not in episode.in_flight:
            raise PolicyError(f"the policy answered {key}, which is not in flight")
        episode.apply(key, generation)
        opened += episode.asks()
    if opened:
        policy.submit(opened)
    return len(answers)
