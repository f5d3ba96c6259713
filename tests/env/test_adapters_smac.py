"""The SMAC-style adapter: PyMARL's contract, driven as PyMARL's episode runner drives it."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from selfcest_env.adapters.smac import SymbolicEPyMARL, SymbolicSMAC
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic import BatchDelegation, make_rules

# The methods of SMAC's MultiAgentEnv with the arguments that runners pass.
CONTRACT = {
    "step": ["actions"],
    "get_obs": [],
    "get_obs_agent": ["agent_id"],
    "get_obs_size": [],
    "get_state": [],
    "get_state_size": [],
    "get_avail_actions": [],
    "get_avail_agent_actions": ["agent_id"],
    "get_total_actions": [],
    "reset": [],
    "render": [],
    "close": [],
    "seed": ["seed"],
    "save_replay": [],
    "get_env_info": [],
    "get_stats": [],
}
TASKS: list[dict[str, Any]] = [
    {"task": "chain", "max_clones": 4, "total_tokens": 70},
    {"task": "noisy", "max_clones": 3, "token_cost": 0.01},
    {"task": "lookup", "max_depth": 1},
    {"task": "cells", "task_options": {"cells": 4, "coupling": "max"}},
    {"task": "deep", "task_options": {"items": (2, 4)}},
]


def sample(available: list[list[int]], rng: np.random.Generator) -> list[int]:
    return [int(rng.choice(np.flatnonzero(row))) for row in available]


def test_the_methods_of_the_contract() -> None:
    public = {name for name, value in vars(SymbolicSMAC).items() if not name.startswith("_") and callable(value)}
    assert public == set(CONTRACT)
    for name, arguments in CONTRACT.items():
        assert list(inspect.signature(getattr(SymbolicSMAC, name)).parameters)[1:] == arguments


@pytest.mark.parametrize("options", TASKS, ids=lambda options: options["task"])
def test_episodes_are_those_of_the_kernel(options: dict[str, Any]) -> None:
    env, rng = SymbolicSMAC(**options, seed=9, max_cycles=8), np.random.default_rng(0)
    rules = make_rules(**options)
    kernel = BatchDelegation(rules, 1, max_cycles=8)
    sizes = env.get_env_info()
    assert sizes == {
        "state_shape": kernel.states().shape[1],
        "obs_shape": kernel.observations().shape[2],
        "n_actions": rules.num_actions,
        "n_agents": rules.num_agents,
        "episode_limit": 8,
    }
    kernel.reset(9)
    for _ in range(30):
        env.reset()
        total, over, info, steps = 0.0, False, {}, 0
        while not over:
            np.testing.assert_array_equal(np.stack(env.get_obs()), kernel.observations()[0])
            np.testing.assert_array_equal(env.get_state(), kernel.states()[0])
            np.testing.assert_array_equal(env.get_avail_actions(), kernel.action_masks()[0])
            assert env.get_avail_agent_actions(1) == env.get_avail_actions()[1]
            np.testing.assert_array_equal(env.get_obs_agent(1), env.get_obs()[1])
            actions = sample(env.get_avail_actions(), rng)
            reward, over, info = env.step(actions)
            kernel.step(np.array([actions]))
            total, steps = total + reward, steps + 1
            assert type(reward) is float
            assert over is bool(kernel.done[0])
        assert total == kernel.state.team_return[0]
        assert info["episode_limit"] is bool(kernel.state.truncated[0])
        assert info["battle_won"] is (total > 0)  # no game here costs as much as a right answer pays
        assert steps <= 8
        assert env.step(actions)[:2] == (0.0, True)
        kernel.restart()


def test_no_game_is_longer_than_the_default_limit() -> None:
    """Everybody waits: the root ends with its last turn. Nobody cuts the game."""
    env, rng = SymbolicSMAC(max_clones=4, max_turns=3), np.random.default_rng(0)
    assert env.episode_limit == 5 * 3
    for idle in (True, False) * 20:
        env.reset()
        over = False
        while not over:
            actions = [0] * 5 if idle else sample(env.get_avail_actions(), rng)
            _, over, info = env.step(actions)
        assert info["episode_limit"] is False


def test_illegal_actions_are_counted() -> None:
    env = SymbolicSMAC("chain", {"items": 8, "window": 2}, max_clones=2, seed=0)
    env.reset()
    assert env.step([1, 1, 1])[2] == {"illegal_actions": 1}  # too long to answer; nobody else can act
    assert env.step(np.array([99, 0, 0]))[2] == {"illegal_actions": 2}


def test_a_seed_starts_the_series_anew() -> None:
    env = SymbolicSMAC(max_clones=2, seed=3)
    first, second = env.reset()[1], env.reset()[1]
    assert env.seed() == 3
    env.seed(3)
    assert np.array_equal(env.reset()[1], first)
    assert not np.array_equal(first, second)


def test_epymarl_gets_five_values_per_step() -> None:
    env = SymbolicEPyMARL(max_clones=2, max_cycles=1, common_reward=True, reward_scalarisation="sum")
    observations, info = env.reset(seed=0)
    assert (len(observations), info) == (3, {})
    split = env.get_avail_actions()[0].index(1, 6) if any(env.get_avail_actions()[0][6:]) else 0
    observations, reward, terminated, truncated, info = env.step([split, 0, 0])
    assert (len(observations), reward, terminated, truncated) == (3, 0.0, False, True)
    # What its runner stores: whether the episode ended, but not by the limit.
    assert ((terminated or truncated) != info["episode_limit"]) is False
    state = env.get_state()
    env.reset(seed=0)
    assert not np.array_equal(env.get_state(), state)


def test_bad_input_is_named() -> None:
    env = SymbolicSMAC(max_clones=2)
    env.reset()
    with pytest.raises(ConfigError, match="actions are 2; expected one per agent, 3"):
        env.step([0, 0])
    with pytest.raises(ValueError, match="max_clones is None"):
        SymbolicSMAC(max_clones=None)
    with pytest.raises(ValueError, match="common_reward is False; expected True"):
        SymbolicEPyMARL(common_reward=False)
    with pytest.raises(ConfigError, match="expected none"):
        SymbolicEPyMARL().reset(options={"task": 1})
