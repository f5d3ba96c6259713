"""The symbolic game under PettingZoo's own tests, and under ours where those look away."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, render_test, seed_test
from pettingzoo.test.max_cycles_test import max_cycles_test
from pettingzoo.test.state_test import state_test
from pettingzoo.utils import parallel_to_aec

from selfcest_env import symbolic_v0
from selfcest_env.draw import HEIGHT, WIDTH
from selfcest_env.errors import ConfigError, GameError
from selfcest_env.palette import PAGE
from selfcest_env.symbolic import BatchDelegation, Chain, make_rules
from selfcest_env.symbolic.optimum import optimal_return
from selfcest_env.symbolic.parallel import SymbolicEnv
from selfcest_env.symbolic.reference import RandomPolicy, evaluate_policy
from selfcest_env.symbolic.state import UNBORN
from selfcest_env.symbolic.streams import fold_in
from selfcest_env.symbolic.vectors import AGENT_FEATURES, GLOBAL_FEATURES, OBSERVATION_FEATURES, observation_names
from selfcest_env.types import Status

POPULATIONS = ("dynamic", "persistent", "fixed")
INFO = ("can_act", "depth", "parent", "tokens_left", "status", "illegal")
STATUS = {status: number for number, status in enumerate(Status)}
UNBORN_INFO = dict.fromkeys(INFO, 0) | {"parent": -1, "status": -1}

# Small games in which purses run dry, clones are refused and truncation happens.
GAMES: dict[str, dict[str, Any]] = {
    "chain": {"task_options": {"items": (2, 12)}, "total_tokens": 60, "token_cost": 0.001},
    "lookup": {"total_tokens": 30, "generated_tokens": 9, "max_clones": 3},
    "noisy": {"total_tokens": 40, "max_clones": 5, "max_turns": 3},
    "cells": {"task_options": {"cells": 4, "coupling": "zipf", "hidden": 0.3}, "max_clones": 5, "token_cost": 0.001},
    "deep": {"task_options": {"items": (2, 8)}, "total_tokens": 58, "token_cost": 0.001},
}


@pytest.fixture(params=GAMES)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=POPULATIONS)
def population(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["dict", "flat"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """PettingZoo warns about every space that is neither Box nor Discrete, and about seats never taken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def few_of(many: int, few: int) -> list[Any]:
    """So many seeds, of which all but a few are slow tests."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(few, many))]


def make(task: str = "chain", **kwargs: Any) -> SymbolicEnv:
    return SymbolicEnv(task, **{**GAMES[task], **kwargs})


def joint(env: SymbolicEnv, seen: Mapping[str, Any], rng: random.Random) -> dict[str, int]:
    """Mostly legal actions, drawn for every possible agent in order, so that no population draws others."""
    actions = {}
    for agent in env.possible_agents:
        luck, anything = rng.random(), rng.randrange(-2, env.rules.num_actions + 2)
        if agent in env.agents:
            mask = seen[agent]["action_mask"]
            legal = np.flatnonzero(mask)
            actions[agent] = anything if luck < 0.1 else int(legal[int(luck * 1e6) % len(legal)])
    return actions


def trajectory(env: SymbolicEnv, seed: int | None, policy: int = 0) -> list[Any]:
    """Everything that comes out of one episode; without a seed the running one is played on."""
    rng = random.Random(policy)
    steps: list[Any] = [env.reset(seed)] if seed is not None else []
    seen = steps[0][0] if steps else env._observe(env.agents)[0]
    while env.agents:
        result = env.step(joint(env, seen, rng))
        seen = result[0]
        steps.append((*result, env.state(), list(env.agents)))
    return steps


def same(left: Any, right: Any) -> bool:
    """Equality through nested containers of arrays, in value, type and order of keys."""
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right) and left.dtype == right.dtype)
    if isinstance(left, Mapping):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


def symbols(env: SymbolicEnv, observation: Mapping[str, Any]) -> list[int]:
    """The segment in an observation."""
    names = observation_names(env.rules)
    set_names = [name for name, on in zip(names, observation["observation"], strict=True) if on and "place" in name]
    return [int(name.split("_")[-1]) for name in set_names]


# PettingZoo's own


def official(task: str, population: str, mode: str, num_cycles: int) -> None:
    options = {**GAMES[task], "task": task, "population": population, "observation_mode": mode}
    parallel_api_test(symbolic_v0.parallel_env(**options), num_cycles)
    api_test(symbolic_v0.env(**options), num_cycles)
    api_test(symbolic_v0.raw_env(**options), num_cycles)
    seed_test(lambda: symbolic_v0.env(**options), num_cycles)
    parallel_seed_test(lambda: symbolic_v0.parallel_env(**options), num_cycles)
    state_test(symbolic_v0.env(**options), symbolic_v0.parallel_env(**options), num_cycles)


def test_official_tests_pass(task: str, population: str, mode: str) -> None:
    official(task, population, mode, 60)


@pytest.mark.slow
def test_official_tests_pass_twenty_times(task: str, population: str, mode: str) -> None:
    for _ in range(20):
        official(task, population, mode, 200)


def test_official_render_test_passes(task: str, population: str, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"task": task, "population": population, "observation_mode": mode}
    render_test(lambda **kw: symbolic_v0.env(**options, **kw))
    assert "agent_0  ready" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(pettingzoo, "make"), reason="this PettingZoo has no registry")
def test_registered() -> None:
    env = pettingzoo.make("parallel", "selfcest/symbolic-v0", task="lookup", max_cycles=7)
    assert isinstance(env, SymbolicEnv)
    assert env.max_cycles == 7
    assert pettingzoo.make("aec", "selfcest/symbolic_v0").unwrapped.rules == make_rules()


# The game through this face


def test_a_hand_played_chain() -> None:
    """Eight items, agents may answer four. Prices in tokens: opening 1 + symbols, call k, replies 1 + k, answer 1."""
    env = SymbolicEnv("chain", task_options={"items": 8}, token_cost=0.01, population="dynamic")
    seen, infos = env.reset(seed=3)
    items = symbols(env, seen["agent_0"])
    assert env.agents == ["agent_0"]
    assert len(items) == 8
    assert infos["agent_0"] == {**UNBORN_INFO, "can_act": 1, "tokens_left": 96 - 9, "status": STATUS[Status.READY]}
    # WAIT, five answers, two splits: too long to be answered.
    assert seen["agent_0"]["action_mask"].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    # 1: split in two. 87 - 2 for the call - 4 for the replies and an answer leave 81, 40 for each clone.
    seen, rewards, terminations, truncations, infos = env.step({"agent_0": 6})
    assert env.agents == ["agent_0", "agent_1", "agent_2"]
    assert [symbols(env, seen[agent]) for agent in env.agents] == [[], items[:4], items[4:]]
    assert [infos[agent]["can_act"] for agent in env.agents] == [0, 1, 1]
    assert [infos[agent]["parent"] for agent in env.agents] == [-1, 0, 0]
    assert [infos[agent]["depth"] for agent in env.agents] == [0, 1, 1]
    assert [infos[agent]["tokens_left"] for agent in env.agents] == [85 - 80, 40 - 5, 40 - 5]
    assert infos["agent_0"]["status"] == STATUS[Status.WAITING]
    assert seen["agent_0"]["action_mask"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert rewards == dict.fromkeys(env.agents, 0.0)
    # 2: the actions of the root and of unborn agents are ignored; clone 1 answers and leaves; clone 2 says nothing,
    # for a token.
    left = sum(items[:4]) % 5
    seen, _, terminations, _, infos = env.step({"agent_0": 1, "agent_1": 1 + left, "agent_7": 3, "agent_8": 1})
    assert terminations == {"agent_0": False, "agent_1": True, "agent_2": False}
    assert env.agents == ["agent_0", "agent_2"]
    assert infos["agent_0"] == {**UNBORN_INFO, "tokens_left": 5, "status": STATUS[Status.WAITING]}
    assert infos["agent_1"]["tokens_left"] == 0
    assert (infos["agent_2"]["tokens_left"], infos["agent_2"]["illegal"]) == (34, 1)
    # 3: the last reply wakes the parent at once; 34 + 33 come back, the message with two replies costs 3.
    right = sum(items[4:]) % 5
    seen, _, _, _, infos = env.step({"agent_2": 1 + right})
    assert env.agents == ["agent_0"]
    assert infos["agent_0"]["tokens_left"] == 5 + 34 + 33 - 3
    assert symbols(env, seen["agent_0"]) == [left, right]
    # 4: the end. 28 tokens: 9 + 2 + 3 + 1 by the root, 5 + 1 and 5 + 1 + 1 by the clones.
    _, rewards, terminations, truncations, _ = env.step({"agent_0": 1 + (left + right) % 5})
    assert rewards == {"agent_0": pytest.approx(1 - 0.28)}
    assert (terminations, truncations) == ({"agent_0": True}, {"agent_0": False})
    assert env.team_return == rewards["agent_0"]
    assert env.agents == []
    assert env.step({}) == env.step({"agent_0": 1}) == ({}, {}, {}, {}, {})


def test_a_hand_played_lookup() -> None:
    env = SymbolicEnv("lookup", task_options={"hops": 3}, population="dynamic")
    seen, _ = env.reset(seed=0)
    trail = symbols(env, seen["agent_0"])
    for clone in ("agent_1", "agent_2", "agent_3"):
        seen, *_ = env.step({"agent_0": 9 + trail[-1]})  # WAIT, eight answers, then ASK 0 to 3
        (found,) = symbols(env, seen[clone])
        assert not seen[clone]["action_mask"][9:].any()
        seen, *_ = env.step({clone: 1 + found})
        trail.append(found)
        assert symbols(env, seen["agent_0"]) == [found]
    assert all(symbol < 4 for symbol in trail[:-1])
    assert trail[-1] >= 4
    _, rewards, *_ = env.step({"agent_0": 1 + trail[-1]})
    assert rewards == {"agent_0": 1.0}


def test_the_team_reward_reaches_everyone_present() -> None:
    for population, present in (("dynamic", 1), ("persistent", 3), ("fixed", 9)):
        env = SymbolicEnv("chain", task_options={"items": 4}, population=population)
        seen, _ = env.reset(seed=1)
        total = sum(symbols(env, seen["agent_0"])) % 5
        env.step({"agent_0": 6})
        _, rewards, *_ = env.step({"agent_1": 1, "agent_2": 1})
        assert set(rewards.values()) == {0.0}
        _, rewards, terminations, truncations, _ = env.step({"agent_0": 1 + total})
        assert list(rewards.values()) == [1.0] * present
        assert all(type(reward) is float for reward in rewards.values())
        assert all(value is True for value in terminations.values())
        assert all(value is False for value in truncations.values())
        assert env.agents == []


def test_illegal_actions_are_waits_and_counted() -> None:
    env = SymbolicEnv("chain", task_options={"items": 8}, max_turns=9)
    env.reset(seed=0)
    counted = []
    for action in (0, None, 1, 8, -1, 10**30, np.int32(3), np.array(2), True):
        *_, infos = env.step({} if action is None else {"agent_0": action})
        counted.append((infos["agent_0"]["illegal"], infos["agent_0"]["tokens_left"]))
    # WAIT is illegal too for who could act. Each costs a token, the last one the last turn. Eight symbols are too many
    # to be answered, by a True (ANSWER 0) as well.
    assert counted == [(1, 86), (2, 85), (3, 84), (4, 83), (5, 82), (6, 81), (7, 80), (8, 79), (9, 0)]
    assert infos["agent_0"]["status"] == STATUS[Status.OUT_OF_TURNS]
    env.reset()
    *_, infos = env.step({"agent_0": 6, "agent_3": 99})
    assert infos["agent_0"]["illegal"] == infos["agent_3"]["illegal"] == 0


@pytest.mark.parametrize("action", [0.5, "1", np.array([1, 2]), np.float32(1.5), float("nan"), (1,), np.str_("1")])
def test_what_is_no_number_is_a_mistake(action: Any) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(GameError, match=r"the action of agent_0 is .*; expected a whole number from 0 to 7"):
        env.step({"agent_0": action})


@pytest.mark.parametrize("action", [1.0, np.float32(1), np.array([1]), np.array([[1.0]]), np.uint8(1)])
def test_what_holds_one_whole_number_is_that_number(action: Any) -> None:
    expected, found = make(task="noisy"), make(task="noisy")
    for env, played in ((expected, 1), (found, action)):
        env.reset(seed=0)
        env.step({"agent_0": played})
    assert found.agents == expected.agents == []  # answered
    assert found.team_return == expected.team_return


def test_running_out_of_turns_is_termination(population: str) -> None:
    env = make(population=population, max_turns=2)
    env.reset(seed=0)
    env.step({})
    _, rewards, terminations, truncations, _ = env.step({})
    assert set(terminations.values()) == {True}
    assert set(truncations.values()) == {False}
    tokens = env._batch.total_tokens()[0]
    assert tokens > 2
    assert list(rewards.values()) == [pytest.approx(-0.001 * tokens)] * len(rewards)


def test_only_max_cycles_truncates(population: str) -> None:
    env = SymbolicEnv("chain", task_options={"items": 12}, max_cycles=2, population=population)
    env.reset(seed=0)
    env.step({"agent_0": 6})
    seen, rewards, terminations, truncations, infos = env.step({"agent_1": 6})
    assert set(truncations.values()) == {True}
    assert set(terminations.values()) == {False}
    assert list(rewards) == (env.possible_agents if population == "fixed" else ["agent_0", "agent_1", "agent_2"])
    assert set(rewards.values()) == {0.0}
    assert env.agents == []
    assert env.team_return == 0.0
    # Learners bootstrap from what is seen at the cut, though nobody may act any more.
    assert len(symbols(env, seen["agent_2"])) == 6
    assert not any(info["can_act"] for info in infos.values())
    assert env.step({"agent_2": 1}) == ({}, {}, {}, {}, {})


def test_who_ends_on_the_last_cycle_has_ended() -> None:
    env = SymbolicEnv("chain", task_options={"items": 4}, max_cycles=1)
    env.reset(seed=0)
    _, _, terminations, truncations, _ = env.step({"agent_0": 1})
    assert (terminations["agent_0"], truncations["agent_0"]) == (True, False)
    env = SymbolicEnv("chain", task_options={"items": 8}, max_cycles=2, population="dynamic")
    env.reset(seed=0)
    env.step({"agent_0": 6})
    _, _, terminations, truncations, _ = env.step({"agent_1": 1})
    assert terminations == {"agent_0": False, "agent_1": True, "agent_2": False}
    assert truncations == {"agent_0": True, "agent_1": False, "agent_2": True}


def test_masks_are_the_same_in_both_modes(task: str, population: str) -> None:
    one, two = make(task, population=population), make(task, population=population, observation_mode="flat")
    seen, _ = one.reset(seed=5)
    flat, infos = two.reset(seed=5)
    rng = random.Random(0)
    while one.agents:
        for agent in one.agents:
            assert same(seen[agent], {"observation": flat[agent], "action_mask": infos[agent]["action_mask"]})
        actions = joint(one, seen, rng)
        seen, *ends = one.step(actions)
        flat, *other_ends, infos = two.step(actions)
        assert same(ends[:-1], other_ends)


def test_without_limits_nothing_runs_out() -> None:
    env = SymbolicEnv("chain", total_tokens=None, max_clones=2)
    _, infos = env.reset(seed=0)
    assert infos["agent_0"]["tokens_left"] == -1
    assert infos["agent_1"] == UNBORN_INFO
    assert "14/unlimited tokens" not in str(env.render())
    trajectory(env, 4)


# One game behind every face


def test_every_population_plays_the_same_game(task: str) -> None:
    clones = 0
    for seed in range(20):
        fixed, *others = (trajectory(make(task, population=name), seed, seed) for name in ("fixed", *POPULATIONS[:2]))
        for steps in others:
            assert len(steps) == len(fixed)
            for step, whole in zip(steps[1:], fixed[1:], strict=True):
                for agent in step[0]:
                    assert same(step[0][agent], whole[0][agent])
                    assert same(step[4][agent], whole[4][agent])
                assert same(step[5], whole[5])
                assert max(step[1].values(), key=abs) == max(whole[1].values(), key=abs)
                clones += len(step[0]) > 1
    assert clones > 20


@pytest.mark.parametrize("seed", few_of(25, 6))
def test_aec_is_parallel(task: str, population: str, seed: int) -> None:
    parallel, aec = make(task, population=population), parallel_to_aec(make(task, population=population))
    seen, infos = parallel.reset(seed=seed)
    aec.reset(seed=seed)
    rng = random.Random(seed)
    while parallel.agents:
        actions = joint(parallel, seen, rng)
        for agent in list(parallel.agents):
            assert agent == aec.agent_selection
            observation, _, ended, cut, info = aec.last()
            assert not ended
            assert not cut
            assert same([observation, info], [seen[agent], infos[agent]])
            aec.step(actions[agent])
        seen, rewards, terminations, truncations, infos = parallel.step(actions)
        assert aec.terminations == terminations
        assert aec.truncations == truncations
        assert aec.rewards == rewards
        assert same(parallel.state(), aec.state())
        while aec.agents and (aec.terminations[aec.agent_selection] or aec.truncations[aec.agent_selection]):
            agent = aec.agent_selection
            assert same([aec.last()[0], aec.last()[1]], [seen[agent], rewards[agent]])
            aec.step(None)
    assert aec.agents == []


@pytest.mark.parametrize("steps", [80, pytest.param(250, marks=pytest.mark.slow)])
def test_a_scalar_environment_is_a_row_of_the_batch(task: str, steps: int) -> None:
    """Twelve environments on one kernel against twelve objects, so many joint steps, episodes one after another."""
    envs = [make(task, max_cycles=9) for _ in range(12)]
    rules = envs[0].rules
    batch = BatchDelegation(rules, len(envs), max_cycles=9)
    batch.reset(keys=np.concatenate([fold_in(np.array([40 + k], np.uint64), 0) for k in range(len(envs))]))
    seen = [env.reset(seed=40 + k)[0] for k, env in enumerate(envs)]
    rng, episodes = np.random.default_rng(0), 0
    for _ in range(steps):
        observations, masks, states = batch.observations(), batch.action_masks(), batch.states()
        for k, env in enumerate(envs):
            for seat, agent in enumerate(env.possible_agents):
                assert np.array_equal(seen[k][agent]["observation"], observations[k, seat])
                assert np.array_equal(seen[k][agent]["action_mask"], masks[k, seat])
            assert np.array_equal(env.state(), states[k])
        actions = batch.sample_actions(rng)
        wild = rng.random(actions.shape) < 0.1
        actions[wild] = rng.integers(-1, rules.num_actions + 1, wild.sum())
        batch.step(actions)
        for k, env in enumerate(envs):
            named = dict(zip(env.possible_agents, actions[k].tolist(), strict=True))
            seen[k], rewards, terminations, truncations, _ = env.step(named)
            assert set(rewards.values()) == {batch.state.team_return[k]}
            assert set(terminations.values()) == {bool(batch.state.terminated[k])}
            assert set(truncations.values()) == {bool(batch.state.truncated[k])}
            if batch.done[k]:
                seen[k], episodes = env.reset()[0], episodes + 1
        batch.restart()
    assert episodes > 1.2 * steps


# The same seed, the same episode


def test_whole_trajectories_repeat(task: str, population: str) -> None:
    returns = set()
    for seed in range(15):
        one, two = make(task, population=population), make(task, population=population)
        assert same(trajectory(one, seed), trajectory(two, seed))
        returns.add(one.team_return)
    assert len(returns) > 1


def test_a_seed_starts_a_series_and_no_seed_goes_on() -> None:
    env, other = make(), make()
    env.reset(seed=5)
    first = [env.reset()[0] for _ in range(4)]
    assert not any(same(first[0], later) for later in first[1:])
    other.reset(seed=np.int64(5))  # type: ignore[arg-type]
    assert same([other.reset()[0] for _ in range(4)], first)
    unseeded, another = make(), make()
    unseeded.reset()
    another.reset()
    assert not np.array_equal(unseeded._batch.state.keys, another._batch.state.keys)


def test_reset_seeds_the_spaces_of_agents_not_yet_born() -> None:
    one, two = make(population="dynamic"), make(population="dynamic")
    one.reset(seed=3)
    two.reset(seed=3)
    samples = [
        [(env.action_space(a).sample(), env.observation_space(a).sample()) for a in env.possible_agents]
        for env in (one, two)
    ]
    assert same(samples[0], samples[1])
    assert not same(samples[0][0][1], samples[0][1][1])


def test_a_pinned_trajectory() -> None:
    """What must not change within v0: problems, grants, numbers, endings. A line per joint step: what the agents do,
    what is left to them, what is paid."""
    env = SymbolicEnv("chain", total_tokens=80, token_cost=0.005, max_clones=4, task_options={"items": (9, 12)})
    seen, infos = env.reset(seed=2026)
    rng, lines = random.Random(1), []
    for _ in range(2):
        lines.append([symbols(env, seen["agent_0"])])
        while env.agents:
            actions = [int(rng.choice(np.flatnonzero(seen[agent]["action_mask"]).tolist())) for agent in env.agents]
            seen, rewards, _, _, infos = env.step(dict(zip(env.agents, actions, strict=True)))
            left = [infos[agent]["tokens_left"] for agent in env.possible_agents]
            lines.append([actions, left, round(rewards["agent_0"], 6)])
        seen, infos = env.reset()
    assert lines == PINNED


PINNED: list[Any] = [
    [[3, 4, 1, 3, 4, 3, 4, 0, 0, 2, 3]],
    [[6, 0, 0, 0, 0], [4, 24, 25, 0, 0], 0.0],
    [[0, 0, 0, 0, 0], [4, 23, 24, 0, 0], 0.0],
    [[0, 0, 0, 0, 0], [4, 22, 23, 0, 0], 0.0],
    [[0, 0, 0, 0, 0], [4, 21, 22, 0, 0], 0.0],
    [[0, 0, 0, 0, 0], [44, 0, 0, 0, 0], 0.0],
    [[6, 0, 0, 0, 0], [4, 0, 0, 17, 17], 0.0],
    [[0, 0, 0, 3, 2], [33, 0, 0, 0, 0], 0.0],
    [[2, 0, 0, 0, 0], [0, 0, 0, 0, 0], -0.24],
    [[2, 1, 1, 3, 1, 4, 0, 2, 1, 0, 1, 3]],
    [[6, 0, 0, 0, 0], [5, 23, 23, 0, 0], 0.0],
    [[0, 0, 0, 0, 0], [5, 22, 22, 0, 0], 0.0],
    [[0, 0, 0, 0, 0], [5, 21, 21, 0, 0], 0.0],
    [[0, 0, 0, 0, 0], [5, 20, 20, 0, 0], 0.0],
    [[0, 0, 0, 0, 0], [42, 0, 0, 0, 0], 0.0],
    [[4, 0, 0, 0, 0], [0, 0, 0, 0, 0], -0.195],
]


# Snapshots


@pytest.mark.parametrize("seed", few_of(4, 1))
def test_snapshots_replay_identically(task: str, population: str, seed: int) -> None:
    env, rng = make(task, population=population), random.Random(seed)
    seen, _ = env.reset(seed=seed)
    snapshots = []
    while env.agents:
        snapshots.append((env.get_snapshot(), rng.getstate(), seen))
        seen, *_ = env.step(joint(env, seen, rng))
    expected = (env.team_return, env.state(), [env.action_space(a).sample() for a in env.possible_agents], env.reset())
    fresh = make(task, population=population)
    for snapshot, drawn, before in snapshots:
        for other in (env, fresh, pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
            for _ in range(2):
                other.set_snapshot(pickle.loads(pickle.dumps(snapshot)))
                rng.setstate(drawn)
                seen = before
                while other.agents:
                    seen, *_ = other.step(joint(other, seen, rng))
                samples = [other.action_space(a).sample() for a in other.possible_agents]
                assert same((other.team_return, other.state(), samples, other.reset()), expected)


def test_pickle_and_deepcopy_keep_a_running_episode(task: str, population: str) -> None:
    for seed in range(6):
        env = make(task, population=population)
        seen, _ = env.reset(seed=seed)
        env.step(joint(env, seen, random.Random(seed)))
        copies = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
        expected = trajectory(env, None, seed)
        for other in copies:
            assert same(trajectory(other, None, seed), expected)


@pytest.mark.parametrize(
    "other",
    [
        {"total_tokens": 40},
        {"max_depth": 1},
        {"task_options": {"modulus": 2}},
        {"population": "fixed"},
        {"max_cycles": 9},
    ],
)
def test_a_snapshot_of_other_rules_is_refused_and_changes_nothing(other: dict[str, Any]) -> None:
    """With another total of tokens the return of a right answer was 1.46."""
    env, another = symbolic_v0.parallel_env("chain", token_cost=0.01), symbolic_v0.parallel_env("chain", **other)
    for one, two in ((env, another), (another, env)):
        one.reset(seed=0)
        two.reset(seed=1)
        before = one.state()
        with pytest.raises(ConfigError, match="the snapshot is of an environment with other arguments"):
            one.set_snapshot(two.get_snapshot())
        assert (one.state() == before).all()


def test_a_snapshot_outlives_later_steps_and_may_be_taken_before_the_first() -> None:
    env = make()
    untouched = env.get_snapshot()
    env.reset(seed=0)
    start = env.get_snapshot()
    first = trajectory(env, None)
    env.set_snapshot(start)
    assert same(trajectory(env, None), first)
    env.set_snapshot(untouched)
    with pytest.raises(GameError, match="reset"):
        env.step({})
    env.reset()
    one = env._batch.state.keys.copy()
    env.set_snapshot(untouched)
    env.reset()
    assert not np.array_equal(env._batch.state.keys, one)


def test_nothing_is_shared_between_steps_or_agents(population: str, mode: str) -> None:
    env = SymbolicEnv("chain", task_options={"items": 8}, population=population, observation_mode=mode)
    results: list[Any] = [env.reset(seed=1)]
    states = []
    for actions in (
        {"agent_0": 7},
        {"agent_1": 9, "agent_2": 1, "agent_3": 2, "agent_4": 3},
        {"agent_1": 4},
        {"agent_0": 1},
    ):
        results.append(env.step(actions))
        states.append(env.state())
    assert env.agents == []
    arrays = [
        value
        for result in results
        for part in (result[0], result[-1])
        for seen in part.values()
        for value in (seen.values() if isinstance(seen, dict) else [seen])
        if isinstance(value, np.ndarray)
    ]
    assert len(arrays) > 10
    assert all(not np.may_share_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    assert all(not np.may_share_memory(a, env._batch.state.tape) for a in (*arrays, *states))
    dicts = [d for result in results for part in result for d in (part, *part.values()) if isinstance(d, dict)]
    assert len({id(d) for d in dicts}) == len(dicts)
    infos = [info for result in results for info in result[-1].values()]
    assert {tuple(info) for info in infos} == {(*INFO, "action_mask") if mode == "flat" else INFO}
    assert all(type(info[key]) is int for info in infos for key in INFO)


# Pictures


def test_the_tree_as_text_and_as_image(capsys: pytest.CaptureFixture[str]) -> None:
    env, human = (SymbolicEnv("chain", task_options={"items": 8}, render_mode=mode) for mode in ("ansi", "human"))
    shown = []
    for one in (env, human):
        one.reset(seed=3)
        shown += [env.render()]
        one.step({"agent_0": 6})
        shown += [env.render()]
        one.step({"agent_1": 3, "agent_2": 6})
    assert env.render() == TREE
    assert human.render() is None
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in (*shown[:2], TREE)), "after every step"
    env.render_mode = "rgb_array"
    image = env.render()
    assert isinstance(image, np.ndarray)
    assert (image.shape, image.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
    assert (image != PAGE.rgb).any()
    env.render_mode = None
    assert env.render() is None


TREE = """\
Chain, the answer is 2, cycle 2
agent_0  waiting  11/96 tokens, 1 of 4 turns
├─ agent_1  answered  6/40 tokens, 1 of 4 turns
│     replied 2
└─ agent_2  waiting  7/40 tokens, 1 of 4 turns
   ├─ agent_3  ready  3/14 tokens, 0 of 4 turns
   │     holds 2 4
   └─ agent_4  ready  3/14 tokens, 0 of 4 turns
         holds 2 4"""


# Budgets, mistakes, surface


@settings(max_examples=60, deadline=None)
@given(
    task=st.sampled_from(["chain", "noisy", "lookup", "deep"]),
    population=st.sampled_from(POPULATIONS),
    limits=st.fixed_dictionaries(
        {
            "max_clones": st.integers(0, 14),
            "max_depth": st.integers(0, 1),
            "max_turns": st.integers(1, 5),
            "total_tokens": st.integers(18, 120),
            "generated_tokens": st.none() | st.integers(1, 30),
        }
    ),
    deeper=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_no_population_ever_overspends(
    task: str, population: str, limits: dict[str, Any], deeper: bool, seed: int
) -> None:
    depth = limits["max_depth"] + 2 * (deeper and task != "lookup")
    env = SymbolicEnv(task, **{**limits, "max_depth": depth}, population=population)
    seen, infos = env.reset(seed=seed)
    rng = random.Random(seed)
    while env.agents:
        seen, _, _, _, infos = env.step(joint(env, seen, rng))
        state = env._batch.state
        born = state.status[0] != UNBORN
        spent = int((state.prompt_tokens + state.generated_tokens)[0, born].sum())
        assert spent + int(state.tokens_left[0, born].sum()) == limits["total_tokens"]
        assert (state.tokens_left[0, born] >= 0).all()
        assert sum(info["tokens_left"] for info in infos.values()) <= limits["total_tokens"] - spent
        if limits["generated_tokens"] is not None:
            assert int(state.generated_tokens[0, born].sum()) <= limits["generated_tokens"]
            assert (state.generated_left[0, born] >= 0).all()
        assert born.sum() <= 1 + limits["max_clones"]
        assert state.depth[0, born].max() <= depth
        assert all(env.observation_space(agent).contains(seen[agent]) for agent in seen)
        assert env.state_space.contains(env.state())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_clones": None}, "max_clones is None .*from 0 to 254"),
        ({"max_clones": -1}, "max_clones is -1; expected a whole number from 0 to 254"),
        ({"max_clones": 2.5}, "max_clones is 2.5"),
        ({"max_clones": True}, "max_clones is True"),
        ({"max_depth": -1}, "max_depth is -1; expected a whole number from 0"),
        ({"max_turns": 0}, "max_turns is 0; expected a whole number from 1"),
        ({"total_tokens": 17}, "total_tokens is 17; expected a whole number from 18"),
        ({"generated_tokens": 0}, "generated_tokens is 0; expected a whole number from 1"),
        ({"token_cost": -0.1}, "token_cost is -0.1; expected a finite number >= 0"),
        ({"token_cost": float("nan")}, "token_cost is nan"),
        ({"token_cost": "low"}, "token_cost is 'low'"),
        ({"max_cycles": 0}, "max_cycles is 0; expected a whole number"),
        ({"max_cycles": 2.5}, "max_cycles is 2.5"),
        ({"population": "dynamc"}, "population is 'dynamc'.*Did you mean 'dynamic'"),
        ({"observation_mode": "text"}, "observation_mode is 'text'; expected one of dict, flat"),
        ({"render_mode": "rgb"}, "render_mode is 'rgb'"),
        ({"task": "chains"}, "'chains'.*Did you mean 'chain'"),
        ({"task_options": {"window": 0}}, "task_options.window is 0"),
        ({"task_options": {"windw": 2}}, "task_options.windw is unknown.*Did you mean 'window'"),
        ({"task_options": {"items": (5, 2)}}, r"items is \(5, 2\)"),
        (
            {"task": Chain(), "task_options": {"items": 3}},
            "task_options are .*; expected None, because the task is an object",
        ),
        ({"task": "lookup", "max_depth": 2}, "max_depth is 2; expected 0 or 1"),
        ({"task": "lookup", "task_options": {"hops": 9}}, "hops is 9; expected 1 <= fewest <= most <= keys = 4"),
        ({"task": "noisy", "task_options": {"rot": 1.5}}, "rot is 1.5; expected a probability"),
        ({"task": "cells", "task_options": {"coupling": "sum"}}, "coupling is 'sum'; expected one of additive, zipf"),
        ({"task": "cells", "task_options": {"hidden": 2}}, "hidden is 2.0; expected a probability"),
        ({"task": "cells", "task_options": {"cells": 65}}, "cells is 65; expected a whole number from 2 to 64"),
        ({"task": "cells", "max_depth": 2}, "max_depth is 2; expected .*the root makes one call"),
        ({"task": "cells", "max_clones": 7}, "max_clones is 7; expected a whole number from 8 to 254.*for every part"),
        ({"task": "cells", "max_turns": 1}, "max_turns is 1; expected a whole number from 2"),
        ({"task": "cells", "total_tokens": 66}, "total_tokens is 66; expected a whole number from 67"),
        ({"task": "cells", "generated_tokens": 16}, "generated_tokens is 16; expected a whole number from 17"),
        ({"task": "deep", "task_options": {"window": None}}, "window is None; expected a whole number"),
    ],
)
def test_an_impossible_argument_is_refused_at_once(kwargs: dict[str, Any], message: str) -> None:
    for build in (symbolic_v0.parallel_env, symbolic_v0.env):
        with pytest.raises(ValueError, match=message):
            build(**kwargs)


@pytest.mark.parametrize("build", [symbolic_v0.env, symbolic_v0.raw_env])
def test_aec_takes_the_task_without_its_name_as_parallel_does(build: Any) -> None:
    assert build("lookup").unwrapped.rules == symbolic_v0.parallel_env("lookup").rules


def test_mistakes_of_the_caller_are_named() -> None:
    env = make()
    for use in (env.state, env.render, lambda: env.step({}), lambda: env.team_return):
        with pytest.raises(GameError, match="reset|not over"):
            use()
    with pytest.raises(ConfigError, match="'tsak'"):
        env.reset(options={"tsak": 1})
    for seed in (-1, 1.5, "a", True):
        with pytest.raises(ConfigError, match="seed is .*; expected a whole number >= 0, or None"):
            env.reset(seed=seed)  # type: ignore[arg-type]
    env.reset(seed=0)
    with pytest.raises(GameError, match="not over"):
        _ = env.team_return


def test_the_public_surface() -> None:
    assert set(symbolic_v0.__all__) == {"SymbolicSnapshot", "env", "parallel_env", "raw_env"}
    defaults = {name: p.default for name, p in inspect.signature(symbolic_v0.parallel_env).parameters.items()}
    assert defaults == {
        "task": "chain",
        "task_options": None,
        "max_clones": 8,
        "max_depth": None,
        "max_turns": 4,
        "total_tokens": 96,
        "generated_tokens": None,
        "token_cost": 0.0,
        "max_cycles": None,
        "population": "fixed",
        "observation_mode": "dict",
        "render_mode": None,
    }
    own = {name for name in vars(SymbolicEnv) if not name.startswith("_")}
    methods = {"observation_space", "action_space", "reset", "step", "state", "render", "close"}
    assert own == {*methods, "metadata", "max_cycles", "team_return", "get_snapshot", "set_snapshot"}
    assert SymbolicEnv.metadata["name"] == "symbolic_v0"


def page(name: str) -> str:
    """A page of the docs, or the docstring."""
    docs = Path(__file__).parents[2] / "docs"
    return str(symbolic_v0.__doc__) if name == "docstring" else (docs / name).read_text(encoding="utf-8")


def test_tables_of_the_docstring_are_those_of_the_code() -> None:
    text = page("docstring")
    assert tuple(re.findall(r"^\| \d+ +\| (\w+) +\| ", text, re.M)[: len(OBSERVATION_FEATURES)]) == OBSERVATION_FEATURES
    assert f"| {len(OBSERVATION_FEATURES)} + S" in text
    for argument in inspect.signature(symbolic_v0.parallel_env).parameters:
        assert re.search(rf"^\* `{argument}`", text, re.M), argument
    for key in INFO:
        assert f"`{key}`" in text, key
    for population in POPULATIONS:
        assert re.search(rf"^\| `{population}`", text, re.M), population


def test_the_page_gives_the_layout_of_the_state() -> None:
    text = page("symbolic_rules.md")
    order = [text.index(f"`{name}`", text.index("The state, for")) for name in (*GLOBAL_FEATURES, *AGENT_FEATURES)]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("name", "cost"), [("chain", 0.0), ("lookup", 0.0), ("noisy", 0.005), ("cells", 0.0), ("deep", 0.0)]
)
def test_the_page_gives_the_references(name: str, cost: float) -> None:
    row = re.search(rf"^\| `{name}`.*\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page("symbolic.md"), re.M)
    assert row is not None
    rules = make_rules(name, token_cost=cost)
    best = optimal_return(rules)
    assert (f"{best.team_return:.2f}", f"{best.tokens:.1f}") == row.group(2, 3)
    assert evaluate_policy(RandomPolicy(0), rules, 20000).team_return == pytest.approx(float(row.group(1)), abs=0.015)


def test_cells_refuses_less_than_its_least_limits() -> None:
    for cells in (8, 16, 64):
        with pytest.raises(ConfigError, match="total_tokens"):
            make_rules("cells", {"cells": cells}, max_clones=cells, total_tokens=8 * cells + 2)


def test_the_docstring_runs_and_its_numbers_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    text, names = page("docstring"), {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, names)
    assert "agent_0" in capsys.readouterr().out
    env = SymbolicEnv()
    shape = env.observation_space("agent_0")["observation"].shape  # type: ignore[index]
    assert f"Box({shape[0]},), action_mask=Box({env.rules.num_actions},)" in text
    assert f"({env.state_space.shape[0]},) in `chain`" in text
    assert len(OBSERVATION_FEATURES) == int(re.search(r"\| (\d+) \+ S \* p \+ v", text).group(1))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"root": 1}, "'root' is no agent of this game.* from 'agent_0', the root, to"),
        ({"agent_0": 1, "agent_99": 1}, "'agent_99' is no agent of this game. Did you mean"),
        ({0: 1}, "0 is no agent of this game"),
        ({"agent_0": "1"}, "the action of agent_0 is '1'; expected a whole number"),
        ("1", "the actions are of type str; expected a mapping"),
        ([1], "the actions are of type list"),
        (np.array([1]), "the actions are of type ndarray"),
        (5, "the actions are of type int"),
        (None, "the actions are of type NoneType"),
    ],
)
def test_actions_that_are_none_are_refused_and_cost_nothing(actions: Any, message: str) -> None:
    env = make()
    env.reset(seed=0)
    before = env.state()
    with pytest.raises(GameError, match=message):
        env.step(actions)
    assert np.array_equal(env.state(), before)


def test_calls_that_cannot_be_are_named() -> None:
    env = make()
    for options in ([], 5, "task"):
        with pytest.raises(ConfigError, match="the reset options are of type"):
            env.reset(options=options)  # type: ignore[arg-type]
    for space in (env.observation_space, env.action_space):
        with pytest.raises(GameError, match="'root' is no agent of this game"):
            space("root")
    with pytest.raises(GameError, match="the snapshot is of type NoneType"):
        env.set_snapshot(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="token_cost is True"):
        make(token_cost=True)


@pytest.mark.parametrize("build", [symbolic_v0.env, symbolic_v0.raw_env])
def test_aec_names_calls_before_the_start_and_after_the_end(build: Any) -> None:
    env = build("chain", task_options={"items": 2}, population="dynamic", max_depth=0)
    if build is symbolic_v0.raw_env:
        for use in (env.last, lambda: env.step(1)):
            with pytest.raises(GameError, match=r"call reset\(\) first"):
                use()
    env.reset(seed=0)
    with pytest.raises(GameError, match="'root' is no agent of this game"):
        env.observe("root")
    env.step(1)
    with pytest.raises(GameError, match=r"agent_0 has ended .*; its action must be None"):
        env.step(1)
    env.step(None)
    with pytest.raises(GameError, match=r"the episode is over .*; call reset\(\)"):
        env.last()


def test_every_illegal_action_costs_a_turn_and_one_prompt_token() -> None:
    """WAIT where something else is legal, an action outside of the mask, and a number that is no action."""
    for action in (0, 7, 99, -1):
        env = SymbolicEnv("chain", task_options={"items": (2, 2)})
        env.reset(seed=0)
        before = env.get_snapshot().state
        env.step({"agent_0": action})
        after = env.get_snapshot().state
        assert before is not None
        assert after is not None
        changes = {
            name: int(getattr(after, name)[0, 0] - getattr(before, name)[0, 0])
            for name in ("turns", "prompt_tokens", "generated_tokens", "tokens_left", "illegal")
        }
        assert changes == {"turns": 1, "prompt_tokens": 1, "generated_tokens": 0, "tokens_left": -1, "illegal": 1}


@pytest.mark.parametrize(("population", "passes"), [("fixed", True), ("persistent", False), ("dynamic", False)])
def test_max_cycles_test_of_pettingzoo_fails_where_agents_are_born(population: str, passes: bool) -> None:
    """It asks that the median over possible agents of their AEC turns is `max_cycles`, newcomers included.

    Agents that are born later have fewer turns, and agents that are never born have none.
    """
    arguments = {"task": "chain", "task_options": {"items": 8}, "max_turns": 100, "population": population}
    arguments |= {"total_tokens": None, "max_depth": 1}

    class Waiting(spaces.Discrete):
        """The test plays samples of the action space; an answer of the root would end the game."""

        def sample(self, mask: Any = None, probability: Any = None) -> np.int64:
            return np.int64(0)

    class Game(SymbolicEnv):
        def action_space(self, agent: str) -> spaces.Discrete:
            return Waiting(self.rules.num_actions)

    def aec(**kwargs: Any) -> Any:
        return parallel_to_aec(Game(**arguments, **kwargs))

    module = SimpleNamespace(env=aec, parallel_env=lambda **kwargs: Game(**arguments, **kwargs))
    if passes:
        max_cycles_test(module)
    else:
        with pytest.raises(AssertionError):
            max_cycles_test(module)
