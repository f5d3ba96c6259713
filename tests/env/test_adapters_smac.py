"""The SMAC-style adapter: PyMARL's contract, driven as PyMARL's and EPyMARL's runners drive it."""

from __future__ import annotations

import functools
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch

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


class Runner:
    """What EPyMARL's episode runner relies on: its calls in their order, and a buffer of fixed shapes.

    Its environments are built with the arguments of a configuration file and three of its own, buffers are made from
    `get_env_info` alone, and a step that ends by the limit is stored as not terminated, so that learners bootstrap.
    """

    def __init__(self, key: str, seed: int, **env_args: Any) -> None:
        arguments = {"key": key, "seed": seed, "common_reward": True, "reward_scalarisation": "sum"}
        self.env = SymbolicEPyMARL(**env_args, **arguments)
        self.info = self.env.get_env_info()

    def run(self, rng: np.random.Generator) -> tuple[dict[str, np.ndarray[Any, Any]], int, dict[str, Any]]:
        """One episode: the buffer, how many steps of it are filled, and the infos of the last."""
        steps, agents, actions = self.info["episode_limit"], self.info["n_agents"], self.info["n_actions"]
        batch = {
            "state": np.full((steps + 1, self.info["state_shape"]), np.nan, np.float32),
            "obs": np.full((steps + 1, agents, self.info["obs_shape"]), np.nan, np.float32),
            "avail_actions": np.zeros((steps + 1, agents, actions), int),
            "reward": np.zeros((steps, 1), np.float32),
            "terminated": np.zeros((steps, 1), np.uint8),
        }
        self.env.reset()
        over, t, info = False, 0, {}
        while not over:
            self._see(batch, t)
            chosen = torch.tensor(sample(batch["avail_actions"][t].tolist(), rng))
            _, reward, terminated, truncated, info = self.env.step(chosen)
            over = terminated or truncated
            batch["reward"][t] = [reward]
            batch["terminated"][t] = [over != info.get("episode_limit", False)]
            t += 1
        self._see(batch, t)  # the last state, to bootstrap from, and an action chosen in it
        sample(batch["avail_actions"][t].tolist(), rng)
        return batch, t, info

    def _see(self, batch: dict[str, np.ndarray[Any, Any]], t: int) -> None:
        batch["state"][t] = self.env.get_state()
        batch["avail_actions"][t] = self.env.get_avail_actions()
        batch["obs"][t] = self.env.get_obs()


@pytest.mark.parametrize("max_cycles", [None, 2])
@pytest.mark.parametrize("options", TASKS, ids=lambda options: options["task"])
def test_epymarls_runner_stores_what_was_played(options: dict[str, Any], max_cycles: int | None) -> None:
    runner, rng = Runner("label", 3, max_cycles=max_cycles, **options), np.random.default_rng(0)
    totals: dict[str, float] = {}
    ends = set()
    for _ in range(40):
        batch, steps, info = runner.run(rng)
        assert np.isfinite(batch["state"][: steps + 1]).all()
        assert np.isfinite(batch["obs"][: steps + 1]).all()
        assert (batch["avail_actions"][: steps + 1].sum(-1) > 0).all()  # an action can be chosen in the last state too
        # The reward comes with the last step that is stored, which no learner leaves out.
        assert batch["reward"].sum() == batch["reward"][steps - 1]
        assert batch["reward"][steps - 1] == np.float32(runner.env.kernel.state.team_return[0])
        assert batch["terminated"][: steps - 1].sum() == 0
        assert batch["terminated"][steps - 1] == (not info["episode_limit"])
        ends.add(info["episode_limit"])
        totals = {key: totals.get(key, 0) + info.get(key, 0) for key in set(totals) | set(info)}  # its statistics
    assert totals["illegal_actions"] == 0
    assert False in ends
    assert (True in ends) is (max_cycles is not None and options["task"] != "cells")  # which are over in two steps
    assert runner.env.get_stats() == {}
    runner.env.close()


def test_epymarls_parallel_runner_sends_environments_to_processes() -> None:
    """It pickles a partial of what the registry holds, and reads what comes back through a pipe."""
    make = pickle.loads(pickle.dumps(functools.partial(SymbolicEPyMARL, task="lookup", max_depth=1, seed=4)))
    env, same = make(), SymbolicEPyMARL("lookup", max_depth=1, seed=4)
    env.reset()
    same.reset()
    assert np.array_equal(pickle.loads(pickle.dumps(env.get_state())), same.get_state())


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
