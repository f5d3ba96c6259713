"""When to delegate: a policy's choices against both choices forced on the same weights, instance by instance.

An instance is worth delegating if the forced `always` earns more on it than the forced `never`. If both earn the same,
the choice does not matter: such instances count for rewards and shares, but not for the F1.
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
    """The outcome of one strategy on an instance.

    Attributes:
        size: size of the task, in the unit of its family.
        delegated: whether the episode whose answer counts has a clone.
        correct: whether the answer is right.
        reward: team return of the episode whose answer counts.
        tokens: total tokens of all episodes.
    """

    size: int
    delegated: bool
    correct: bool
    reward: float
    tokens: int


@dataclass(frozen=True)
class Choice:
    """The outcomes of an instance: by the policy's own choice, and by both choices forced on the same weights."""

    free: InstanceOutcome
    always: InstanceOutcome
    never: InstanceOutcome

    @property
    def gain(self) -> float:
        """The reward that delegating adds."""
        return self.always.reward - self.never.reward


@stored_as(delegated="delegated", accuracy="accuracy", reward="reward", tokens="tokens")
@dataclass(frozen=True)
class Means:
    """Means of outcomes: share delegated, accuracy, reward and total tokens per instance."""

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
    """The value of a policy's choices.

    Attributes:
        free, always, never: means of the policy and of both forced choices.
        threshold: smallest size that the best threshold policy delegates; infinite if it never delegates.
        threshold_reward: mean reward of the best threshold policy, on the same instances that it is chosen on.
        regret: threshold reward minus the policy's reward. It is negative if the policy uses more than the size.
        precision, recall, f1: agreement of delegating with a positive gain; `None` if there is nothing to divide by.
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


def read_outcome(result: Result) -> InstanceOutcome:
    """Return the outcome of a result with its episodes.

    Raises:
        ConfigError: the task has no size, or the episode no reward.
    """
    episode = result.episodes[result.chosen]
    size = episode.task.metadata.get("size")
    reward = episode.team_return
    if not isinstance(size, int) or reward is None:
        raise ConfigError(
            f"{result.place.family} {result.place.size}: task {result.place.task_id} has no size or no reward; "
            "expected both, to find the threshold of a policy"
        )
    tokens = sum(sample.cost_of("total_tokens") for sample in result.episodes)
    return InstanceOutcome(size, episode.cost_of("clones") > 0, result.grade.correct, reward, tokens)


def pair_choices(results: Iterable[Result], free: str, always: str, never: str) -> list[Choice]:
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
            outcomes[place.strategy][key] = read_outcome(result)
    for name, played in outcomes.items():
        if played.keys() != outcomes[free].keys() or not played:
            raise ConfigError(
                f"strategy '{name}' has played {len(played)} instances, '{free}' {len(outcomes[free])}; expected "
                "the same instances: play the missing ones with --resume"
            )
    return [Choice(outcomes[free][key], outcomes[always][key], outcomes[never][key]) for key in outcomes[free]]


def average_outcomes(outcomes: Sequence[InstanceOutcome]) -> Means:
    """Return the means of one or more outcomes."""
    count = len(outcomes)
    return Means(
        sum(outcome.delegated for outcome in outcomes) / count,
        sum(outcome.correct for outcome in outcomes) / count,
        math.fsum(outcome.reward for outcome in outcomes) / count,
        sum(outcome.tokens for outcome in outcomes) / count,
    )


def find_best_threshold(played: Sequence[Choice]) -> tuple[float, float]:
    """Return the smallest size that the best threshold policy delegates, and the mean reward of that policy.

    Of equally good thresholds it is the largest; an infinite one never delegates.
    """
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


def judge_choices(played: Sequence[Choice]) -> Decisions:
    """Return the value of the choices on one or more instances."""
    threshold, threshold_reward = find_best_threshold(played)
    free = average_outcomes([choice.free for choice in played])
    # Where both choices earn the same there is nothing to decide.
    decisive = [choice for choice in played if choice.gain]
    num_hits = sum(choice.gain > 0 and choice.free.delegated for choice in decisive)
    num_worth = sum(choice.gain > 0 for choice in decisive)
    num_delegated = sum(choice.free.delegated for choice in decisive)
    return Decisions(
        free=free,
        always=average_outcomes([choice.always for choice in played]),
        never=average_outcomes([choice.never for choice in played]),
        threshold=threshold,
        threshold_reward=threshold_reward,
        regret=threshold_reward - free.reward,
        precision=num_hits / num_delegated if num_delegated else None,
        recall=num_hits / num_worth if num_worth else None,
        f1=2 * num_hits / (num_delegated + num_worth) if num_delegated + num_worth else None,
    )
