"""When to delegate: a policy's choices against both choices forced on the same weights, instance by instance.

An instance is worth delegating if the forced `always` earns more on it than the forced `never`. Where both earn the
same there is nothing to decide; such instances count for rewards and shares, not for the F1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_eval.play.results import Result


@dataclass(frozen=True)
class InstanceOutcome:
    """One way to play an instance.

    Attributes:
        size: of the task, in its own unit.
        delegated: whether there was any clone.
        correct, reward, tokens: of the answer, of the team, of the whole tree. Of several episodes
            tokens are those of all, and the reward is that of the one whose answer counts.
    """

    size: int
    delegated: bool
    correct: bool
    reward: float
    tokens: int


@dataclass(frozen=True)
class Choice:
    """An instance as the policy played it, and as the same weights play it by either choice."""

    free: InstanceOutcome
    always: InstanceOutcome
    never: InstanceOutcome

    @property
    def gain(self) -> float:
        """Of delegating, in reward."""
        return self.always.reward - self.never.reward


@stored_as(delegated="delegated", accuracy="accuracy", reward="reward", tokens="tokens")
@dataclass(frozen=True)
class Means:
    """Of outcomes: share delegated, accuracy, reward and total tokens per instance."""

    delegated: float
    accuracy: float
    reward: float
    tokens: float


@stored_as(
    free="free",
    always="always",
    never="never",
    threshold="threshold",
    threshold_reward="threshold_reward",
    regret="regret",
    precision="precision",
    recall="recall",
    f1="f1",
)
@dataclass(frozen=True)
class Decisions:
    """What a policy's choices were worth.

    Attributes:
        free, always, never: of the policy and of both forced choices.
        threshold: the size from which on the best threshold policy delegates; infinite: never.
        threshold_reward: what it earns on these instances, which it was chosen on.
        regret: how much more that is than the policy's; below 0 where the policy chooses well by more than size.
        precision, recall, f1: of delegating, against where it earns more; `None` where nothing was to be found.
    """

    free: Means
    always: Means
    never: Means
    threshold: float
    threshold_reward: float
    regret: float
    precision: float | None
    recall: float | None
    f1: float | None


def outcome_of(result: Result) -> InstanceOutcome:
    """Return the outcome of a result with its episodes.

    Raises:
        ConfigError: the task has no size, or the episode no reward.
    """
    episode = result.episodes[result.chosen]
    size = episode.task.metadata.get("size")
    reward = episode.team_return
    if not isinstance(size, int) or reward is None:
        raise ConfigError(f"{result.place.family} {result.place.size}: a task without a size has no threshold to find")
    tokens = sum(sample.cost.total_tokens for sample in result.episodes)
    return InstanceOutcome(size, episode.cost.clones > 0, result.grade.correct, reward, tokens)


def choices(results: Iterable[Result], free: str, always: str, never: str) -> list[Choice]:
    """Pair the instances that three strategies of a study have played, by eval set, budget, seed and task.

    Raises:
        ConfigError: an instance lacks one of the three.
    """
    outcomes: dict[str, dict[tuple[str, str, int | None, int, str], InstanceOutcome]] = {
        free: {},
        always: {},
        never: {},
    }
    for result in results:
        place = result.place
        if place.strategy in outcomes:
            key = (place.family, place.size, place.budget, place.seed, place.task_id)
            outcomes[place.strategy][key] = outcome_of(result)
    for name, played in outcomes.items():
        if played.keys() != outcomes[free].keys() or not played:
            raise ConfigError(
                f"strategy '{name}' has played {len(played)} instances, '{free}' {len(outcomes[free])}; expected "
                "the same instances: play the study to its end"
            )
    return [Choice(outcomes[free][key], outcomes[always][key], outcomes[never][key]) for key in outcomes[free]]


def means(outcomes: Sequence[InstanceOutcome]) -> Means:
    count = len(outcomes)
    return Means(
        sum(outcome.delegated for outcome in outcomes) / count,
        sum(outcome.correct for outcome in outcomes) / count,
        math.fsum(outcome.reward for outcome in outcomes) / count,
        sum(outcome.tokens for outcome in outcomes) / count,
    )


def best_threshold(played: Sequence[Choice]) -> tuple[float, float]:
    """The size from which on to delegate, and its mean reward; of equally good ones the largest, infinite first."""
    total = math.fsum(choice.never.reward for choice in played)
    best = total
    threshold = math.inf
    # From the largest size down, each step lets the instances of one more size delegate.
    for size in sorted({choice.free.size for choice in played}, reverse=True):
        total += math.fsum(choice.gain for choice in played if choice.free.size == size)
        if total > best:
            best = total
            threshold = size
    return threshold, best / len(played)


def judge(played: Sequence[Choice]) -> Decisions:
    """Return what the choices on one or more instances were worth."""
    threshold, threshold_reward = best_threshold(played)
    free = means([choice.free for choice in played])
    # Where both choices earn the same there is nothing to decide.
    decisive = [choice for choice in played if choice.gain]
    num_hits = sum(choice.gain > 0 and choice.free.delegated for choice in decisive)
    num_worth = sum(choice.gain > 0 for choice in decisive)
    num_delegated = sum(choice.free.delegated for choice in decisive)
    return Decisions(
        free=free,
        always=means([choice.always for choice in played]),
        never=means([choice.never for choice in played]),
        threshold=threshold,
        threshold_reward=threshold_reward,
        regret=threshold_reward - free.reward,
        precision=num_hits / num_delegated if num_delegated else None,
        recall=num_hits / num_worth if num_worth else None,
        f1=2 * num_hits / (num_delegated + num_worth) if num_delegated + num_worth else None,
    )
