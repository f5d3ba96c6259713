"""The named scenarios: what is registered, and that every stored reference is what its player earns."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import gymnasium
import numpy as np
import pettingzoo
import pytest
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.test.state_test import state_test

from selfcest_env import symbolic_v0
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic import (
    BatchDelegation,
    OptimalPolicy,
    RandomPolicy,
    evaluate_policy,
    make_rules,
    optimal_return,
)
from selfcest_env.symbolic.scenarios import EVALUATION_EPISODES, EVALUATION_SEED, SCENARIOS, find_horizon, get_scenario
from selfcest_env.symbolic.serial import SymbolicSerialVectorEnv
from selfcest_env.symbolic.vectors import observation_names

NAMES = (
    *("chain-4m2-v1", "chain-8m5-v1", "chain-16m5-v1", "alone-8m5-v1", "lookup-3-v1", "lookup-6-v1", "noisy-c005-v1"),
    *("cells-16-v1", "cells-16-hidden-v1", "cells-16-and-v1", "deep-8-v1", "deep-64-v1"),
)
TRACES = {
    "chain-4m2-v1": "1af3d9301212",
    "chain-8m5-v1": "e59daea8ea2f",
    "chain-16m5-v1": "bb3c5ca18cdf",
    "alone-8m5-v1": "71918e7d9f14",
    "lookup-3-v1": "e4f7d97cad43",
    "lookup-6-v1": "46f4628a2d6c",
    "noisy-c005-v1": "0648eb2947ac",
    "cells-16-v1": "21854135555d",
    "cells-16-hidden-v1": "2c31f20d4d07",
    "cells-16-and-v1": "4820a4a1c65a",
    "deep-8-v1": "b1799c4cb834",
    "deep-64-v1": "e5c27c395af4",
}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_names_are_these() -> None:
    assert tuple(SCENARIOS) == NAMES
    with pytest.raises(ConfigError, match=r"unknown scenario 'chain-8m5'\. Did you mean 'chain-8m5-v1'"):
        get_scenario("chain-8m5")


def trace_of(name: str) -> str:
    """A digest of all that random play of eight environments sees, may do and is paid, and of what the numbers mean."""
    rules = SCENARIOS[name].rules
    kernel, rng = BatchDelegation(rules, 8), np.random.default_rng(0)
    kernel.reset(seed=0)
    found = hashlib.blake2b(",".join(observation_names(rules)).encode(), digest_size=6)
    for _ in range(20):
        actions = kernel.sample_actions(rng)
        kernel.step(actions)
        seen = (kernel.observations() * 1000).round().astype("<i4")
        paid = (kernel.state.team_return * 10000).round().astype("<i4")
        for part in (actions.astype("<i4"), seen, kernel.action_masks().astype("<i4"), paid):
            found.update(np.ascontiguousarray(part).tobytes())
        kernel.restart()
    return found.hexdigest()


def test_a_scenario_is_frozen(name: str) -> None:
    """Rules, problems, observations and rewards: whatever changes one of these is a new version."""
    assert (EVALUATION_SEED, EVALUATION_EPISODES) == (2**40, 1000)
    assert trace_of(name) == TRACES[name]


def test_thresholds_are_out_of_reach_of_play_that_learned_nothing(name: str) -> None:
    known = SCENARIOS[name].reference
    assert SCENARIOS[name].normalize_return(known.random) == 0
    assert SCENARIOS[name].normalize_return(known.optimal) == 1
    assert known.random < SCENARIOS[name].threshold < known.optimal
    if name == "alone-8m5-v1":
        assert known.never == known.optimal
    else:
        assert (known.never or 0) < SCENARIOS[name].threshold


def test_optimal_and_undelegated_play_earn_what_is_stored(name: str) -> None:
    rules, known = SCENARIOS[name].rules, SCENARIOS[name].reference
    assert known.optimal == pytest.approx(optimal_return(rules).team_return, abs=5e-5)
    assert known.horizon == find_horizon(rules)
    if known.never is None:
        assert rules.forced_join_task, "there is no play without a call"
    else:
        assert known.never == pytest.approx(optimal_return(replace(rules, max_depth=0)).team_return, abs=5e-5)


def test_random_play_earns_and_idles_what_is_stored(name: str) -> None:
    rules, known = SCENARIOS[name].rules, SCENARIOS[name].reference
    kernel, policy, idle, steps = BatchDelegation(rules, 10_000), RandomPolicy(0), 0, 0
    kernel.reset(EVALUATION_SEED)
    while not kernel.done.all():
        acting = kernel.can_act[~kernel.done]
        idle, steps = idle + (~acting).sum(), steps + acting.size
        kernel.step(policy.actions(kernel))
    assert round(float(kernel.state.team_return.mean()), 4) == known.random
    assert round(idle / steps, 3) == known.idle
    best = evaluate_policy(OptimalPolicy(rules), rules, 10_000, EVALUATION_SEED)
    assert best.team_return == pytest.approx(known.optimal, abs=max(5 * best.standard_error, 5e-5))


def test_the_horizon_by_hand() -> None:
    # Two clones at depth one: call, reply, call, reply, answer.
    assert find_horizon(make_rules("chain", {"splits": (2,)}, max_clones=2, max_depth=1)) == 5
    # One below the other: the root's call, its clone's call, two answers, and the root's.
    assert find_horizon(make_rules("chain", {"splits": (2,)}, max_clones=2, max_depth=2, max_turns=2)) == 5
    assert find_horizon(make_rules("chain", max_depth=0)) == 1
    assert find_horizon(make_rules("cells", {"cells": 4})) == 2


def test_no_episode_exceeds_the_horizon(name: str) -> None:
    rules = SCENARIOS[name].rules
    kernel, policy = BatchDelegation(rules, 200), RandomPolicy(1)
    kernel.reset(1)
    for _ in range(SCENARIOS[name].reference.horizon):
        kernel.step(policy.actions(kernel))
    assert kernel.done.all()


# Registries


def test_in_gymnasium_by_an_id_that_names_its_module(name: str) -> None:
    env = gymnasium.make(f"selfcest_env.symbolic_v0:selfcest/{name}")
    assert env.unwrapped.rules == SCENARIOS[name].rules
    assert env.spec.reward_threshold == SCENARIOS[name].threshold
    vector = gymnasium.make_vec(f"selfcest/{name}", num_envs=2)
    assert isinstance(vector.unwrapped, SymbolicSerialVectorEnv)
    assert vector.unwrapped.rules == SCENARIOS[name].rules


@pytest.mark.skipif(not hasattr(pettingzoo, "make"), reason="this PettingZoo has no registry")
def test_in_pettingzoo(name: str) -> None:
    for interface in ("aec", "parallel"):
        env = pettingzoo.make(interface, f"selfcest/{name}", population="dynamic")
        assert env.unwrapped.rules == SCENARIOS[name].rules


@pytest.mark.parametrize("population", ["fixed", "persistent", "dynamic"])
def test_official_tests_pass(name: str, population: str) -> None:
    options = {**SCENARIOS[name].env_kwargs, "population": population}
    cycles = 20 if name == "deep-64-v1" else 60  # which has 63 agents
    parallel_api_test(symbolic_v0.parallel_env(**options), cycles)
    api_test(symbolic_v0.env(**options), cycles)
    seed_test(lambda: symbolic_v0.env(**options), cycles)
    parallel_seed_test(lambda: symbolic_v0.parallel_env(**options), cycles)
    state_test(symbolic_v0.env(**options), symbolic_v0.parallel_env(**options), cycles)
