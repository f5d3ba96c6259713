"""Retries after infrastructure failures: what failed is played again with the same seeds, else dropped and counted.

Training retries whole groups of episodes and single replays, evaluation retries single episodes. Both use `Retries`
for the further tries and `drop_failed` for what has failed in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from selfcest_agents.rollout import FailedEpisode, UnplayedError, all_of, collect_failures
from selfcest_env.errors import InfrastructureError
from selfcest_env.stored import stored_as

Key = TypeVar("Key")
Result = TypeVar("Result")
Unit = TypeVar("Unit")
T = TypeVar("T")


@dataclass(frozen=True)
class RetryOptions:
    """How often a failure is retried, and how many failures a step or a cell may have.

    Attributes:
        max_retries: further tries of what an infrastructure failure has hit.
        max_failed_fraction: share that may fail in all tries; above it the run stops.
    """

    max_retries: int
    max_failed_fraction: float


@stored_as(dropped_groups="dropped_groups", failures="failures", tokens="tokens", cause="cause")
@dataclass(frozen=True)
class FailureStats:
    """What infrastructure failures took from a step.

    Attributes:
        dropped_groups: groups that could not be played, or replayed for their credit, in any try.
        failures: episodes and replays that could not be played or judged, over all tries.
        tokens: tokens sampled in tries that were given up; they are paid for, and nothing is learned from them.
        cause: the last failure.
    """

    dropped_groups: int = 0
    failures: int = 0
    tokens: int = 0
    cause: str = ""

    @classmethod
    def of(cls, failed: Sequence[FailedEpisode]) -> FailureStats:
        """The failures of one try."""
        tokens = sum(failure.generated_tokens for failure in failed)
        return cls(0, len(failed), tokens, str(failed[-1].cause) if failed else "")

    def __add__(self, later: FailureStats) -> FailureStats:
        return FailureStats(
            self.dropped_groups + later.dropped_groups,
            self.failures + later.failures,
            self.tokens + later.tokens,
            later.cause or self.cause,
        )

    def check(self, step: int, planned: int, options: RetryOptions) -> None:
        """Raise `InfrastructureError` if too large a share of a step's planned groups was dropped, or all were."""
        if self.dropped_groups > options.max_failed_fraction * planned or 0 < self.dropped_groups == planned:
            raise InfrastructureError(
                f"step {step}: {self.dropped_groups} of {planned} groups were lost to infrastructure failures, and "
                f"rl.max_failed_fraction is {options.max_failed_fraction:g}; the last: {self.cause}. Look at that "
                "server or machine, then go on with --resume"
            )

    def metrics(self) -> dict[str, float]:
        return {
            "dropped_groups": self.dropped_groups,
            "infrastructure_failures": self.failures,
            "lost_tokens": self.tokens,
        }


@dataclass(frozen=True)
class Try(Generic[Key, Result]):
    """The outcome of one try.

    Attributes:
        results: what was played, by key.
        failed: the episodes that were not.
        discarded_tokens: sampled for episodes that were played and belong to no result.
    """

    results: Mapping[Key, Result]
    failed: Sequence[FailedEpisode]
    discarded_tokens: int = 0


@dataclass
class Retries(Generic[Key, Result]):
    """Plays what it is asked for in several tries, and nothing that has been played again.

    Attributes:
        max_retries: tries after the first one.
        results: everything that has been played, by key.
        stats: the failures so far.
    """

    max_retries: int
    results: dict[Key, Result] = field(default_factory=dict)
    stats: FailureStats = FailureStats()

    def play(self, keys: Sequence[Key], play: Callable[[list[Key]], Try[Key, Result]]) -> dict[Key, Result]:
        """The results of these keys, in their order.

        Args:
            keys: what is wanted; what is known already is not played again.
            play: makes one try of the keys that are missing.

        Raises:
            UnplayedError: some failed in all tries; it holds the results of the others.
        """
        failed: Sequence[FailedEpisode] = ()
        for _ in range(1 + self.max_retries):
            missing = [key for key in keys if key not in self.results]
            if not missing:
                break
            attempt = play(missing)
            failed = attempt.failed
            self.results.update(attempt.results)
            self.stats += FailureStats.of(failed) + FailureStats(tokens=attempt.discarded_tokens)
        return all_of({key: self.results[key] for key in keys if key in self.results}, failed)


def drop_failed(
    units: Sequence[Unit], call: Callable[[list[Unit]], T], owns: Callable[[Unit, str], bool]
) -> tuple[T, list[Unit], list[tuple[Unit, FailedEpisode]]]:
    """Call with all units, and again without those that failed, until no unit fails.

    Args:
        units: the parts of a call that can be left out, as groups or instances.
        call: raises `UnplayedError` if something cannot be played.
        owns: whether an episode, by its id, belongs to a unit.

    Returns:
        What the call returned at last, the units of that call, and the others with their last failures.

    Raises:
        UnplayedError: an episode failed that belongs to no unit.
    """
    left, dropped = list(units), list[tuple[Unit, FailedEpisode]]()
    while True:
        returned, failed = collect_failures(partial(call, left))
        if not failed:
            return returned, left, dropped
        last_failures = [[failure for failure in failed if owns(unit, failure.episode_id)][-1:] for unit in left]
        if not any(last_failures):
            raise UnplayedError.of(returned, failed)
        pairs = list(zip(left, last_failures, strict=True))
        dropped += [(unit, failure) for unit, failures in pairs for failure in failures]
        left = [unit for unit, failures in pairs if not failures]
