"""Paired bootstrap and frontiers against hand-worked numbers, and against truths that are known."""

from __future__ import annotations

import numpy as np
import pytest

from selfcest_env.errors import ConfigError
from selfcest_eval.report.findings import ShiftAccuracy, VariantAccuracy
from selfcest_eval.report.words import describe_frontier, describe_learning, describe_points
from selfcest_eval.stats.frontier import GRID, Point, Verdict, compare_frontiers, compare_points, envelope
from selfcest_eval.stats.statistics import Estimate, Resampler, over_seeds, sign_test, student_t, with_equal_differences
from selfcest_eval.stats.table import Curves, make_rows


def resampler(instances: int, seeds: int = 1, *, crossed: bool = False, resamples: int = 1000) -> Resampler:
    return Resampler(instances, seeds, crossed=crossed, resamples=resamples, confidence=0.95)


def point(budget: int | None, correct: np.ndarray, cost: np.ndarray | float) -> Point:
    costs = np.broadcast_to(np.asarray(cost, float), correct.shape)
    return Point(budget, correct, dict.fromkeys(COSTS, costs))


COSTS = ("total_tokens", "generated_tokens")


def share(right: int, instances: int = 40) -> np.ndarray:
    """So many of the instances are right."""
    return np.array([[float(i < right)] for i in range(instances)])


# Envelopes


def test_envelope_by_hand() -> None:
    # Points (10, .4), (20, .5), (40, 1): the middle one is below the line from (10, .4) to (40, 1), .6 at 20.
    # Half of .4 at 5: a coin decides who is asked at all.
    found = envelope(np.array([10.0, 20.0, 40.0]), np.array([0.4, 0.5, 1.0]), np.array([0, 5, 10, 20, 40, 99.0]))
    np.testing.assert_allclose(found, [0, 0.2, 0.4, 0.6, 1, 1])


def test_a_budget_that_pays_for_nothing_changes_no_envelope() -> None:
    """Whether the sweep has one that no prompt fits must not decide who is ahead."""
    at = np.linspace(0, 50, 11)
    with_it = envelope(np.array([0.0, 30.0]), np.array([0.0, 0.9]), at)
    np.testing.assert_allclose(with_it, envelope(np.array([30.0]), np.array([0.9]), at))


def test_envelope_does_not_fall_when_more_costs_bring_less() -> None:
    found = envelope(np.array([10.0, 30.0]), np.array([0.8, 0.5]), np.array([10.0, 20.0, 30.0]))
    np.testing.assert_allclose(found, [0.8, 0.8, 0.8])


def test_envelope_of_free_and_of_equally_dear_points() -> None:
    np.testing.assert_allclose(envelope(np.array([0.0]), np.array([0.3]), np.array([0.0, 5.0])), [0.3, 0.3])
    np.testing.assert_allclose(envelope(np.array([8.0, 8.0]), np.array([0.3, 0.6]), np.array([4.0, 8.0])), [0.3, 0.6])


# Intervals


def test_an_interval_by_hand() -> None:
    # 25 of 100: the standard error is sqrt(.25 * .75 / 100) = .0433, the interval .25 -+ 1.96 * .0433.
    found = resampler(100, resamples=20_000).estimate(share(25, 100))
    assert (found.mean, found.low, found.high) == pytest.approx((0.25, 0.165, 0.335), abs=0.012)


def test_differences_are_paired() -> None:
    """Two strategies that fail on the same instances differ by little, however few are right."""
    both = share(20)
    found = compare_points(point(9, both, 5), point(9, both, 10), resampler(40), COSTS)
    assert (found.gap.mean, found.gap.low, found.gap.high) == (0, -3 / 40, 3 / 40)
    assert (found.ratios["total_tokens"].low, found.ratios["total_tokens"].high) == (0.5, 0.5)


def test_the_same_results_on_few_instances_are_no_equal_accuracy() -> None:
    """The interval had no width there, so the fewer the instances, the more often two strategies were equal."""
    few, many = share(20, 20), share(150, 150)
    assert not compare_points(point(9, few, 5), point(9, few, 5), resampler(20), COSTS).equally_accurate(0.02)
    assert compare_points(point(9, many, 5), point(9, many, 5), resampler(150), COSTS).equally_accurate(0.02)
    # All right against all wrong: the difference is 1. If 3 / 20 of the pairs differ by -1, it is 1 - 6 / 20.
    apart = compare_points(point(9, few, 5), point(9, share(0, 20), 5), resampler(20), COSTS)
    assert (apart.gap.low, apart.gap.high) == (pytest.approx(0.7), 1)
    assert apart.verdict is Verdict.AHEAD


def test_nested_seeds_are_averaged_and_crossed_seeds_are_resampled() -> None:
    values = np.array([[0.0, 1.0]] * 30)  # a good seed and a bad one, whatever the instance
    nested = resampler(30, 2).estimate(values)
    crossed = resampler(30, 2, crossed=True).estimate(values)
    assert (nested.low, nested.high) == pytest.approx((0.5, 0.5))  # the last bit is the processor's
    # Student's t of the two seeds' means, 0 and 1: .5 -+ 12.706 * .7071 / sqrt(2) = .5 -+ 6.353
    assert (crossed.low, crossed.high) == pytest.approx((0.5 - 6.353, 0.5 + 6.353), rel=0.03)


def test_quantiles_of_students_t() -> None:
    for degrees, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042)):
        assert student_t(0.975, degrees) == pytest.approx(expected, abs=5e-4)
    assert student_t(0.95, 5) == pytest.approx(2.015, abs=5e-4)


def test_an_interval_over_seeds_by_hand() -> None:
    # 1, .75, .5: mean .75, sd .25, half width 4.303 * .25 / sqrt(3) = .6211
    found = over_seeds([1.0, 0.75, 0.5])
    assert (found.mean, found.low, found.high) == pytest.approx((0.75, 0.75 - 0.6211, 0.75 + 0.6211), abs=1e-4)
    assert str(over_seeds([0.5])) == "0.50", "one seed tells nothing of others"


def test_a_sign_test_by_hand() -> None:
    # All of 5 above: one in 32 on either side. Four of 5: six in 32.
    assert sign_test([1, 1, 1, 1, 1]) == pytest.approx(2 / 32)
    assert sign_test([1, 1, 1, 1, -1]) == pytest.approx(12 / 32)
    assert sign_test([1, 1, 1, 1, 0]) == pytest.approx(2 / 16), "a gap of 0 says nothing"
    assert sign_test([0] * 20) == 1
    assert sign_test([1, -1]) == 1


def test_what_an_instance_does_not_have_is_in_no_mean() -> None:
    values = np.array([[10.0], [20.0], [np.nan], [np.nan]] * 10)
    found = resampler(40).estimate(values)
    assert found.mean == 15
    assert 10 < found.low < 15 < found.high < 20
    assert str(resampler(40).estimate(values * np.nan)) == "–"


def test_all_right_and_all_wrong_leave_room_for_what_was_not_seen() -> None:
    """By the rule of three, whatever the number of seeds; other shares are the bootstrap's."""
    ones = np.ones((50, 2))
    assert str(resampler(50, 2).share(ones)) == "1.00 [0.94, 1.00]"  # 1 - 3 / 50
    assert str(resampler(50, 2).share(0 * ones)) == "0.00 [0.00, 0.06]"
    assert str(resampler(2).share(np.ones((2, 1)))) == "1.00 [0.00, 1.00]"
    few = np.full((100, 2), np.nan)
    assert str(resampler(100, 2).share(few)) == "–"
    few[:4, 0] = 1
    assert str(resampler(100, 2).share(few)) == "1.00 [0.25, 1.00]", "96 say nothing: 1 - 3 / 4"
    mixed = np.array([[1.0], [0.0]] * 20)
    assert resampler(40).share(mixed) == resampler(40).estimate(mixed)


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_every_table_has_these_intervals(right: float) -> None:
    curves = Curves("f", "1", "in", tuple(map(str, range(30))), (0,), {"a": [Point(None, np.full((30, 1), right), {})]})
    (row,) = make_rows(curves, resampler(30))
    assert str(row.accuracy) == ("1.00 [0.90, 1.00]" if right else "0.00 [0.00, 0.10]")


def test_nothing_to_resample_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing to resample: 0 instances"):
        resampler(0)


def coverage(studies: int, *, crossed: bool, instances: int, seeds: int, resamples: int) -> float:
    """How often the interval of a difference of two accuracies, right together more often than not, has the truth."""
    rng, boot = np.random.default_rng(5), resampler(instances, seeds, crossed=crossed, resamples=resamples)
    hits = 0
    for _ in range(studies):
        hardness = rng.random((instances, 1))
        luck = rng.normal(0, 0.1, (1, seeds)) if crossed else np.zeros((1, seeds))
        first = (rng.random((instances, seeds)) < 0.9 - 0.5 * hardness + luck).astype(float)
        second = (rng.random((instances, seeds)) < 0.8 - 0.6 * hardness).astype(float)
        found = boot.estimate(first - second)
        hits += found.low <= (0.9 - 0.25) - (0.8 - 0.3) <= found.high
    return hits / studies


@pytest.mark.parametrize(("crossed", "seeds", "high"), [(False, 1, 0.98), (False, 3, 0.98), (True, 12, 0.995)])
def test_coverage(crossed: bool, seeds: int, high: float) -> None:
    """Nominal 95 %; crossed intervals are wider by construction. The share has a standard error of .011 itself."""
    found = coverage(400, crossed=crossed, instances=100, seeds=seeds, resamples=1000)
    assert 0.92 <= found <= high


def test_coverage_of_three_seeds_that_differ() -> None:
    """Where seeds make all the difference. Percentiles of the resamples have the truth in .71 of these studies."""
    rng, boot = np.random.default_rng(5), resampler(100, 3, crossed=True)
    found = [boot.estimate(rng.normal(0, 1, (100, 3)) + rng.normal(0, 1, (1, 3))) for _ in range(400)]
    assert 0.92 <= np.mean([estimate.low <= 0 <= estimate.high for estimate in found]) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("instances", [50, 200])
def test_coverage_in_many_studies(instances: int) -> None:
    found = coverage(4000, crossed=False, instances=instances, seeds=2, resamples=4000)
    assert 0.93 <= found <= 0.965


# Frontiers against the truth


def strategy(rng: np.random.Generator, hardness: np.ndarray, truth: list[tuple[float, float]]) -> list[Point]:
    """Points of a strategy with these (cost, accuracy); on a hard instance it costs more and fails more often."""
    points = []
    for budget, (cost, accuracy) in enumerate(truth):
        right = accuracy + 0.2 * (0.5 - hardness)
        correct = (rng.random(hardness.shape) < right).astype(float)
        points.append(point(budget, correct, cost * (0.5 + hardness) + rng.normal(0, 1, hardness.shape)))
    return points


def true_gap(first: list[tuple[float, float]], second: list[tuple[float, float]], at: np.ndarray) -> np.ndarray:
    ends = [np.array(truth).T for truth in (first, second)]
    gap: np.ndarray = envelope(*ends[0], at) - envelope(*ends[1], at)
    return gap


DELEGATE, MONOLITHIC = [(20.0, 0.2), (60.0, 0.6), (120.0, 0.85)], [(15.0, 0.4), (40.0, 0.55), (90.0, 0.6)]


def test_known_policies_recover_their_frontier() -> None:
    """Of 60 studies the band has the whole true difference in all but a few, and the verdict is the true one."""
    rng, boot, hits = np.random.default_rng(1), resampler(200, resamples=400), 0
    for _ in range(60):
        hardness = rng.random((200, 1))
        found = compare_frontiers(
            strategy(rng, hardness, DELEGATE), strategy(rng, hardness, MONOLITHIC), "total_tokens", boot
        )
        truth = true_gap(DELEGATE, MONOLITHIC, found.grid)
        hits += all(g.low - 1e-9 <= t <= g.high + 1e-9 for g, t in zip(found.gap, truth, strict=True))
        assert found.verdict is Verdict.BOTH, "worse at few tokens, better at many"
        assert len(found.grid) == GRID
    assert hits >= 52  # nominal 57; fewer than 52 of 60 would have a chance of .004


def test_equal_policies_are_seldom_told_apart() -> None:
    rng, boot = np.random.default_rng(2), resampler(100, resamples=400)
    verdicts = []
    for _ in range(60):
        hardness = rng.random((100, 1))
        pair = [strategy(rng, hardness, DELEGATE) for _ in range(2)]
        verdicts.append(compare_frontiers(pair[0], pair[1], "total_tokens", boot).verdict)
    assert verdicts.count(Verdict.NO_DIFFERENCE) >= 52


def test_a_difference_below_the_stated_minimum_has_no_verdict() -> None:
    both, more = share(30, 1000), share(45, 1000)
    boot = resampler(1000)
    for least, verdict in ((0.0, Verdict.AHEAD), (0.02, Verdict.NO_DIFFERENCE)):  # .045 - .030 = .015, and it is clear
        assert compare_points(point(1, more, 50), point(1, both, 50), boot, COSTS, least).verdict is verdict
        found = compare_frontiers([point(1, more, 50)], [point(1, both, 50)], "total_tokens", boot, least)
        assert found.verdict is verdict
        assert bool(found.ahead) == (verdict is Verdict.AHEAD)


# In words


def compared(first: list[Point], second: list[Point]) -> str:
    found = compare_frontiers(first, second, "total_tokens", resampler(len(first[0].correct)))
    return describe_frontier(found, "a", "b")


def test_the_sentence_says_who_is_ahead_and_where() -> None:
    # a: .9 at 50. b: .5 at 100, half of it at 50.
    said = compared([point(1, share(36), 50.0)], [point(1, share(20), 100.0)])
    assert said.startswith("total tokens: a is ahead from 50 to 100 (by up to +0.65 [")
    assert "behind" not in said


def test_the_sentence_says_where_it_loses() -> None:
    # a: .2 at 20, .9 at 100. b: .6 at 20. The two meet where .2 + .7 (c - 20) / 80 = .6, at 65.7.
    said = compared([point(1, share(8), 20.0), point(2, share(36), 100.0)], [point(1, share(24), 20.0)])
    assert "behind from 20 to " in said
    assert "(by up to -0.40 [" in said
    assert "ahead from " in said
    assert "to 100 (by up to +0.30 [" in said
    lost = compared([point(1, share(36), 100.0)], [point(1, share(24), 20.0)])
    # a: .9 c / 100, which is .6 at 66.7
    assert "to 100 (by up to +0.30" in lost
    assert "behind from 20 to " in lost
    assert "(by up to -0.42" in lost


def test_the_sentence_claims_nothing_of_equal_strategies_or_of_few_instances() -> None:
    both = [point(1, share(30), 50.0)]
    assert "no clear difference between a and b at any equal cost; on average +0.00" in compared(both, both)
    few = compared([point(1, share(10, 10), 50.0)], [point(1, share(0, 10), 50.0)])
    assert "fewer than 20 instances, no verdict on a and b" in few


def said_at_budget(first: Point, second: Point) -> str:
    return describe_points(compare_points(first, second, resampler(len(first.correct)), COSTS), "a", "b")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((36, 50), (12, 50), "a is more accurate and dearer in no cost: it dominates (+0.60"),
        ((36, 60), (12, 50), "a is more accurate (+0.60"),
        ((12, 60), (36, 50), "a is less accurate and cheaper in no cost: it is dominated (-0.60"),
        ((12, 40), (36, 50), "a is less accurate (-0.60"),
        ((30, 40), (30, 50), "no clear difference of accuracy; a is cheaper in every cost (+0.00"),
        ((30, 60), (30, 50), "no clear difference of accuracy; a is dearer in every cost (+0.00"),
        ((30, 50), (30, 50), "no clear difference of accuracy (+0.00"),
    ],
)
def test_one_budget_in_words(first: tuple[int, float], second: tuple[int, float], words: str) -> None:
    said = said_at_budget(point(1, share(first[0]), first[1]), point(1, share(second[0]), second[1]))
    assert said.startswith(f"a against b: {words}")


def test_who_could_not_begin_has_no_cost_to_compare() -> None:
    """No ratio to nothing, and no frontier of it."""
    lost, won = point(1, share(0), np.nan), point(1, share(30), 50.0)
    said = said_at_budget(won, lost)
    assert "a is more accurate (+0.75" in said
    assert said.endswith("no instance whose prompt fitted both)")
    assert "inf" not in said + said_at_budget(lost, won)
    found = compare_frontiers([won], [lost], "total_tokens", resampler(40))
    assert found.verdict is Verdict.NO_COST
    assert "no prompt of a or of b fitted" in describe_frontier(found, "a", "b")


def test_ratios_are_of_the_instances_that_both_could_begin() -> None:
    # The first could not begin the second half; there the other paid 90 each.
    half, other = np.array([[20.0]] * 20 + [[np.nan]] * 20), np.array([[10.0]] * 20 + [[90.0]] * 20)
    found = compare_points(point(1, share(20), half), point(1, share(30), other), resampler(40), COSTS)
    assert found.ratios["total_tokens"].mean == 2


def test_an_instance_that_could_not_begin_spent_nothing() -> None:
    """Half of the instances are asked for 20 each and all right: .5 at a mean of 10, as a coin between 0 and 20 is."""
    half = point(1, share(20), np.array([[20.0]] * 20 + [[np.nan]] * 20))
    whole = point(1, share(40), 20.0)
    found = compare_frontiers([half], [whole], "total_tokens", resampler(40))
    assert found.grid[0] == 10
    assert found.gap[0].mean == pytest.approx(0)
    assert found.gap[-1].mean == pytest.approx(-0.5)


def test_the_limits_of_a_study_are_its_largest_budget() -> None:
    """They came first, so headline and warnings of `budgets: [40, null]` were those of 40 tokens."""
    points = [point(budget, np.ones((3, 1)), np.ones((3, 1))) for budget in (None, 240, 40)]
    assert [found.budget for found in sorted(points, key=lambda found: found.order)] == [40, 240, None]


def test_rl_is_not_judged_on_a_few_instances() -> None:
    """One instance that was wrong before and right after gave *RL made it more accurate*, with [1.00, 1.00]."""
    shift = ShiftAccuracy(None, None)
    for number, words in ((3, "fewer than 20 instances, no verdict on RL of d"), (30, "RL made d more accurate")):
        change = with_equal_differences(Estimate(1.0, 1.0, 1.0), np.ones((number, 1)))
        accuracy = VariantAccuracy("f", "d", 1.0, shift, True, number, 0.0, change)
        assert describe_learning(accuracy, {"d": "d"}, 0.05).startswith(words)
