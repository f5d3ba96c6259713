"""Retries after infrastructure failures. Failed episodes are retried with the same seeds, or else dropped and counted.

Training retries groups of episodes and single replays, evaluation retries single episodes. Both use `Retries` for the
retries, and `drop_failed` for groups or instances that failed in all attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from selfcest_agents.rollout import FailedEpisode, UnplayedError, collect_failures, raise_failures
from selfcest_env.errors import InfrastructureError
from selfcest_env.stored import stored_as

Key = TypeVar("Key")
Result = TypeVar("Result")
Unit = TypeVar("Unit")
T = TypeVar("T")


@dataclass(frozen=True)
class RetryOptions:
    """Limits of retries and failures in a step of training or a cell of an evaluation.

    Attributes:
        max_retries: number of attempts after the first one.
        max_failed_fraction: fraction that may fail in all attempts. The run stops above it.
    """

    max_retries: int
    max_failed_fraction: float


@stored_as(dropped_groups="dropped_groups", failures="failures", tokens="tokens", cause="cause")
@dataclass(frozen=True)
class FailureStats:
    """Counts of the infrastructure failures in a step.

    Attributes:
        dropped_groups: groups that could not be played, or replayed for their credit, in any attempt.
        failures: episodes and replays that could not be played or judged, over all attempts.
        tokens: tokens sampled in failed attempts. They count as compute, but are not trained on.
        cause: message of the last failure.
    """

    dropped_groups: int = 0
    failures: int = 0
    tokens: int = 0
    cause: str = ""

    @classmethod
    def of(cls, failed: Sequence[FailedEpisode]) -> FailureStats:
        """Count the failures of one attempt."""
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
        """Raise `InfrastructureError` if all planned groups were dropped, or more than the allowed fraction."""
        if self.dropped_groups > options.max_failed_fraction * planned or 0 < self.dropped_groups == planned:
            raise InfrastructureError(
                f"step {step}: {self.dropped_groups} of {planned} groups were lost to infrastructure failures, and "
                f"rl.max_failed_fraction is {options.max_failed_fraction:g}; last error: {self.cause}; check that "
                "server or machine, then continue with --resume"
            )

    def metrics(self) -> dict[str, float]:
        return {
            "dropped_groups": self.dropped_groups,
            "infrastructure_failures": self.failures,
            "lost_tokens": self.tokens,
        }


@dataclass(frozen=True)
class Attempt(Generic[Key, Result]):
    """Results and failures of one attempt.

    Attributes:
        results: results by key.
        failed: episodes that failed.
        discarded_tokens: tokens sampled for episodes that were played and belong to no result.
    """

    results: Mapping[Key, Result]
    failed: Sequence[FailedEpisode]
    discarded_tokens: int = 0


@dataclass
class Retries(Generic[Key, Result]):
    """Results of all attempts so far. A key with a result is not played again.

    Attributes:
        max_retries: number of attempts after the first one.
        results: results by key.
        stats: counts of the failures so far.
    """

    max_retries: int
    results: dict[Key, Result] = field(default_factory=dict)
    stats: FailureStats = FailureStats()

    def play(self, keys: Sequence[Key], play: Callable[[list[Key]], Attempt[Key, Result]]) -> dict[Key, Result]:
        """Return the results of these keys, in their order.

        Args:
            keys: keys of the results.
            play: makes one attempt to play the keys that have no result yet.

        Raises:
            UnplayedError: some keys failed in all attempts. It holds the results of the others.
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
        return raise_failures({key: self.results[key] for key in keys if key in self.results}, failed)


def drop_failed(
    units: Sequence[Unit], call: Callable[[list[Unit]], T], owns: Callable[[Unit, str], bool]
) -> tuple[T, list[Unit], list[tuple[Unit, FailedEpisode]]]:
    """Call with all units, and again without the failed units, until no unit fails.

    Args:
        units: parts of a call that can be left out, such as groups or instances.
        call: raises `UnplayedError` if an episode cannot be played.
        owns: whether an episode, given by its id, belongs to a unit.

    Returns:
        The value of the last call, the units of that call, and the dropped units with their last failures.

    Raises:
        UnplayedError: the only failed episodes belong to no unit.
    """
    remaining = list(units)
    dropped: list[tuple[Unit, FailedEpisode]] = []
    while True:
        returned, failed = collect_failures(partial(call, remaining))
        if not failed:
            return returned, remaining, dropped
        playable: list[Unit] = []
        for unit in remaining:
            failures = [failure for failure in failed if owns(unit, failure.episode_id)]
            if failures:
                dropped.append((unit, failures[-1]))
            else:
                playable.append(unit)
        if len(playable) == len(remaining):
            raise UnplayedError.of(returned, failed)
        remaining = playable
