"""Retries: what fails is played again, nothing that has been played is, and what fails for good is dropped by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from selfcest_agents.retries import Attempt, FailureStats, Retries, drop_failed
from selfcest_agents.rollout import FailedEpisode, UnplayedError, collect_failures, raise_failures
from selfcest_env.errors import InfrastructureError


class Flaky:
    """Plays names, and fails each as often as it is told."""

    def __init__(self, fails: Mapping[str, int]) -> None:
        self.fails, self.asked = Counter(fails), list[list[str]]()

    def __call__(self, names: Sequence[str]) -> Attempt[str, int]:
        self.asked.append(list(names))
        failed = [name for name in names if self.fails[name] > 0]
        self.fails.subtract(failed)
        failures = [FailedEpisode(name, InfrastructureError(f"{name} is down"), 10) for name in failed]
        return Attempt(
            {name: len(name) for name in names if name not in failed}, failures, discarded_tokens=len(failed)
        )


def test_only_what_failed_is_played_again() -> None:
    flaky, retries = Flaky({"b": 1, "c": 2}), Retries[str, int](2)
    assert retries.play(["a", "b", "c"], flaky) == {"a": 1, "b": 1, "c": 1}
    assert flaky.asked == [["a", "b", "c"], ["b", "c"], ["c"]]
    assert retries.stats == FailureStats(0, 3, 33, "c is down")
    assert list(retries.play(["c", "dd", "a"], flaky)) == ["c", "dd", "a"], "in the order of the keys"
    assert flaky.asked[3:] == [["dd"]], "what is known is not played again"


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_after_the_last_try_the_others_are_in_the_error(max_retries: int) -> None:
    flaky, retries = Flaky({"b": 99}), Retries[str, int](max_retries)
    results, failed = collect_failures(lambda: retries.play(["a", "b"], flaky))
    assert results == {"a": 1}
    assert [failure.episode_id for failure in failed] == ["b"]
    assert (retries.stats.failures, len(flaky.asked)) == (1 + max_retries, 1 + max_retries)
    with pytest.raises(UnplayedError, match="the first is b"):
        retries.play(["b"], flaky)


def test_nothing_wanted_is_nothing_played() -> None:
    flaky = Flaky({})
    assert Retries[str, int](2).play([], flaky) == {}
    assert not flaky.asked


def test_units_that_fail_are_left_out_until_the_rest_is_whole() -> None:
    """A failure that shows only when another unit is gone drops its unit too."""
    lost = {("a", "b", "c", "d"): ["b.0", "b.1"], ("a", "c", "d"): ["d.0"], ("a", "c"): []}
    calls = []

    def call(units: Sequence[str]) -> list[str]:
        calls.append(tuple(units))
        failures = [FailedEpisode(name, InfrastructureError(name), 0) for name in lost[tuple(units)]]
        return raise_failures([unit.upper() for unit in units], failures)

    played, left, dropped = drop_failed("abcd", call, lambda unit, episode: episode[0] == unit)
    assert (played, left) == (["A", "C"], ["a", "c"])
    assert [(unit, str(failure.cause)) for unit, failure in dropped] == [("b", "b.1"), ("d", "d.0")]
    assert calls == [("a", "b", "c", "d"), ("a", "c", "d"), ("a", "c")]


def test_a_failure_of_no_unit_is_raised() -> None:
    def call(units: Sequence[str]) -> list[str]:
        return raise_failures(list(units), [FailedEpisode("x.0", InfrastructureError("down"), 0)])

    with pytest.raises(UnplayedError, match="the first is x.0: down"):
        drop_failed("ab", call, lambda unit, episode: episode[0] == unit)
