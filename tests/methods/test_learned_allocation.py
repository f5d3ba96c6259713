"""An allocation of tasks that is learned in simulation, against an adversary over classes of problems."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from test_sampling import menu, played, proposed

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_methods.learned_allocation import (
    CLASS_SHARES,
    NUM_FEATURES,
    LearnedAllocation,
    Simulation,
    compute_complexity,
    compute_features,
    compute_neighbours,
    compute_probabilities,
    compute_value,
    draw_classes,
    learn_best_losses,
    learn_policy,
    learn_weights,
)
from selfcest_training.families import Bucket
from selfcest_training.stages.registry import make_task_sampler

GROUP_SIZE = 8
SIMULATION = Simulation(GROUP_SIZE, tasks=4, rounds=6)
UNIFORM = np.zeros(NUM_FEATURES)


@pytest.mark.slow
def test_the_adversary_improves_the_worst_class_and_every_class_needs_fewer_queries_than_uniformly() -> None:
    classes = draw_classes(GROUP_SIZE, np.random.default_rng(0))
    best_losses = learn_best_losses(SIMULATION, classes, np.random.default_rng(1))
    learned = {}
    for rate in (0.0, 5.0):
        learned[rate] = learn_weights(SIMULATION, classes, CLASS_SHARES, best_losses, rate, np.random.default_rng(2))
    fresh = draw_classes(GROUP_SIZE, np.random.default_rng(100), problems_per_class=100)

    def losses(weights: np.ndarray, problems: np.ndarray, simulation: Simulation = SIMULATION) -> np.ndarray:
        return simulation.compute_losses(weights, problems, 16, np.random.default_rng(3))

    on_average, robust = learned[0.0], learned[5.0]
    # On the problems of training, where the best loss of each class is known.
    gaps_on_average = losses(on_average, classes) - best_losses
    robust_gaps = losses(robust, classes) - best_losses
    assert gaps_on_average.argmax() == 2, "the mean over problems neglects the rare class"
    assert robust_gaps.max() < 0.7 * gaps_on_average.max()
    # On problems that no policy was learned on.
    fresh_on_average = losses(on_average, fresh)
    fresh_robust = losses(robust, fresh)
    assert fresh_robust[2] < fresh_on_average[2] - 0.02
    assert (fresh_robust < fresh_on_average + 0.025).all(), "the other classes pay little"
    # A share of 1 - loss of the most possible groups have both outcomes. The uniform allocation has half as many
    # queries more, and finds fewer of these groups.
    longer = Simulation(GROUP_SIZE, tasks=4, rounds=9)
    assert (1.5 * (1 - losses(UNIFORM, fresh, longer)) < 1 - fresh_robust).all()


@pytest.mark.slow
def test_the_gradient_is_that_of_the_expected_loss() -> None:
    simulation = Simulation(4, tasks=2, rounds=2)
    weights = np.linspace(-1, 1, NUM_FEATURES)
    problem = draw_classes(4, np.random.default_rng(0), problems_per_class=1)[1]
    rates = np.repeat(problem, 40_000, axis=0)
    losses, scores = simulation.play(weights, rates, np.random.default_rng(1))
    later_losses = losses[:, ::-1].cumsum(1)[:, ::-1]
    direction = np.ones(NUM_FEATURES)
    along = (later_losses - later_losses.mean(0))[..., None] * scores @ direction[:, None]
    slopes = along.sum(axis=(1, 2))

    step = 0.05
    ends = []
    for sign in (-1, 1):
        moved, _ = simulation.play(weights + sign * step * direction, rates, np.random.default_rng(2))
        ends.append(moved.sum(1))
    difference = (ends[1].mean() - ends[0].mean()) / (2 * step)
    error = np.hypot(slopes.std(), np.hypot(ends[0].std(), ends[1].std()) / (2 * step)) / np.sqrt(len(rates))
    assert abs(slopes.mean()) > 3 * slopes.std() / np.sqrt(len(rates)), "a slope of 0 would show nothing"
    assert abs(slopes.mean() - difference) < 4 * error


def test_complexity_counts_wasted_groups() -> None:
    decided = 0.001
    easy, needle = compute_complexity(np.array([[0.5, 0.5, 0.5, 0.5], [0.5, decided, decided, decided]]), GROUP_SIZE)
    assert easy == 0, "no group is wasted where all buckets are equal"
    gap = 1 - compute_value(np.array(decided), GROUP_SIZE) / compute_value(np.array(0.5), GROUP_SIZE)
    assert needle == pytest.approx(3 * gap), "one group tells each decided bucket apart"
    # A rare success and none at all differ by 0.0173 nats per outcome.
    hard = compute_complexity(np.array([[0.02, decided]]), GROUP_SIZE)[0]
    rates = np.array([decided, 0.02])
    values = compute_value(rates, GROUP_SIZE)
    divergence = decided * np.log(decided / 0.02) + (1 - decided) * np.log((1 - decided) / 0.98)
    assert hard == pytest.approx((1 - values[0] / values[1]) / (GROUP_SIZE * divergence))
    assert hard > needle


def test_outcomes_count_for_the_neighbouring_sizes_of_their_family() -> None:
    buckets = [Bucket("a", 2), Bucket("a", 16), Bucket("a", 4), Bucket("b", 2), Bucket("a", None)]
    weights = compute_neighbours(buckets)
    assert weights[0].tolist() == [0, 0.25, 0.5, 0, 0], "by the rank of the size"
    assert (weights == weights.T).all()
    assert not weights[3:].any()
    rollouts = np.array([8.0, 8, 0, 0, 0])
    features = compute_features(rollouts, np.array([8.0, 0, 0, 0, 0]), weights, 0.5, GROUP_SIZE)
    assert features[2, 4] == 1, "between right and wrong the rate is a half"
    assert features[0, 0] < 0.5 < features[2, 0]
    assert features[:, 5:] == pytest.approx(0.5 * features[:, :5])


@pytest.mark.slow
def test_the_same_seed_learns_the_same_policy_which_prefers_mixed_outcomes_and_forgets_them() -> None:
    sampler = LearnedAllocation(budget=8, tasks=4)
    buckets = [Bucket("a", 1), Bucket("b", 1), Bucket("c", 1)]
    before = sampler.get_probabilities(buckets, GROUP_SIZE)
    assert list(before.values()) == pytest.approx([1 / 3] * 3)
    mixed: Sequence[bool] = [True, False] * 4
    for step in range(3):
        sampler.observe(step, [played("a", [True] * 8), played("b", mixed)])
    after = sampler.get_probabilities(buckets, GROUP_SIZE)
    assert after[buckets[0]] < 0.1
    assert after[buckets[1]] > after[buckets[0]]
    weights = learn_policy(Simulation(GROUP_SIZE, 4, 2), 5.0, 0)
    assert learn_policy.__wrapped__(Simulation(GROUP_SIZE, 4, 2), 5.0, 0) == weights

    again = LearnedAllocation(budget=8, tasks=4)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert again.get_probabilities(buckets, GROUP_SIZE) == after
    sampler.observe(3, [played("a", mixed), played("a", mixed)])
    assert sampler.get_probabilities(buckets, GROUP_SIZE) == before, "after eight groups a new budget begins"


@pytest.mark.slow
def test_a_pool_of_many_tasks_of_one_bucket_does_not_raise_its_share() -> None:
    sampler = LearnedAllocation(budget=8, tasks=4, pool=16)
    often = replace(menu(GROUP_SIZE, a=(1,), b=(1,)), weights={"a": 9.0, "b": 1.0})
    assert [plan.num_rollouts for plan in proposed(sampler, often, 4)] == [GROUP_SIZE] * 4
    shares = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        shares += [plan.task.metadata["family"] == "b" for plan in sampler.propose(0, 1, often, rng)]
    # A pool of 16 tasks lacks `b` with a chance of 0.19, so the share is 0.41 and not 0.1.
    assert 0.3 < np.mean(shares) < 0.52


def test_probabilities_sum_to_one() -> None:
    assert compute_probabilities(np.array([[0.0, 1e4], [1.0, 1.0]])).tolist() == [[0, 1], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": 10}, "budget is 10; expected a multiple of tasks, which is 4"),
        ({"tasks": 0}, "tasks is 0"),
        ({"adversary": -1.0}, "adversary is -1"),
        ({"pool": 0}, "pool is 0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_task_sampler(PlugIn("learned_allocation", options), "rl.task_sampler")
