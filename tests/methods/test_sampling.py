"""Task samplers and filters of the literature: which tasks, how many rollouts; each on a case small enough to know."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import agent, turn
from test_job import config, crash_and_resume, play, rows, weights
from test_outages import LIMITS, PLANS, player

from selfcest_env.errors import ConfigError, RewardError, TrainingError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeGroup, EpisodeRecord, read_episodes
from selfcest_env.types import ROOT, Limits, Outcome, Task
from selfcest_methods.active import Active, ConsistencySums, compute_consistency
from selfcest_methods.buckets import SuccessSums, draw_from_menu
from selfcest_methods.clpo import Clpo
from selfcest_methods.curriculum import Curriculum
from selfcest_methods.dots import Dots
from selfcest_methods.downsampled import Downsampled
from selfcest_methods.eva import Eva, ReturnSpread
from selfcest_methods.knapsack import Knapsack, compute_values, solve_knapsack
from selfcest_methods.mopps import Mopps
from selfcest_methods.reinforce_ada import ReinforceAda
from selfcest_methods.scaler import Knob, Scaler
from selfcest_methods.state_zero import StateZero, TaskFeatures, TaskValue, get_task_features
from selfcest_methods.v0 import V0
from selfcest_training.credit import Credit, CreditAssigner, Rloo, make_assigner
from selfcest_training.families import Bucket
from selfcest_training.stages import checks
from selfcest_training.stages.base import FilterResult, PlannedGroup, TaskMenu
from selfcest_training.stages.crediting import play_counterfactuals
from selfcest_training.stages.registry import make_task_sampler
from selfcest_training.stages.rollout_batch import RolloutBatch, play_groups, remove_episodes

PLAY: dict[str, Any] = {"step": 0, "seed": 0, "temperature": 1.0, "weights": {}}


# Limits of a group


def test_a_group_is_played_and_replayed_under_the_limits_of_its_plan() -> None:
    tight = replace(LIMITS, total_tokens=90)
    plans = [PLANS[0], replace(PLANS[1], limits=tight), replace(PLANS[2], limits=LIMITS)]
    playing = player()
    groups, _ = play_groups(playing, plans, **PLAY)
    assert [{episode.limits for episode in group.episodes} for group in groups] == [{LIMITS}, {tight}, {LIMITS}]
    assert max(episode.cost.total_tokens for episode in groups[1].episodes) <= 90
    usual, _ = play_groups(playing, PLANS, **PLAY)
    assert [groups[0], groups[2]] == [usual[0], usual[2]], "the others play as they would without"
    assert groups[1] != usual[1]
    found = play_counterfactuals(
        make_assigner("coma", {}, where=""), groups, partial(playing.play_replays, temperature=1.0)
    )
    limits = [{played.record.limits for played in of_group.values()} for of_group in found]
    assert limits == [{LIMITS}, {tight}, {LIMITS}]


def test_limits_that_are_none_are_refused_by_the_sampler_s_name() -> None:
    class Odd:
        def propose(self, *_: Any) -> Any:
            return [PlannedGroup(PLANS[0].task, 2, {"total_tokens": 9})]  # type: ignore[arg-type]

    with pytest.raises(TrainingError, match="task sampler Odd, step 3: proposed .*its limits a Limits or None"):
        checks.propose(Odd(), 3, 4, None, None)  # type: ignore[arg-type]


# Groups that a group filter has made of episodes


def test_groups_that_a_gate_has_made_wait_in_a_checkpoint_with_their_replays() -> None:
    playing, scheme = player(), make_assigner("coma", {}, where="")
    first, _ = play_groups(playing, PLANS, **PLAY)
    second, _ = play_groups(playing, PLANS[:1], after=PLANS, **PLAY)
    joined = EpisodeGroup(PLANS[0].task, (*first[0].episodes, *second[0].episodes))
    part = EpisodeGroup(PLANS[2].task, first[2].episodes[1:3])
    played = play_counterfactuals(scheme, (joined, part), partial(playing.play_replays, temperature=1.0))
    groups = (*first, *second)
    produced = RolloutBatch(groups, (joined, part), played, planned_episodes=12, rounds=2)
    assert RolloutBatch.from_json(json.loads(json.dumps(produced.to_json())), scheme) == produced
    dropped = [*first[1].episodes, first[2].episodes[0], first[2].episodes[3]]
    found = produced.diagnostics()
    assert (found["gate/dropped_groups"], found["gate/rounds"]) == (1, 2)
    assert found["gate/dropped_tokens"] == sum(episode.cost.generated_tokens for episode in dropped)
    rest = remove_episodes(groups, [*joined.episodes, part.episodes[0]])
    assert [[e.episode_id for e in group.episodes] for group in rest] == [
        [f"s0.g1.e{k}" for k in range(4)],
        ["s0.g2.e0", "s0.g2.e2", "s0.g2.e3"],
    ]


# What is remembered of buckets


@dataclass(frozen=True)
class Sized:
    """A source whose tasks differ by number; of one size, or of sizes in turn by the draw."""

    sizes: tuple[int, ...] = (1,)

    def draw(self, rng: np.random.Generator) -> Task:
        number = int(rng.integers(10**9))
        size = self.sizes[number % len(self.sizes)]
        return Task(f"sized-{number}-{size}", f"{number}?", "1", "sized", metadata={"family": "sized", "size": size})


def menu(group_size: int = 8, **sources: tuple[int, ...]) -> TaskMenu:
    return TaskMenu({name: Sized(s) for name, s in sources.items()}, dict.fromkeys(sources, 1.0), group_size)


def played(
    family: str,
    right: Sequence[bool],
    *,
    size: int = 1,
    tokens: int = 10,
    name: str = "g",
    of: EpisodeGroup | None = None,
) -> EpisodeGroup:
    """A group of a bucket, or of another group's task: who was right, and tokens of a tree of two, half a clone's."""
    task = Task(f"{family}-{size}-{name}", "?", "1", "sized", metadata={"family": family, "size": size})
    task = task if of is None else of.task
    clone = ROOT.child(0)
    half = turn((1,), (2,) * (tokens // 2 - 1), outcome=Outcome.DELEGATED, children=(clone,))
    agents = agent(ROOT, half), agent(clone, turn((1,), (2,) * (tokens - tokens // 2 - 1)))
    return EpisodeGroup(
        task,
        tuple(
            EpisodeRecord(f"{name}.e{k}", task, Limits(), 0, agents, {"correct": float(one)})
            for k, one in enumerate(right)
        ),
    )


RIGHT, WRONG = True, False


def test_tallies_by_hand() -> None:
    remembers, spread = Knapsack(decay=0.5), Eva(decay=0.5)
    remembers.observe(0, [played("a", [RIGHT, WRONG, WRONG, WRONG], tokens=20)])
    remembers.observe(0, [played("a", [RIGHT] * 4, tokens=40), played("a", [RIGHT], size=2)])
    remembers.observe(1, [played("a", [WRONG] * 2)])
    small, large = (remembers.memory.sums_by_bucket[Bucket("a", size)] for size in (1, 2))
    assert small == SuccessSums(0.5 * 8 + 2, 0.5 * 5, 0.5 * (80 + 160) + 20)
    assert (small.success_rate, small.tokens_per_rollout) == (2.5 / 6, 140 / 6)
    assert large == SuccessSums(0.5, 0.5, 5.0)
    spread.observe(0, [played("a", [RIGHT, WRONG, WRONG, WRONG]), played("a", [RIGHT] * 4)])
    spread.observe(1, [played("a", [WRONG] * 2)])
    expected = ReturnSpread(0.5 * 8 + 2, 0.5 * 2 + 1, 0.5 * 0.1875, 0.5, 0.5 * 0.75)
    assert spread.memory.sums_by_bucket == {Bucket("a", 1): expected}
    for one, again in ((remembers, Knapsack(decay=0.5)), (spread, Eva(decay=0.5))):
        again.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert again.memory == one.memory


def test_a_bucket_that_has_faded_out_is_forgotten() -> None:
    for sampler in (Knapsack(decay=0.0), Dots(decay=0.0), Eva(decay=0.0)):
        sampler.observe(0, [played("a", [RIGHT, WRONG])])
        sampler.observe(1, [played("b", [RIGHT, WRONG])])
        assert [bucket.family for bucket in sampler.memory.sums_by_bucket] == ["b"], "and nothing of the step before"
        assert len(proposed(sampler, menu(a=(1,), b=(1,)), 4)) == 4
    slow = Dots(decay=0.5)
    for step in range(12):
        slow.observe(step, [played("b" if step else "a", [RIGHT, WRONG])])
    assert [bucket.family for bucket in slow.memory.sums_by_bucket] == ["b"], "2 / 2048 rollouts of a"


def test_eva_needs_no_success() -> None:
    group = played("a", [RIGHT, WRONG])
    episodes = tuple(replace(e, reward_terms={"score": e.reward_terms["correct"]}) for e in group.episodes)  # type: ignore[index]
    sampler = Eva()
    sampler.observe(0, [EpisodeGroup(group.task, episodes)])
    assert sampler.memory.sums_by_bucket[Bucket("a", 1)].gap == 1
    for name, options in (("eva", {"term": "correct"}), ("eva", {"tokens": "reads"}), ("dots", {"tokens": "reads"})):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make_task_sampler(PlugIn(name, options), "rl.task_sampler")


def test_success_is_a_term_that_the_reward_has() -> None:
    with pytest.raises(RewardError, match="term is 'corect', but the reward has no such term. Did you mean 'corr"):
        Dots(term="corect").observe(0, [played("a", [RIGHT])])


def test_two_families_of_one_source_are_two_buckets() -> None:
    tasks = [draw_from_menu(menu(own=(3,), other=(3,)), np.random.default_rng(i)) for i in range(20)]
    assert {Bucket.of(task) for task in tasks} == {Bucket("own", 3), Bucket("other", 3)}


# Knapsack


def test_the_knapsack_is_that_of_brute_force() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        rates, tokens = rng.uniform(0.02, 0.98, size=3), rng.integers(1, 9, size=3).astype(float)
        counts, budget = np.arange(2, 7), int(tokens.sum() * rng.integers(2, 7))
        values = compute_values(rates, counts)
        chosen = solve_knapsack(values, counts, tokens, budget, resolution=10**6)
        assert counts[chosen] @ tokens <= budget
        choices = [c for c in itertools.product(range(5), repeat=3) if counts[list(c)] @ tokens <= budget]
        best = max(sum(values[i, k] for i, k in enumerate(choice)) for choice in choices)
        assert sum(values[range(3), chosen]) == pytest.approx(best, abs=1e-12)


def test_a_coarse_table_is_never_over_budget_and_close() -> None:
    rng = np.random.default_rng(1)
    rates, tokens, counts = rng.uniform(0.05, 0.95, size=12), rng.uniform(200, 900, size=12), np.arange(2, 33)
    values, budget = compute_values(rates, counts), 8 * tokens.sum()
    found = [solve_knapsack(values, counts, tokens, budget, resolution) for resolution in (512, 20_000)]
    coarse, fine = (values[range(12), chosen].sum() for chosen in found)
    assert all(counts[chosen] @ tokens <= budget for chosen in found)
    assert 0.995 * fine < coarse <= fine + 1e-12
    uniform = values[:, list(counts).index(8)].sum()
    assert fine > 1.03 * uniform


def test_value_by_hand() -> None:
    assert compute_values(np.array([0.5]), np.array([2, 3])).tolist() == [[0.5 * 0.125, 0.75 * 0.125]]


def test_the_paper_s_rates_of_zero_and_one() -> None:
    knapsack, same = Knapsack(max_rollouts=20), np.full(4, 10.0)
    assert knapsack.allocate(np.array([1.0, 1.0, np.nan, np.nan]), same, 8) == [8, 8, 8, 8], "uniform"
    assert knapsack.allocate(np.array([0.0, 0.0, 1.0, np.nan]), same, 8) == [11, 11, 2, 8], "what is left"
    # log(1 - 0.9) / log(0.5) is 3.3: four rollouts have both outcomes often enough, the others go to rate 0
    assert knapsack.allocate(np.array([0.5, 0.5, 0.0, 1.0]), same, 8) == [4, 4, 20, 2]
    assert knapsack.allocate(np.array([0.5, 0.5, 1.0, 1.0]), same, 8) == [14, 14, 2, 2]
    assert knapsack.allocate(np.full(4, np.nan), same, 8) == [8] * 4


def proposed(sampler: Any, menu: TaskMenu, count: int, step: int = 1) -> list[PlannedGroup]:
    plans: list[PlannedGroup] = checks.propose(sampler, step, count, menu, np.random.default_rng(5))
    return plans


def test_rollouts_go_to_the_undecided_and_to_the_cheap() -> None:
    halves, knapsack = [RIGHT, WRONG] * 4, Knapsack(max_rollouts=32)
    knapsack.observe(0, [played("known", [RIGHT] * 8), played("even", halves), played("dear", halves, tokens=20)])
    plans = proposed(knapsack, menu(known=(1,), even=(1,), dear=(1,)), 12)
    sizes = {plan.task.metadata["family"]: plan.num_rollouts for plan in plans}
    cost = {"known": 10, "even": 10, "dear": 20}
    assert sizes["known"] == 2 < sizes["dear"] < sizes["even"]
    families = [str(plan.task.metadata["family"]) for plan in plans]
    assert sum(plan.num_rollouts * cost[f] for plan, f in zip(plans, families, strict=True)) <= 8 * sum(
        cost[f] for f in families
    )
    fresh = proposed(Knapsack(), menu(known=(1,), even=(1,), dear=(1,)), 12)
    assert {plan.num_rollouts for plan in fresh} == {8}, "nothing is known yet"
    assert [plan.task for plan in fresh] == [plan.task for plan in plans], "only numbers differ"


def test_a_knapsack_of_a_group_size_that_it_cannot_hand_out() -> None:
    with pytest.raises(ConfigError, match="rl.group_size is 8; expected a number from min_rollouts = 9 to"):
        checks.check_menu(Knapsack(min_rollouts=9), menu(a=(1,)))
    with pytest.raises(ConfigError, match=r"rl.task_sampler.options.min_rollouts is 9, above max_rollouts = 4"):
        make_task_sampler(PlugIn("knapsack", {"min_rollouts": 9, "max_rollouts": 4}), "rl.task_sampler")


# Reinforce-Ada


def test_a_task_goes_on_until_it_has_enough_of_both() -> None:
    """Two rounds of four: the first task is done at once, the second after a round, the third never."""
    group_filter = ReinforceAda(size=4, max_rounds=3)
    done = played("a", [RIGHT, WRONG, RIGHT, WRONG], name="g0")
    slow, hopeless = played("b", [RIGHT, WRONG, WRONG, WRONG], name="g1"), played("c", [WRONG] * 4, name="g2")
    first = checks.filter_groups(group_filter, 0, [done, slow, hopeless], 3, 1)
    assert first.further_rollouts == (PlannedGroup(slow.task, 4, Limits()), PlannedGroup(hopeless.task, 4, Limits()))
    more = played("b", [WRONG, WRONG, RIGHT, WRONG], name="g3", of=slow)
    again = played("c", [WRONG] * 4, name="g4", of=hopeless)
    second = checks.filter_groups(group_filter, 0, [done, slow, hopeless, more, again], 3, 2)
    assert [plan.task for plan in second.further_rollouts] == [hopeless.task]
    assert second.groups == (
        done,
        EpisodeGroup(slow.task, slow.episodes + more.episodes),
        EpisodeGroup(hopeless.task, hopeless.episodes + again.episodes),
    )
    third = checks.filter_groups(group_filter, 0, [done, slow, hopeless, more, again], 3, 3)
    assert third.further_rollouts == (), "no more rounds"
    assert third.groups == second.groups
    positive = checks.filter_groups(replace(group_filter, enough="positive"), 0, [done, slow, hopeless], 3, 1)
    assert [plan.task for plan in positive.further_rollouts] == [hopeless.task]
    assert ReinforceAda(max_rounds=1).filter(0, [done, slow], 2, 1) == FilterResult((done, slow))
    tight = Limits(total_tokens=100)
    other = EpisodeGroup(slow.task, tuple(replace(episode, limits=tight) for episode in more.episodes))
    apart = group_filter.filter(0, [slow, more, other], 3, 1)
    assert [len(group.episodes) for group in apart.groups] == [8, 4], "drawn twice it is one task; of other limits, two"
    assert apart.further_rollouts == (PlannedGroup(slow.task, 4, tight),)


def test_down_sampling_trains_both_outcomes_with_the_baseline_of_all() -> None:
    group = played("a", [RIGHT, WRONG, WRONG, WRONG, WRONG, WRONG])
    credit, whole = Downsampled(size=4).assign(group, {}), Rloo().assign(group, {})
    trained = sorted({key.episode_id for key in credit.advantage})
    assert len(trained) == 4
    assert trained[0] == "g.e0", "the only right one"
    assert all(credit.advantage[key] == whole.advantage[key] for key in credit.advantage)
    assert credit.excluded == whole.advantage.keys() - credit.advantage.keys()
    assert len(credit.advantage) == 2 * 4, "whole trees, a root and a clone each"
    weights = Downsampled(size=4, reweigh=True).assign(group, {}).weight
    assert {key.episode_id: weight for key, weight in weights.items()} == pytest.approx(
        {name: (1 / 1 if name == "g.e0" else 5 / 3) * 4 / 6 for name in trained}
    )
    few = Downsampled(size=9, reweigh=True).assign(group, {})
    assert (few.advantage, set(few.weight.values())) == (whole.advantage, {1.0})
    alike = played("a", [WRONG] * 5)
    assert len(Downsampled(size=4).assign(alike, {}).advantage) == 2 * 4


def test_down_sampling_is_of_a_term_and_of_a_pure_scheme() -> None:
    with pytest.raises(RewardError, match="term is 'score', but the reward has no such term"):
        Downsampled(term="score").assign(played("a", [RIGHT, WRONG]), {})
    with pytest.raises(ConfigError, match="scheme is 'critic', which learns"):
        Downsampled(PlugIn("critic"))


def ascent(group: EpisodeGroup, credit: Credit, rate: float) -> float:
    """The roots' part of the sum over what trains of A * d log pi / d logit, of a bandit that is right at this rate."""
    scores = {e.episode_id: (1 - rate) if e.reward_terms == {"correct": 1.0} else -rate for e in group.episodes}
    turns = [key for key in credit.advantage if key.agent_id == ROOT]
    return sum(float(credit.weighted(key, 1)[0]) * scores[key.episode_id] for key in turns)


def outcomes(rate: float, count: int) -> Iterator[tuple[float, tuple[bool, ...]]]:
    """What a bandit can bring in so many rollouts, with its probability."""
    for right in itertools.product((True, False), repeat=count):
        yield rate ** sum(right) * (1 - rate) ** (count - sum(right)), right


def expected_ascent(scheme: CreditAssigner, rate: float, count: int) -> float:
    """Exact, over how many of a group of so many are right, of the gradient of as many rollouts."""
    total = 0.0
    for right in range(count + 1):
        group = played("a", [True] * right + [False] * (count - right))
        probability = math.comb(count, right) * rate**right * (1 - rate) ** (count - right)
        total += probability * ascent(group, scheme.assign(group, {}), rate)
    return total / (count * rate * (1 - rate))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_what_down_sampling_does_to_the_gradient_exactly(rate: float) -> None:
    """Reweighed it is n / N of the gradient at every rate; else rates near 0 and 1 count for more."""
    assert expected_ascent(Rloo(), rate, 8) == pytest.approx(1)
    assert expected_ascent(Downsampled(size=4, reweigh=True), rate, 8) == pytest.approx(4 / 8)
    half = expected_ascent(Downsampled(size=4), rate, 8)
    assert half == pytest.approx({0.1: 0.9026, 0.5: 0.5536, 0.8: 0.7724}[rate], abs=1e-4)
    factor = 4 * (rate**2 + (1 - rate) ** 2) / (2 * 48 * rate * (1 - rate))
    assert expected_ascent(Downsampled(size=4), rate, 48) == pytest.approx(factor, rel=0.05), "of large groups"


def adaptive(rate: float, enough: str, rounds: int = 2) -> tuple[float, float]:
    """Exact expectations of a group's mean and of its ascent per planned rollout, in rounds of two."""
    group_filter, mean, gain = ReinforceAda(size=2, max_rounds=rounds, enough=enough), 0.0, 0.0  # type: ignore[arg-type]
    for probability, right in outcomes(rate, 2 * rounds):
        groups = [played("a", right[:2], name="g0")]
        while again := group_filter.filter(0, groups, 1, len(groups)).further_rollouts:
            (plan,) = again
            start = 2 * len(groups)
            groups.append(played("a", right[start : start + plan.num_rollouts], name=f"g{start}", of=groups[0]))
        (whole,) = group_filter.filter(0, groups, 1, rounds).groups
        mean += probability * sum(e.team_return for e in whole.episodes) / len(whole.episodes)
        gain += probability * ascent(whole, Rloo().assign(whole, {}), rate) / 2
    return mean, gain


def test_stopping_early_biases_the_baseline_exactly_so_much() -> None:
    for rate in (0.1, 0.25, 0.5):
        mean, _ = adaptive(rate, "positive")
        assert mean == pytest.approx(rate + rate * (1 - rate) ** 2 / 2), "too good: it stops when it was lucky"
        assert adaptive(rate, "positive", rounds=1)[0] == pytest.approx(rate)
        fair, gain = adaptive(rate, "balanced", rounds=1)
        assert (fair, gain) == pytest.approx((rate, rate * (1 - rate))), "one round is plain rloo"
    assert adaptive(0.5, "balanced")[0] == pytest.approx(0.5), "by symmetry"
    low, high = (adaptive(rate, "balanced")[1] / (rate * (1 - rate)) for rate in (0.1, 0.5))
    assert low > high > 1, "of the gradient of every task more, and most of those that are rarely right"


# The value at state zero


def test_a_task_s_value_follows_size_by_family_and_forgets() -> None:
    value_of = TaskValue(decay=0.5, ridge=1e-3, link="logit")
    assert math.isnan(value_of(TaskFeatures("a", 1.0, 0, 0)))
    rates = {
        TaskFeatures("a", 1.0, 0, 0): 0.9,
        TaskFeatures("a", 3.0, 0, 0): 0.5,
        TaskFeatures("a", 7.0, 0, 0): 0.1,
        TaskFeatures("b", 1.0, 0, 0): 0.2,
    }
    found = [(cell, float(k < 10 * rate)) for cell, rate in rates.items() for k in range(10)]
    value_of.fit(found)
    assert {cell: value_of(cell) for cell in rates} == pytest.approx(rates, abs=0.02)
    assert 0.1 < value_of(TaskFeatures("a", 5.0, 0, 0)) < 0.5, "a size that was never seen"
    again = TaskValue(decay=0.5, ridge=1e-3, link="logit")
    again.load_state_dict(json.loads(json.dumps(value_of.state_dict())))
    assert again(TaskFeatures("a", 5.0, 0, 0)) == value_of(TaskFeatures("a", 5.0, 0, 0))
    for _ in range(6):
        value_of.fit([(TaskFeatures("b", 1.0, 0, 0), 1.0)] * 10)
    assert value_of(TaskFeatures("b", 1.0, 0, 0)) > 0.95
    for _ in range(20):
        value_of.fit([(TaskFeatures("b", 1.0, 0, 0), 1.0)])
    assert list(value_of.sums) == [TaskFeatures("b", 1.0, 0, 0)]


def test_a_family_that_was_not_seen_is_worth_the_mean_of_those_that_were() -> None:
    """And not what a regression says of size 0, which here would be 0.5 + 0.3 log 31 / log 10 and more."""
    value_of = TaskValue(decay=1.0, ridge=0.1, link="identity")
    for family, shift in (("a", 0.0), ("b", 0.1)):
        value_of.fit(
            [(TaskFeatures(family, size, 0, 100), 0.8 + shift - 0.6 * k) for k, size in enumerate((20.0, 200.0))] * 20
        )
    assert value_of(TaskFeatures("c", 20.0, 0, 100)) == pytest.approx(0.55, abs=0.02)
    assert value_of(TaskFeatures("c", 500.0, 0, 100)) == pytest.approx(0.55, abs=0.02)


def test_without_a_budget_is_not_the_tightest_budget() -> None:
    value_of = TaskValue(decay=1.0, ridge=1e-3, link="identity")
    rates: dict[int | None, float] = {100: 0.1, 1000: 0.5, None: 0.9}
    value_of.fit([(TaskFeatures("a", 1.0, 0, budget), rate) for budget, rate in rates.items()] * 50)
    assert {budget: value_of(TaskFeatures("a", 1.0, 0, budget)) for budget in rates} == pytest.approx(rates, abs=0.01)
    assert get_task_features(PLANS[0].task, Limits(total_tokens=None))[-1] is None


def test_all_right_and_all_wrong_cells_have_a_solution() -> None:
    value_of = TaskValue(decay=1.0, ridge=0.1, link="logit")
    value_of.fit([(TaskFeatures("a", 1.0, 0, 100), 1.0)] * 500 + [(TaskFeatures("a", 8.0, 4, 100), 0.0)] * 500)
    assert value_of(TaskFeatures("a", 1.0, 0, 100)) > 0.98 > 0.02 > value_of(TaskFeatures("a", 8.0, 4, 100))


def test_state_zero_by_hand() -> None:
    scheme, group = StateZero(ridge=1e-9), played("a", [RIGHT, WRONG, WRONG, WRONG])
    assert scheme.assign(group, {}).advantage == Rloo().assign(group, {}).advantage
    alone = played("a", [RIGHT])
    assert set(scheme.assign(alone, {}).advantage.values()) == {1.0}
    scheme.fit([group], {})
    credit = scheme.assign(alone, {})
    assert list(credit.advantage.values()) == pytest.approx([0.75, 0.75]), "the root and its clone"
    assert credit.diagnostics["state_zero_error"] == pytest.approx(0.75**2)
    sure = scheme.assign(played("a", [WRONG] * 3), {}).advantage
    assert list(sure.values()) == pytest.approx([-0.25] * 6), "equal returns say something too"


def test_v0_allocates_by_what_it_predicts_of_sizes_never_seen() -> None:
    sampler = V0()
    sampler.observe(0, [played("a", [RIGHT] * 16, size=1), played("a", [RIGHT] * 8 + [WRONG] * 8, size=7)])
    plans = proposed(sampler, menu(a=(1, 3, 7)), 12)
    tasks = [plan.task for plan in plans]
    rates = sampler.predict_rates(tasks, menu())
    found = {task.metadata["size"]: rate for task, rate in zip(tasks, rates, strict=True)}
    assert found[1] > 0.95 > found[3] > 0.6 > found[7] == pytest.approx(0.5, abs=0.02)
    assert [plan.num_rollouts for plan in plans] == sampler.allocate(rates, np.full(12, 10.0), 8)
    assert np.isnan(V0().predict_rates(tasks, menu())).all()
    again = V0()
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert proposed(again, menu(a=(1, 3, 7)), 12) == plans


# Which tasks


def shares(plans: Sequence[PlannedGroup], fact: str) -> dict[Any, float]:
    found = [plan.task.metadata[fact] for plan in plans]
    return {name: found.count(name) / len(found) for name in set(found)}


def test_dots_draws_what_is_half_right_and_carries_it_over_to_neighbours() -> None:
    dots = Dots(prior=1e-6)
    dots.observe(0, [played("a", [RIGHT] * 8, size=1), played("a", [RIGHT, WRONG] * 4, size=15)])
    assert dots.estimate_rate(Bucket("a", 1)) == pytest.approx(1, abs=1e-3)
    assert 0.5 < dots.estimate_rate(Bucket("a", 15)) < 0.501
    # log 2, log 8 and log 16: two thirds of the way, at a width of 0.3
    near, far = math.exp(-math.log(2) / 0.3), math.exp(-math.log(4) / 0.3)
    assert dots.estimate_rate(Bucket("a", 7)) == pytest.approx((8 * far + 4 * near) / (8 * far + 8 * near), abs=1e-6)
    assert dots.estimate_rate(Bucket("b", 1)) == 0.5, "unknown, so it is tried"
    found = shares(proposed(dots, menu(a=(1, 15)), 64), "size")
    assert found[15] > 0.9, "of a pool of half and half"
    alone = Dots(pool=1, prior=1e-6)
    alone.load_state_dict(dots.state_dict())
    assert alone.estimate_rate(Bucket("a", 15)) == dots.estimate_rate(Bucket("a", 15))
    assert shares(proposed(alone, menu(a=(1, 15)), 64), "size")[15] < 0.7, "no choice"
    for across, rate in ((1.0, 1.0), (0.0, 0.5)):
        other = Dots(across=across, prior=1e-6)
        other.observe(0, [played("a", [RIGHT] * 8)])
        assert other.estimate_rate(Bucket("b", 1)) == pytest.approx(rate, abs=1e-6)


def test_fewer_groups_have_equal_returns_with_dots() -> None:
    """Of four sizes one is always right, one always wrong, one mostly and one about half of the time."""
    rates = {1: 1.0, 7: 0.9, 15: 0.5, 63: 0.0}
    equal: dict[str, list[float]] = {"mixture": [], "dots": []}
    for name, shares_of_equal in equal.items():
        rng = np.random.default_rng(0)
        sampler = make_task_sampler(PlugIn(name), "rl.task_sampler")
        for step in range(20):
            groups = []
            for plan in checks.propose(sampler, step, 16, menu(a=tuple(rates)), rng):
                size = int(plan.task.metadata["size"])
                groups.append(played("a", list(rng.random(8) < rates[size]), size=size))
            sampler.observe(step, groups)
            returns = [{episode.team_return for episode in group.episodes} for group in groups]
            shares_of_equal.append(sum(len(values) == 1 for values in returns) / len(returns))
    assert np.mean(equal["dots"][5:]) < 0.5 * np.mean(equal["mixture"][5:]), equal


def test_eva_draws_what_differs() -> None:
    groups = [played("same", [RIGHT] * 4), played("rare", [RIGHT] + [WRONG] * 3), played("even", [RIGHT, WRONG] * 2)]
    sources = menu(same=(1,), rare=(1,), even=(1,))
    worth = {"gap": (1.0, 1.0), "mean_gap": (0.75, 0.5), "variance": (0.1875, 0.25)}
    for info, (rare, even) in worth.items():
        sampler = Eva(info=info, floor=0.001)  # type: ignore[arg-type]
        sampler.observe(0, groups)
        weights = [sampler.get_weight_function()(Bucket(family, 1)) for family in ("same", "rare", "even", "new")]
        assert weights == pytest.approx([0.001 + of for of in (0.0, rare, even, max(rare, even))])
        assert shares(proposed(sampler, sources, 96), "family").get("same", 0.0) < 0.05
    fresh = shares(proposed(Eva(), sources, 96), "family")
    assert min(fresh.values()) > 0.2, "as the weights say"


def test_mopps_believes_what_it_has_counted_and_forgets() -> None:
    mopps = Mopps()
    assert mopps.get_posterior(Bucket("a", 1)) == (1, 1), "anything"
    mopps.observe(0, [played("a", [RIGHT] * 6 + [WRONG] * 2)])
    assert mopps.get_posterior(Bucket("a", 1)) == (7, 3)
    mopps.observe(1, [played("a", [WRONG] * 4)])
    assert mopps.get_posterior(Bucket("a", 1)) == (1 + 3, 1 + 1 + 4), "the step before counts half"
    again = Mopps()
    again.load_state_dict(json.loads(json.dumps(mopps.state_dict())))
    assert again.get_posterior(Bucket("a", 1)) == (4, 6)
    assert proposed(again, menu(a=(1, 2)), 6) == proposed(mopps, menu(a=(1, 2)), 6)


def test_mopps_spends_few_rollouts_on_what_is_decided_and_tries_what_it_does_not_know() -> None:
    """All of three families have been seen or not: solved, undecided, never seen. Two tasks of eight of a pool."""
    mopps = Mopps(pool=8)
    mopps.observe(0, [played("solved", [RIGHT] * 32), played("even", [RIGHT, WRONG] * 16)])
    sources = menu(solved=(1,), even=(1,), new=(1,))
    plans = [p for k in range(100) for p in checks.propose(mopps, 1, 2, sources, np.random.default_rng(k))]
    found = shares(plans, "family")
    assert found["even"] > 0.6
    assert 0.1 < found["new"] < 0.4
    assert found.get("solved", 0.0) < 0.01
    plain = [p for k in range(100) for p in checks.propose(Mopps(pool=1), 1, 2, sources, np.random.default_rng(k))]
    assert min(shares(plain, "family").values()) > 0.25, "no choice"
    high = Mopps(pool=8, target=1.0)
    high.load_state_dict(mopps.state_dict())
    assert shares(proposed(high, sources, 96), "family")["solved"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rates", "num_tasks", "share"),
    [
        ((0.05, 0.25, 0.5, 0.75, 0.95), 2, 0.29),
        ((0.05, 0.25, 0.5, 0.75, 0.95), 4, 0.09),
        ((0.1, 0.5, 0.9), 2, 0.54),
        ((0.1, 0.5, 0.9), 4, 0.40),
    ],
)
def test_how_many_steps_of_mopps_are_of_one_bucket(rates: Sequence[float], num_tasks: int, share: float) -> None:
    """With the options as they come, buckets that succeed at these rates, and 8 rollouts a task."""
    mopps, sources, rng, of_one = Mopps(), menu(a=tuple(range(len(rates)))), np.random.default_rng(0), []
    for step in range(200):
        sizes = [plan.task.metadata["size"] for plan in mopps.propose(step, num_tasks, sources, rng)]
        of_one.append(len(set(sizes)) == 1)
        mopps.observe(step, [played("a", [bool(r) for r in rng.random(8) < rates[size]], size=size) for size in sizes])
    assert np.mean(of_one) == pytest.approx(share, abs=3 * math.sqrt(share * (1 - share) / 200))


def doubting(group: EpisodeGroup, doubts: Sequence[float]) -> EpisodeGroup:
    """The same rollouts, each with so much doubt on average, its clone three times its root's."""

    def said(episode: EpisodeRecord, doubt: float) -> EpisodeRecord:
        agents = []
        for one, factor in zip(episode.agents, (0.5, 1.5), strict=True):
            (of,) = one.turns
            logprobs = (-factor * doubt,) * len(of.generation.token_ids)
            agents.append(
                replace(one, turns=(replace(of, generation=replace(of.generation, behavior_logprobs=logprobs)),))
            )
        return replace(episode, agents=tuple(agents))

    return EpisodeGroup(group.task, tuple(said(*pair) for pair in zip(group.episodes, doubts, strict=True)))


def test_consistency_is_minus_the_point_biserial_correlation_times_the_spread_of_doubt() -> None:
    right, doubts = [True, False, False, True, False], [0.2, 0.9, 0.4, 0.5, 1.1]
    found = compute_consistency(right, doubts)
    assert found == pytest.approx(-np.corrcoef(right, doubts)[0, 1] * np.std(doubts))
    # advantages 1 and -1: -(0.1 - 0.5) / 2
    assert compute_consistency([True, False], [0.1, 0.5]) == pytest.approx(0.2)
    assert compute_consistency([True, False], [0.5, 0.1]) == pytest.approx(-0.2)
    assert compute_consistency([True, True], [0.5, 0.1]) == compute_consistency([], []) == 0, "alike, or nothing"


def test_active_draws_where_doubt_goes_with_errors() -> None:
    pair = [RIGHT, WRONG]
    groups = [
        doubting(played("sound", pair), [0.1, 0.5]),
        doubting(played("proud", pair), [0.5, 0.1]),
        doubting(played("solved", [RIGHT, RIGHT]), [0.1, 0.9]),
    ]
    sampler = Active(decay=0.5, floor=0.001)
    sampler.observe(0, groups)
    assert sampler.memory.sums_by_bucket[Bucket("sound", 1)] == ConsistencySums(2, 1, pytest.approx(0.2)), (
        "of root and clone alike"
    )
    assert sampler.memory.sums_by_bucket[Bucket("proud", 1)].consistency == pytest.approx(-0.2)
    weights = [sampler.get_weight_function()(Bucket(family, 1)) for family in ("sound", "proud", "solved", "new")]
    assert weights == pytest.approx([0.201, 0.001, 0.001, 0.201])
    found = shares(proposed(sampler, menu(sound=(1,), proud=(1,), solved=(1,)), 32), "family")
    assert found["sound"] > 0.9
    again = Active(decay=0.5, floor=0.001)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert again.memory == sampler.memory
    one, other = groups[0].episodes
    silent = replace(one, agents=(replace(one.agents[0], turns=()),))
    sampler.observe(1, [EpisodeGroup(groups[0].task, (silent, other))])
    assert sampler.memory.sums_by_bucket[Bucket("sound", 1)] == ConsistencySums(3, 1.5, pytest.approx(0.1)), (
        "one alone says nothing"
    )


# CLPO


def of_size(size: int, right: int, name: str = "g") -> EpisodeGroup:
    """Four rollouts of a task of the family a, so many of them right."""
    return played("a", [k < right for k in range(4)], size=size, name=name)


def test_hard_tasks_get_an_easier_twin_and_medium_ones_another_of_their_size() -> None:
    """Of four: none right and one right are hard, two and three medium, four solved."""
    sampler, sources = Clpo(share=1.0, tries=200), menu(a=(2, 4, 8))
    sampler.observe(0, [of_size(8, right, f"g{right}") for right in range(5)])
    plans = proposed(sampler, sources, 6)
    twins, fresh = plans[:4], plans[4:]
    assert [plan.task.metadata["size"] for plan in twins] == [4, 4, 8, 8], "the next smaller, and the same"
    assert all(plan.task.metadata["twin"] == 1 for plan in twins)
    assert not any("twin" in plan.task.metadata for plan in fresh), "the solved one has none"
    assert {plan.num_rollouts for plan in plans} == {8}
    assert len({plan.task.task_id for plan in plans}) == 6
    assert {plan.task.answer for plan in plans} == {"1"}, "the generator's"
    assert all("twin" not in plan.task.metadata for plan in proposed(sampler, sources, 4)), "each once"


def test_a_twin_is_another_task() -> None:
    sampler = Clpo(share=1.0)
    source = Finite(3)
    sampler.observe(0, [outcome(PlannedGroup(source.task(1), 4), 0.5)])
    (plan,) = proposed(sampler, TaskMenu({"a": source}, {"a": 1.0}, 4), 1)
    assert plan.task.task_id in {"a-0", "a-2"}
    alone = Clpo(share=1.0)
    alone.observe(0, [outcome(PlannedGroup(source.task(0), 4), 0.5)])
    (plan,) = proposed(alone, TaskMenu({"a": Finite(1)}, {"a": 1.0}, 4), 1)
    assert "twin" not in plan.task.metadata, "there is no other: a fresh one"


@dataclass(frozen=True)
class Finite:
    """So many tasks of one size."""

    count: int

    def task(self, number: int) -> Task:
        return Task(f"a-{number}", f"{number}?", "1", "a", metadata={"family": "a", "size": 1})

    def draw(self, rng: np.random.Generator) -> Task:
        return self.task(int(rng.integers(self.count)))


def test_twins_have_room_and_a_step_and_no_twins_of_their_own() -> None:
    sampler, sources = Clpo(share=0.5), menu(a=(2, 4, 8))
    sampler.observe(0, [of_size(8, 0, f"g{k}") for k in range(5)])
    again = Clpo(share=0.5)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    plans = proposed(sampler, sources, 8)
    assert proposed(again, sources, 8) == plans
    assert ["twin" in plan.task.metadata for plan in plans] == [True] * 4 + [False] * 4
    sampler.observe(0, [outcome(plans[0], 0.0)])
    later = proposed(sampler, sources, 8)
    assert ["twin" in plan.task.metadata for plan in later] == [True] + [False] * 7, "the fifth, in a later round"
    sampler.observe(1, [of_size(2, 0)])
    assert not any("twin" in plan.task.metadata for plan in proposed(sampler, sources, 8)), "nothing is smaller"
    sampler.observe(2, [of_size(8, 0)])
    sampler.observe(3, [of_size(8, 4)])
    assert sampler.state_dict() == {"step": 3, "waiting": []}, "of the step before"


def test_a_size_that_is_no_number_has_nothing_below() -> None:
    sampler, sources = Clpo(share=1.0), menu(a=("short", "long"))  # type: ignore[arg-type]
    sampler.observe(0, [played("a", [RIGHT, WRONG], size="long"), played("a", [WRONG] * 2, size="long")])  # type: ignore[arg-type]
    first, second = proposed(sampler, sources, 2)
    assert (first.task.metadata["size"], first.task.metadata.get("twin")) == ("long", 1)
    assert "twin" not in second.task.metadata


def test_twins_are_one_size_below_what_was_hard() -> None:
    """Of a policy that is right up to size 4 and never above."""
    sizes = (2, 4, 8, 16, 32, 64)
    sampler, found = Clpo(), []
    for step in range(40):
        plans = checks.propose(sampler, step, 8, menu(a=sizes), np.random.default_rng(step))
        found += [int(plan.task.metadata["size"]) for plan in plans if "twin" in plan.task.metadata]
        groups = [outcome(plan, float(int(plan.task.metadata["size"]) <= 4)) for plan in plans]
        sampler.observe(step, groups)
    assert set(found) == {4, 8, 16, 32}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("clpo", {"hard": 0.8}, "hard is 0.8, above medium = 0.75"),
        ("clpo", {"share": 1.5}, "share is 1.5"),
        ("clpo", {"tries": 0}, "tries is 0"),
        ("mopps", {"target": -0.1}, "target is -0.1"),
        ("mopps", {"pool": 0}, "pool is 0"),
        ("active", {"floor": 0}, "floor is 0"),
        ("active", {"uncertainty": "entropy"}, "uncertainty"),
    ],
)
def test_options_that_cannot_be_right_are_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_task_sampler(PlugIn(name, options), "rl.task_sampler")


# SCALER


def knobbed(**knobs: Knob) -> tuple[TaskMenu, list[tuple[str, dict[str, int]]]]:
    """A menu whose families are remade by `size`, and what was remade."""
    made: list[tuple[str, dict[str, int]]] = []

    def remake(family: str, changes: Any) -> Sized:
        made.append((family, dict(changes)))
        return Sized((changes["size"],))

    return replace(menu(**dict.fromkeys(knobs, (1,))), remake=remake), made


def outcome(plan: PlannedGroup, rate: float) -> EpisodeGroup:
    group = played("a", [k < rate * 8 for k in range(8)])
    episodes = tuple(replace(episode, task=plan.task) for episode in group.episodes)
    return EpisodeGroup(plan.task, episodes)


def test_the_level_moves_as_the_paper_s_controller() -> None:
    scaler = Scaler({"a": Knob(("size",), low=2, high=10, step=2)})
    sources, made = knobbed(a=Knob(("size",), 2, 10))
    (plan,) = proposed(scaler, sources, 1)
    assert plan.task.metadata == {"family": "a", "size": 2, "level": 0}
    scaler.observe(0, [outcome(plan, 0.75)])
    assert scaler.state_dict()["tracks"]["a"] == [0.5, [0.0], [0.75]], "2 (0.75 - 0.5)"
    plans = proposed(scaler, sources, 40)
    assert {plan.task.metadata["size"] for plan in plans} == {2, 4}
    assert made == [("a", {"size": 2}), ("a", {"size": 4})], "once each"
    low, high = (next(plan for plan in plans if plan.task.metadata["level"] == level) for level in (0, 1))
    scaler.observe(1, [outcome(low, 1.0), outcome(high, 0.5), outcome(high, 0.5)])
    assert scaler.state_dict()["tracks"]["a"] == [1.0, [0.0, 0.5], [0.75, 0.75]], "each level counts by its nearness"
    (now,) = proposed(scaler, sources, 1)
    scaler.observe(2, [outcome(now, 0.0)])
    assert scaler.state_dict()["tracks"]["a"][0] == 0.0, "one level at most"
    again = Scaler({"a": Knob(("size",), 2, 10, step=2)})
    again.load_state_dict(json.loads(json.dumps(scaler.state_dict())))
    assert again.state_dict() == scaler.state_dict()


def test_a_level_that_is_held_is_where_half_succeed() -> None:
    """Success falls with the level, 1 - level / 8: the frontier is at 4."""
    scaler = Scaler({"a": Knob(("size",), low=1, high=9)})
    sources, _ = knobbed(a=Knob(("size",), 1, 9))
    for step in range(30):
        plans = checks.propose(scaler, step, 8, sources, np.random.default_rng(step))
        scaler.observe(step, [outcome(plan, 1 - int(plan.task.metadata["level"]) / 8) for plan in plans])
    assert scaler.state_dict()["tracks"]["a"][0] == pytest.approx(4, abs=0.3)


def rounds(scaler: Scaler, sources: TaskMenu, rates: dict[str, float], count: int) -> list[list[str]]:
    """The active families of so many steps in which families have these rates."""
    active = []
    for step in range(count):
        plans = checks.propose(scaler, step, 24, sources, np.random.default_rng(step))
        active.append(sorted({str(plan.task.metadata["family"]) for plan in plans}))
        scaler.observe(step, [outcome(plan, rates[str(plan.task.metadata["family"])]) for plan in plans])
    return active


def test_families_that_teach_no_more_rest() -> None:
    knob = Knob(("size",), low=1, high=3)
    sources, _ = knobbed(easy=knob, hard=knob, even=knob)
    rates = {"easy": 1.0, "hard": 0.0, "even": 0.5}
    active = rounds(Scaler(dict.fromkeys(rates, knob), active=2, stuck=3, saturated=2), sources, rates, 8)
    assert active[:3] == [["easy", "hard"]] * 3, "two at a time"
    assert active[3] == ["easy", "even"], "hard was stuck for three rounds"
    assert active[4] == ["even", "hard"], "easy was at its top, level 2, for rounds 2 and 3"
    assert rounds(Scaler(dict.fromkeys(rates, knob), stuck=3), sources, rates, 5) == [["easy", "even", "hard"]] * 5
    flat = rounds(Scaler(dict.fromkeys(rates, knob), active=1, window=4), sources, dict.fromkeys(rates, 0.5), 5)
    assert flat[:4] == [["easy"]] * 4
    assert flat[4] != ["easy"], "no higher in four rounds"


def test_knobs_that_cannot_be_turned() -> None:
    knob = {"options": ["size"], "low": 2, "high": 8}
    with pytest.raises(ConfigError, match=r"rl.task_sampler.options.knobs.a.low is 9, above high = 8"):
        make_task_sampler(PlugIn("scaler", {"knobs": {"a": {**knob, "low": 9}}}), "rl.task_sampler")
    with pytest.raises(ConfigError, match="start is 9; expected a level from 0 to 6"):
        Knob(("size",), 2, 8, start=9)
    with pytest.raises(ConfigError, match="knobs has the family 'aa', which rl.tasks does not draw from"):
        checks.check_menu(Scaler({"aa": Knob(("size",), 2, 8)}), menu(a=(1,)))
    with pytest.raises(ConfigError, match="knobs.a changes options of a task source, and the sources of this menu"):
        checks.check_menu(Scaler({"a": Knob(("size",), 2, 8)}), menu(a=(1,)))


# A budget that moves


def test_a_budget_in_a_straight_line_around_another_sampler() -> None:
    sampler = Curriculum(start=1000, end=200, steps=4, sampler=PlugIn("knapsack"))
    limits = [proposed(sampler, menu(a=(1,)), 2, step)[0].limits for step in range(6)]
    assert limits == [Limits(total_tokens=budget) for budget in (1000, 800, 600, 400, 200, 200)]
    sampler.observe(5, [played("a", [RIGHT] * 8), played("b", [RIGHT, WRONG] * 4)])
    sizes = {p.task.metadata["family"]: p.num_rollouts for p in proposed(sampler, menu(a=(1,), b=(1,)), 8, 6)}
    assert sizes["a"] == 2 < sizes["b"], "the one inside goes on"
    again = Curriculum(start=1000, end=200, steps=4, sampler=PlugIn("knapsack"))
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert proposed(again, menu(a=(1,), b=(1,)), 8, 7) == proposed(sampler, menu(a=(1,), b=(1,)), 8, 7)


def test_a_budget_that_waits_for_success() -> None:
    sampler, budgets = Curriculum(start=1000, end=200, steps=4, by="success", target=0.75), []
    for step, right in enumerate([8, 4, 8, 8, 2]):
        budgets.append(proposed(sampler, menu(a=(1,)), 1, step)[0].limits.total_tokens)  # type: ignore[union-attr]
        sampler.observe(step, [played("a", [k < right for k in range(8)])])
    assert budgets == [1000, 800, 800, 600, 400]


def test_a_budget_that_moves_leaves_the_limits_of_the_sampler_inside() -> None:
    inside = PlugIn("budgets", {"totals": [300]})
    sampler = Curriculum(start=6, end=2, steps=4, limit="max_turns", sampler=inside)
    found = [proposed(sampler, menu(a=(1,)), 1, step)[0].limits for step in (0, 4)]
    assert found == [Limits(total_tokens=300, max_turns=turns) for turns in (6, 2)]
    with pytest.raises(ConfigError, match="the inner sampler 'budgets' sets total_tokens, which this one sets too"):
        Curriculum(start=300, end=200, steps=4, sampler=inside)


def test_a_budget_above_the_variant_s_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="start is 5000 and end 200, and total_tokens of the variant's limits is 2048"
    ):
        checks.check_menu(Curriculum(start=5000, end=200, steps=4), menu(a=(1,)))
    with pytest.raises(ConfigError, match="answer_reserve"):
        checks.check_menu(Curriculum(start=500, end=2, steps=4), menu(a=(1,)))
    with pytest.raises(ConfigError, match="unknown task sampler 'knapsac'"):
        make_task_sampler(
            PlugIn("curriculum", {"start": 9, "end": 5, "steps": 2, "sampler": {"name": "knapsac"}}), "rl"
        )


# In a run

RL = "variants__delegating__rl"
ECHO = {"choice": {"name": "outside:Echo", "options": {"largest": 7}}}
KNOB = {"options": ["largest"], "low": 1, "high": 4}
SCALER = {"name": "scaler", "options": {"knobs": {"choice": KNOB}}}
IN_A_RUN = {
    "v0": {f"{RL}__task_sampler": {"name": "v0"}, f"{RL}__credit": {"name": "state_zero"}},
    "dots": {f"{RL}__task_sampler": {"name": "dots"}},
    "clpo": {f"{RL}__task_sampler": {"name": "clpo", "options": {"hard": 0.0}}},
    "active": {f"{RL}__task_sampler": {"name": "active"}},
    "rounds": {
        "sampler": {"name": "transformers", "options": {"dtype": "float32"}},
        f"{RL}__max_staleness": 2,
        f"{RL}__task_sampler": {
            "name": "curriculum",
            "options": {"start": 80, "end": 60, "steps": 4, "by": "success", "target": 0.1, "sampler": SCALER},
        },
        f"{RL}__group_filter": {"name": "reinforce_ada", "options": {"size": 4, "max_rounds": 2}},
        f"{RL}__credit": {"name": "downsampled", "options": {"size": 4, "scheme": {"name": "branches"}}},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_A_RUN)
def test_a_killed_run_resumes_to_the_same_end(tmp_path: Path, name: str) -> None:
    changes = {f"{RL}__steps": 6, "tasks": ECHO, "log_groups": 9, **IN_A_RUN[name]}
    whole, spec = play(config(tmp_path / "whole", **changes)), config(tmp_path / "killed", **changes)
    resumed = crash_and_resume(spec)
    assert torch.equal(weights(resumed), weights(whole))
    episodes = [list(read_episodes(job.folder / "episodes.jsonl")) for job in (whole, resumed)]
    assert episodes[0] == episodes[1]
    if name == "rounds":
        assert max(row["gate/rounds"] for row in rows(whole)) == 2
        assert {episode.limits.total_tokens for episode in episodes[0]} >= {80, 75}
        assert {episode.task.metadata["family"] for episode in episodes[0]} == {"choice"}
        assert min(row["credit/trained_share"] for row in rows(whole)) < 1
