"""The base class of credit schemes, their types, and computations that several of them share."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from selfcest_env.errors import ConfigError, RewardError, did_you_mean
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.reward import Reward
from selfcest_env.types import AgentId, TurnKey

Advantage = float | tuple[float, ...]
ReplayRecords = Mapping[Replay, EpisodeRecord]
# Number of turns of each agent by replay. A second round of replays may depend on nothing else.
TurnCounts = Mapping[Replay, Mapping[AgentId, int]]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Credit:
    """Credit of one group.

    Attributes:
        advantage: one number per turn, or one number per generated token. It may name turns that a replay played
            again, by the replay's id. Those are trained like the others; replayed turns without a name are not trained.
        excluded: turns of episodes that take no part in the loss. An advantage of 0 is different: its turn still enters
            a KL term.
        diagnostics: any numbers for the metrics.
        weight: a factor of everything that a turn's tokens add to the loss, also of terms without an advantage; 1 for
            turns that are not named. For example 1 / n for n samples of one turn.
    """

    advantage: Mapping[TurnKey, Advantage]
    excluded: frozenset[TurnKey] = frozenset()
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    weight: Mapping[TurnKey, float] = field(default_factory=dict)

    def weighted(self, key: TurnKey, length: int) -> npt.NDArray[np.float64]:
        """Return [T] the advantage times the weight for every token of a turn; 0 for a turn without an advantage."""
        return np.broadcast_to(np.asarray(self.advantage.get(key, 0.0)) * self.weight.get(key, 1.0), length)


class Promise(enum.StrEnum):
    """A scheme's claim about its gradient, on policy, without clipping, with the `constant` denominator."""

    UNBIASED = "unbiased"
    UNBIASED_UP_TO_SCALE = "unbiased up to scale"
    BIASED = "biased"


class Internal(enum.StrEnum):
    """A quantity of the policy's forward pass that a scheme may use."""

    HIDDEN = "hidden"
    ENTROPY = "entropy"


@dataclass(frozen=True, eq=False)
class TurnInternals:
    """Quantities of the trained policy's forward pass over one turn. Those that were not requested are empty.

    Attributes:
        before: [H] hidden state of the last layer at the last token before the turn.
        after: [H] hidden state of the last layer at the last token of the turn.
        logprobs: [T] log-prob of each generated token.
        entropies: [T] entropy of the distribution of each generated token.
    """

    before: Floats
    after: Floats
    logprobs: Floats
    entropies: Floats


Internals = Mapping[TurnKey, TurnInternals]


class CreditAssigner:
    """Base class of credit schemes: a scheme turns records into one advantage per generated turn.

    A scheme has no access to the environment or the policy. Its options are its constructor's arguments. It declares
    the class attributes without a value, and overrides `assign`, or `assign_step` if it uses all groups of a step at
    once. All other methods are optional hooks that do nothing by default.

    Class attributes:
        name: name in messages and tables.
        formula: the advantage, in one line.
        source: paper or project of the method.
        promise: the claim about its gradient. The laboratory tests it.
        null_player: whether a clone that never matters, and whose tokens have no price, gets zero in expectation, given
            everything that its turns did not cause. A scheme with replays claims this for the clones that it replays.
        internals: quantities of the policy's forward pass that it uses. The learner computes them before its update,
            in one pass over the episodes (not the replays) for each kind, and counts them as compute.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    promise: ClassVar[Promise]
    null_player: ClassVar[bool]
    internals: ClassVar[frozenset[Internal]] = frozenset()

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        """Return the replays that the scheme needs. They must not depend on rewards."""
        return ()

    def more_replays(self, episode: EpisodeRecord, turn_counts: TurnCounts) -> Sequence[Replay]:
        """Return a second round of replays for one episode. They must not depend on rewards.

        Args:
            episode: an episode of a group for which `replays` was called.
            turn_counts: turns by agent for all first replays of the episode. A replay of a replay names it by its id:
                `Replay.of(str(first), {agent_id: intervention})`.
        """
        return ()

    def check_constant(self, loss_denominator_tokens: float | None) -> None:
        """Raise `ConfigError` if the scheme does not work with this denominator of the loss.

        Args:
            loss_denominator_tokens: that of the denominator `constant`; `None`: the loss has another denominator.
        """

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        """Return the credit of every generated turn.

        Args:
            group: scored episodes of one task.
            replayed: the record of every replay that was requested, complete and scored by the same reward.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither assign nor assign_step")

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[ReplayRecords], internals: Internals
    ) -> Sequence[Credit]:
        """Return the credit of every group of a step, in order.

        Args:
            groups: the scored groups of the step.
            replayed: the replays of each group, as in `assign`.
            internals: internals of every turn of the episodes; empty unless the class attribute `internals` names some.
        """
        return [self.assign(group, records) for group, records in zip(groups, replayed, strict=True)]

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        """Learn from a step's groups, after their credit was used: credit depends on earlier steps only.

        A scheme that overrides this also overrides `state_dict` and `load_state_dict`. With asynchronous rollouts
        `replays` may be called while `fit` runs, so the requested replays must not depend on the learned state.
        """

    def state_dict(self) -> Mapping[str, Any]:
        """Return the learned state for checkpoints, as JSON values and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` of another instance returned."""


def overrides(scheme: CreditAssigner | type[CreditAssigner], method: str) -> bool:
    """Whether a scheme overrides a method of the base class."""
    cls = scheme if isinstance(scheme, type) else type(scheme)
    return getattr(cls, method) is not getattr(CreditAssigner, method)


def broadcast(group: EpisodeGroup, advantages: Sequence[float]) -> dict[TurnKey, Advantage]:
    """Give every turn of an episode, of its root and of all clones, the episode's advantage."""
    advantage_by_turn: dict[TurnKey, Advantage] = {}
    for episode, advantage in zip(group.episodes, advantages, strict=True):
        for key, _ in episode.turns():
            advantage_by_turn[key] = advantage
    return advantage_by_turn


def group_advantages(group: EpisodeGroup, *, scale: bool, std_floor: float, epsilon: float) -> list[float]:
    """Compute the group-relative advantage of each episode: (R_k - mean R) / (max(std R, std_floor) + epsilon).

    The standard deviation has n - 1 in its denominator. With `scale=False` there is no division. Equal returns give 0.

    Raises:
        ConfigError: the group has one episode, so its advantage would always be 0.
    """
    returns = _returns(group)
    if are_equal(returns):
        return [0.0] * len(returns)  # not the rounding error of the mean, divided by that of the deviation
    count = len(returns)
    mean = sum(returns) / count
    centred = [value - mean for value in returns]
    if not scale:
        return centred
    std = math.sqrt(sum(value * value for value in centred) / (count - 1))
    divisor = max(std, std_floor) + epsilon
    return [value / divisor if divisor else 0.0 for value in centred]


def leave_one_out(group: EpisodeGroup) -> list[float]:
    """Compute the advantage of each episode against the mean of the others: R_k - sum_{j != k} R_j / (K - 1).

    Raises:
        ConfigError: the group has one episode.
    """
    return subtract_mean_of_others(_returns(group))


def subtract_mean_of_others(values: Sequence[float]) -> list[float]:
    """Subtract from each of at least two numbers the mean of the others. Equal numbers give 0."""
    if are_equal(values):
        return [0.0] * len(values)
    total = sum(values)
    num_others = len(values) - 1
    return [value - (total - value) / num_others for value in values]


@runtime_checkable
class RewardBound(Protocol):
    """A stage or its options that read terms of the reward."""

    def check_reward(self, reward: Reward) -> None:
        """Raise `ConfigError` if the reward lacks one of them. Called before any work."""
        ...


def check_reads(stage: object, reward: Reward) -> None:
    """Raise `ConfigError` if a stage, its options or the stage `inner` that it wraps read a term that is not there."""
    for holder in (stage, getattr(stage, "options", None)):
        if isinstance(holder, RewardBound):
            holder.check_reward(reward)
    if hasattr(stage, "inner"):
        check_reads(stage.inner, reward)


class ReadsTerm:
    """Mixin of a stage or its options that read one term of the reward.

    Attributes:
        term: name of the term.
    """

    term: str

    def check_reward(self, reward: Reward) -> None:
        if self.term not in reward.terms:
            raise ConfigError(
                f"term is {self.term!r}, which is no term of the reward.{did_you_mean(self.term, reward.terms)} "
                f"Expected one of {', '.join(reward.terms)}"
            )


def are_equal(values: Sequence[float]) -> bool:
    """Return whether numbers are equal up to rounding, such as returns that are the same sums in another order."""
    return max(values) - min(values) <= 1e-9


def get_term(episode: EpisodeRecord, term: str) -> float:
    """Return a reward term, without its weight. Raises `RewardError` if the reward lacks the term."""
    terms = episode.reward_terms or {}
    if term not in terms:
        raise RewardError(
            f"term is {term!r}, but the reward has no such term.{did_you_mean(term, terms)} It has {', '.join(terms)}."
        )
    return terms[term]


def succeeded(episode: EpisodeRecord, term: str) -> bool:
    """Whether a reward term, without its weight, is above 0. Raises `RewardError` if the reward lacks the term."""
    return get_term(episode, term) > 0


def _returns(group: EpisodeGroup) -> list[float]:
    returns = [episode.team_return for episode in group.episodes]
    if len(returns) < 2:
        raise ConfigError(
            f"the group of {group.episodes[0].episode_id} has 1 episode; a group baseline needs at least 2 episodes of "
            "the same task"
        )
    return returns
