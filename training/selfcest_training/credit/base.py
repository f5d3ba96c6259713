"""The interface of credit schemes, and what they share."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from selfcest_env.errors import ConfigError, RewardError, did_you_mean
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.types import AgentId, TurnKey

Advantage = float | tuple[float, ...]
Replayed = Mapping[Replay, EpisodeRecord]
# Per replay how many turns each of its agents took: all that a second round of replays may depend on.
Shapes = Mapping[Replay, Mapping[AgentId, int]]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Credit:
    """Credit of one group.

    Attributes:
        advantage: per turn one number, or one number per generated token. Turns that a replay played anew, by its id,
            may be among them and are then trained on like the others; those that are not named are not.
        excluded: turns of episodes that take no part in the loss. Not the same as an advantage of 0, which still enters
            a KL term.
        diagnostics: numbers for the metrics, free of choice.
        weight: a factor of all that a turn's tokens add to the loss, of its advantage and of terms without one alike,
            as 1 / n for n draws that stand for one; 1 for a turn that is not named.
    """

    advantage: Mapping[TurnKey, Advantage]
    excluded: frozenset[TurnKey] = frozenset()
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    weight: Mapping[TurnKey, float] = field(default_factory=dict)

    def weighted(self, key: TurnKey, length: int) -> npt.NDArray[np.float64]:
        """[T] advantage x weight of every token of a turn; 0 for one that has none."""
        return np.broadcast_to(np.asarray(self.advantage.get(key, 0.0)) * self.weight.get(key, 1.0), length)


class Promise(enum.StrEnum):
    """What a scheme says of its gradient, on policy, for the unscaled, unclipped, constant-normalised loss."""

    UNBIASED = "unbiased"
    UNBIASED_UP_TO_SCALE = "unbiased up to scale"
    BIASED = "biased"


class Internal(enum.StrEnum):
    """What a scheme may want of the policy's computation over the contexts of an episode's agents."""

    HIDDEN = "hidden"
    ENTROPY = "entropy"


@dataclass(frozen=True, eq=False)
class TurnInternals:
    """What the policy that is being trained computes over one turn. What was not asked for is empty.

    Attributes:
        before, after: [H] hidden state of the last layer at the last token before the turn and at its last one: what
            the policy makes of all that the agent has seen until then.
        logprobs, entropies: [T] log-prob of each generated token, and entropy of the distribution it was drawn from.
    """

    before: Floats
    after: Floats
    logprobs: Floats
    entropies: Floats


Internals = Mapping[TurnKey, TurnInternals]


class CreditAssigner:
    """Base of every credit scheme: a function from records to one advantage per generated turn.

    It holds neither the environment nor the policy; its options are its constructor's arguments. A scheme declares the
    class attributes without a value and overrides `assign`, or `assign_step` if it sees all groups of a step at once.
    All other methods are optional: here they ask for nothing, refuse nothing, learn nothing and remember nothing.

    Class attributes:
        name: in messages and tables.
        formula: one line.
        source: paper or project it comes from.
        promise: the property of its gradient that it may be held to.
        null_player: whether a clone that never matters, and whose tokens are not priced, gets zero in expectation given
            everything that its turns did not cause. A scheme with replays promises it for the clones it asks them for.
        internals: what it wants of the policy's computation. The learner computes it before its update, in a forward
            pass over the episodes (not the replays) for each kind, counted as compute.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    promise: ClassVar[Promise]
    null_player: ClassVar[bool]
    internals: ClassVar[frozenset[Internal]] = frozenset()

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        """The counterfactuals it needs, asked before any of them is played. Chosen without looking at rewards."""
        return ()

    def more_replays(self, episode: EpisodeRecord, shapes: Shapes) -> Sequence[Replay]:
        """The second round of replays of one episode, chosen without looking at rewards.

        Args:
            episode: of a group that it was asked about.
            shapes: of all first replays of that episode. A replay of a replay names it by its id:
                `Replay.of(str(first), {agent_id: what})`.
        """
        return ()

    def check_constant(self, loss_denominator_tokens: float) -> None:
        """Raise `ConfigError` for another denominator of the `constant` loss than it was made for."""

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        """Credit of every generated turn.

        Args:
            group: scored episodes of one task.
            replayed: for every replay that was asked, its record: complete and scored by the same reward.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither assign nor assign_step")

    def assign_step(
        self, groups: Sequence[EpisodeGroup], replayed: Sequence[Replayed], internals: Internals
    ) -> Sequence[Credit]:
        """Credit of every group of a step, in their order.

        Args:
            groups: the scored groups of the step.
            replayed: per group its replays, as in `assign`.
            internals: every turn of their episodes; empty unless the class attribute `internals` asks for some.
        """
        return [self.assign(group, records) for group, records in zip(groups, replayed, strict=True)]

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        """Learn from a step's groups, after their credit has been used: credit rests on earlier steps only.

        A scheme that overrides this also overrides `state_dict` and `load_state_dict`. With rollouts ahead of the
        learner `replays` is called while `fit` may run: what it asks for must not depend on what has been learned.
        """

    def state_dict(self) -> Mapping[str, Any]:
        """What the scheme has learned, as values of JSON and tensors, for checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` of another instance has returned."""


def overrides(scheme: CreditAssigner | type[CreditAssigner], method: str) -> bool:
    """Whether a scheme has its own version of a method of the base class."""
    cls = scheme if isinstance(scheme, type) else type(scheme)
    return getattr(cls, method) is not getattr(CreditAssigner, method)


def broadcast(group: EpisodeGroup, advantages: Sequence[float]) -> dict[TurnKey, Advantage]:
    """One advantage per episode, for every turn of its root and of all its clones."""
    pairs = zip(group.episodes, advantages, strict=True)
    return {key: advantage for episode, advantage in pairs for key, _ in episode.turns()}


def group_advantages(group: EpisodeGroup, *, scale: bool, std_floor: float, epsilon: float) -> list[float]:
    """Group-relative advantage per episode: (R_k - mean R) / (max(std R, std_floor) + epsilon).

    The standard deviation has n - 1 in its denominator. With `scale=False` the division is left out.
    Raises `ConfigError` for a group of one, whose advantage would always be 0.
    """
    returns = _returns(group)
    count = len(returns)
    mean = sum(returns) / count
    centred = [value - mean for value in returns]
    if not scale:
        return centred
    std = math.sqrt(sum(value * value for value in centred) / (count - 1))
    divisor = max(std, std_floor) + epsilon
    return [value / divisor if divisor else 0.0 for value in centred]


def leave_one_out(group: EpisodeGroup) -> list[float]:
    """Advantage per episode against the mean return of the others: R_k - sum_{j != k} R_j / (K - 1).

    Raises `ConfigError` for a group of one, which has no others.
    """
    return against_others(_returns(group))


def against_others(values: Sequence[float]) -> list[float]:
    """Each of at least two numbers less the mean of the others."""
    total, others = sum(values), len(values) - 1
    return [value - (total - value) / others for value in values]


def succeeded(episode: EpisodeRecord, term: str) -> bool:
    """Whether a term of the reward, unweighted, is above 0. Raises `RewardError` if the reward has no such term."""
    terms = episode.reward_terms or {}
    if term not in terms:
        raise RewardError(
            f"term is {term!r}, and the reward has no such term to tell success by; it has {', '.join(terms)}."
            + did_you_mean(term, terms)
        )
    return terms[term] > 0


def _returns(group: EpisodeGroup) -> list[float]:
    returns = [episode.team_return for episode in group.episodes]
    if len(returns) < 2:
        raise ConfigError("group_size is 1: a group baseline needs at least 2 episodes of the same task")
    return returns
