"""The optimum against brute force, against play, and by hand."""

import itertools

import numpy as np
import pytest

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic import BatchDelegation, Chain, make_rules
from selfcest_env.symbolic.optimum import Plan, optimal_plan, optimal_return
from selfcest_env.symbolic.reference import OptimalPolicy, RandomPolicy, evaluate_policy
from selfcest_env.symbolic.rules import FIRST_ANSWER, WAIT
from selfcest_env.symbolic.state import ANSWERED, UNBORN
from selfcest_env.symbolic.vectors import get_segments

ANSWER = Plan()


def halves(left=ANSWER, right=ANSWER, then=ANSWER):
    return Plan(0, (left, right), then)


# By brute force


def every_end(batch):
    """The ends of all legal play in which answers are true sums, as states of one environment."""
    if batch.done[0]:
        yield batch.state
        return
    rules, masks, here = batch.rules, batch.action_masks()[0], batch.get_snapshot()
    held = get_segments(here, rules)[0]
    sums = (held * (held < rules.missing)).sum(axis=1) % rules.task.num_answers
    options = []
    for seat in range(batch.num_agents):
        calls = np.flatnonzero(masks[seat, rules.first_call :]) + rules.first_call
        own = [FIRST_ANSWER + sums[seat], *calls] if masks[seat, FIRST_ANSWER] else list(calls)
        options.append(own if batch.can_act[0, seat] and own else [WAIT])
    for actions in itertools.product(*options):
        batch.set_snapshot(here)
        batch.step(np.array([actions]))
        yield from every_end(batch)


def brute_force(rules, length):
    """(success, tokens) of all plans, by playing every one of them on a game without errors.

    Where every clone answered and no reply is missing, the root is right but for the errors of the answers, whose
    segments are the last that their agents held.
    """
    clean = Chain(items=length, modulus=rules.task.modulus, window=rules.task.window)
    batch = BatchDelegation(make_rules(clean, **limits_of(rules)), 1)
    batch.reset(0)
    luck, found = 1 / rules.task.num_answers, []
    for end in every_end(batch):
        born = end.status[0] != UNBORN
        missing = (end.tape[0, 1 : end.tape_end[0]] == rules.missing).any()
        kept = 0.0 if missing else np.prod([rules.task.reliability(int(n)) for n in end.segment_length[0, born]])
        assert missing or end.status[0, 0] != ANSWERED or end.tape[0, 0] == end.target[0]
        success = (luck + (1 - luck) * kept) if end.status[0, 0] == ANSWERED else 0.0
        tokens = (end.prompt_tokens[0] + end.generated_tokens[0])[born].sum()
        found.append((success, tokens))
    return found


def limits_of(rules):
    names = ("max_clones", "max_depth", "max_turns", "total_tokens", "generated_tokens", "token_cost")
    return {name: getattr(rules, name) for name in names}


@pytest.mark.parametrize(
    ("length", "window", "limits", "num_plans"),
    [
        (3, None, {"max_clones": 4, "max_turns": 2}, 2),
        (5, None, {"max_clones": 10, "max_turns": 3}, 24),
        (7, None, {"max_clones": 12, "max_turns": 3, "total_tokens": 75, "generated_tokens": 24}, 29),
        (8, None, {"max_clones": 14, "max_turns": 2, "max_depth": 3, "total_tokens": None}, 53),
        (8, None, {"max_clones": 12, "max_turns": 3, "total_tokens": 110}, 90),
        (9, 4, {"max_clones": 12, "max_turns": 3, "total_tokens": 80}, 45),
        (16, 4, {"max_clones": 12, "max_turns": 3, "total_tokens": 100}, 20),
        # Where clones are refused, where the root never may answer, and where it can do nothing at all.
        (7, 3, {"max_clones": 4, "total_tokens": 26}, 1),
        (6, 1, {"max_clones": 12, "max_depth": 3, "max_turns": 2, "total_tokens": 120}, 2),
        (7, 3, {"max_clones": 0}, 1),
    ],
)
def test_no_plan_beats_the_optimum(length, window, limits, num_plans):
    noise = {"items": length, "modulus": 5, "window": window, "rot": 0.15, "clear": 2}
    plans = brute_force(make_rules("noisy", noise, **limits), length)
    assert len(plans) == num_plans
    for cost in (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.2):
        best = max(success - cost * tokens for success, tokens in plans)
        optimum = optimal_return(make_rules("noisy", noise, token_cost=cost, **limits))
        assert optimum.team_return == pytest.approx(best, abs=1e-9)


def test_no_way_to_answer_beats_the_optimum():
    """Two items modulo 2, one split: every deterministic policy without memory, in closed form. Here no choice of call
    can tell the root anything, as it answers no shorter segment after one.

    Answers are kept with probability 0.7 for one symbol and 0.49 for two, so the best is among 4-token answers (success
    0.5 + 0.5 * 0.49) and splits of 3 + 2 + 2 * 3 + 3 + 1 = 15 tokens (0.5 + 0.5 * 0.7 * 0.7 * 0.49).
    """
    noise = {"items": 2, "modulus": 2, "rot": 0.3, "clear": 0, "splits": (2,)}
    for cost, after in ((0.0, 0.49), (0.005, 0.49)):
        rules = make_rules("noisy", noise, max_clones=2, token_cost=cost)
        best = max(
            closed_loop_value(first, left, right, cost, after)
            for first in itertools.product((0, 1, "split"), repeat=4)
            for left in itertools.product((0, 1), repeat=2)
            for right in itertools.product((0, 1), repeat=2)
        )
        assert optimal_return(rules).team_return == pytest.approx(best)


def closed_loop_value(first, left, right, cost, after):
    """Expected return where the root does `first[segment]`, clones answer `left[item]`, and the root then answers as is
    best for the replies it sees."""
    value = 0.0
    joint = np.zeros((2, 2, 2))  # replies, truth
    for (a, b), step in zip(itertools.product((0, 1), repeat=2), first, strict=True):
        if step == "split":
            for x, y in itertools.product((0, 1), repeat=2):
                kept = [0.7 * (reply == said) + 0.3 / 2 for reply, said in ((x, left[a]), (y, right[b]))]
                joint[x, y, (a + b) % 2] += kept[0] * kept[1] / 4
            value -= cost * 15 / 4
        else:
            value += (0.49 * (step == (a + b) % 2) + 0.51 / 2 - cost * 4) / 4
    return value + (after * joint.max(axis=2) + (1 - after) / 2 * joint.sum(axis=2)).sum()


# By play


@pytest.mark.parametrize(
    "arguments",
    [
        {"task": "chain", "token_cost": 0.01},
        {"task": "chain", "total_tokens": 40},
        {"task": "chain", "generated_tokens": 8, "total_tokens": None},
        {"task": "chain", "task_options": {"window": 2}, "max_clones": 12, "total_tokens": 300},
        {"task": "noisy", "token_cost": 0.005},
        {"task": "noisy", "token_cost": 0.01, "total_tokens": 30},
        {"task": "noisy", "task_options": {"clear": 0, "splits": (2, 3)}, "total_tokens": 90},
        {"task": "lookup", "token_cost": 0.03},
        {"task": "lookup", "total_tokens": 16, "token_cost": 0.01},
        {"task": "lookup", "task_options": {"hops": 3}, "max_turns": 3},
        {"task": "deep", "token_cost": 0.01},
        {"task": "deep", "task_options": {"items": (1, 8)}, "total_tokens": 52},
        {"task": "cells", "task_options": {"hidden": 0.3, "coupling": "zipf"}, "token_cost": 0.01},
        {"task": "cells", "task_options": {"hidden": 0.9, "coupling": "coverage"}, "generated_tokens": 17},
        {"task": "cells", "task_options": {"hidden": 0.3, "coupling": "threshold", "cells": 7}},
        {"task": "cells", "task_options": {"hidden": 0.9, "coupling": "max", "modulus": 32}},
        {"task": "cells", "task_options": {"hidden": 0.1, "coupling": "and"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("episodes", [30_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_the_optimal_policy_earns_what_was_predicted(arguments, episodes):
    rules = make_rules(**arguments)
    policy = OptimalPolicy(rules)
    earned = evaluate_policy(policy, rules, episodes)
    predicted = policy.optimum
    assert abs(earned.team_return - predicted.team_return) <= 4 * earned.standard_error + 1e-9
    assert abs(earned.success - predicted.success) <= 4 * (0.25 / episodes) ** 0.5
    assert earned.tokens == pytest.approx(predicted.tokens, rel=0.01)
    assert evaluate_policy(RandomPolicy(), rules, 5_000).team_return < earned.team_return


def test_the_optimal_policy_is_never_illegal_and_needs_no_memory():
    rules = make_rules("noisy", {"items": (2, 16)}, max_clones=24, max_depth=3, total_tokens=300, token_cost=0.002)
    batch, some, policy = BatchDelegation(rules, 200), BatchDelegation(rules, 1), OptimalPolicy(rules)
    batch.reset(0)
    order = np.random.default_rng(0).permutation(200)[:50]
    while not batch.done.all():
        actions = policy.actions(batch)
        some.set_snapshot(batch.state.take(order))
        assert (policy.actions(some) == actions[order]).all()
        batch.step(actions)
    assert batch.state.illegal.sum() == 0


class Signaller:
    """Eight items modulo 2: a root that sums them itself, splits in two if the sum is 0, else in four and then in two,
    and answers by which it was. Its clones do nothing useful."""

    def actions(self, kernel):
        state, rules = kernel.state, kernel.rules
        held = get_segments(state, rules)[:, 0]
        two, four = rules.first_call, rules.first_call + 1
        odd = (held * (held < rules.missing)).sum(axis=1) % 2 == 1
        turns, length = state.turns[:, 0], state.segment_length[:, 0]
        actions = np.full(state.status.shape, FIRST_ANSWER)
        first = np.where(odd, four, two)
        second = np.where(length == 4, two, FIRST_ANSWER)
        actions[:, 0] = np.select([turns == 0, turns == 1], [first, second], FIRST_ANSWER + 1)
        return actions


def test_who_gets_round_the_work_can_beat_the_optimum():
    """It is one of plans, as its module says: 48 tokens for certainty, where the signaller needs 27 or 48."""
    rules = make_rules("noisy", {"items": 8, "modulus": 2}, token_cost=0.005)
    optimum, earned = optimal_return(rules), evaluate_policy(Signaller(), rules, 2_000)
    assert (optimum.success, optimum.tokens) == (1, 48)
    assert earned.success == 1
    assert earned.tokens == pytest.approx((27 + 48) / 2, abs=1)
    assert earned.team_return > optimum.team_return + 0.03


# By hand


def test_a_noisy_game_by_hand():
    """Four items modulo 3, nobody errs on two, 0.8 is lost per item beyond: reliability 0.64 of four.

    Answering costs 5 + 1 = 6 tokens. One split in two costs 5 + 2 for the root, (3 + 1) * 2 for the clones, 3 for the
    replies and 1 for the answer: 19. It gains 2/3 * (1 - 0.64) = 0.24, for 13 tokens.
    """
    noise = {"items": 4, "modulus": 3, "rot": 0.2, "clear": 2, "splits": (2,)}
    cheap, dear = (make_rules("noisy", noise, token_cost=cost) for cost in (0.018, 0.019))
    assert optimal_plan(cheap, 4) == halves()
    assert optimal_return(cheap).success == 1
    assert optimal_return(cheap).tokens == 19
    assert optimal_return(cheap).team_return == pytest.approx(1 - 19 * 0.018)
    assert optimal_plan(dear, 4) == ANSWER
    assert optimal_return(dear).success == pytest.approx(1 / 3 + 2 / 3 * 0.64)
    assert optimal_return(dear).tokens == 6


def test_lookup_by_hand():
    """A hop costs 1 (call) + 2 + 1 (clone) + 2 (replies) = 6 tokens, beside an opening of 2 and an answer."""
    rules = make_rules("lookup", {"hops": (1, 2), "values": 4}, token_cost=0.01)
    optimum = optimal_return(rules)
    assert optimum.plans[1] == Plan(0, (ANSWER,), Plan(0, (ANSWER,), ANSWER))
    assert (optimum.success, optimum.tokens) == (1, 3 + 6 * 1.5)
    # With one call half of the trails are followed to the end, the others guessed: 1/2 + 1/2 * 1/4.
    once = optimal_return(make_rules("lookup", {"hops": (1, 2), "values": 4}, max_clones=1))
    assert (once.success, once.tokens) == (0.625, 9)


def test_a_root_that_can_do_nothing_waits():
    """Five items do not fit a window of four, and there are no clones: 6 tokens and three notices, for nothing."""
    rules = make_rules("chain", {"items": 5}, max_clones=0, token_cost=0.01)
    optimum = optimal_return(rules)
    assert optimum.plans == {5: None}
    assert (optimum.success, optimum.tokens) == (0, 9)
    assert optimum.team_return == pytest.approx(-0.09)
    assert evaluate_policy(OptimalPolicy(rules), rules, 10).team_return == pytest.approx(-0.09)


# What more money does


@pytest.mark.parametrize("limit", ["total_tokens", "generated_tokens", "max_clones", "max_turns", "max_depth"])
def test_more_of_anything_is_never_worse(limit):
    amounts = {"total_tokens": range(18, 121, 6), "generated_tokens": range(1, 30)}.get(limit, range(1, 9))
    amounts = range(4) if limit == "max_depth" else amounts
    for task in ("chain", "noisy"):
        rules = [make_rules(task, {"items": (2, 16)}, **{limit: amount}) for amount in amounts]
        success = [optimal_return(rule).success for rule in rules]
        assert success == sorted(success)
        assert success[0] < success[-1]


def test_cost_lowers_the_return_and_what_is_spent():
    optima = [optimal_return(make_rules("noisy", token_cost=cost)) for cost in (0, 0.002, 0.01, 0.05)]
    for one, other in itertools.pairwise(optima):
        assert one.team_return > other.team_return
        assert one.tokens >= other.tokens
    assert optima[0].tokens > optima[-1].tokens


@pytest.mark.parametrize("cost", [0.0, 0.001])
def test_without_a_window_the_best_plan_never_delegates(cost):
    """What docs/symbolic.md says of `chain`: no exploration is asked for."""
    best = optimal_return(make_rules("chain", {"items": (2, 8), "window": None}, token_cost=cost))
    assert {str(plan) for plan in best.plans.values()} == {"answer"}
    assert best.success == 1.0


def test_plans_are_printed():
    assert str(halves(halves())) == "call 0 (call 0 (answer, answer), answer, answer), answer"


def test_other_tasks_and_lengths_are_refused():
    class Unknown:
        """Everything of a chain but its type."""

        def __getattr__(self, name):
            return getattr(Chain(), name)

    with pytest.raises(ConfigError, match="length is 17; expected 2 to 16"):
        optimal_plan(make_rules(), 17)

    class Largest(Chain):
        """Another question about the same numbers."""

    for task in (Unknown(), Largest()):
        with pytest.raises(ConfigError, match=f"no optimum is known for the task {type(task).__name__}"):
            optimal_return(make_rules(task))
