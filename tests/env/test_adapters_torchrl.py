"""The TorchRL adapter: its specs, and its tensors against the batch kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchrl.envs import ActionMask, TransformedEnv
from torchrl.envs.utils import check_env_specs

from selfcest_env.adapters.torchrl import SymbolicTorchEnv
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic import BatchDelegation, make_rules

GAMES = 6
TASKS: list[dict[str, Any]] = [
    {"task": "chain", "max_clones": 4, "total_tokens": 70},
    {"task": "noisy", "max_clones": 3, "token_cost": 0.01, "generated_tokens": 20},
    {"task": "lookup", "max_depth": 1},
    {"task": "cells"},
    {"task": "deep", "task_options": {"items": (2, 4)}},
]


@pytest.fixture(params=TASKS, ids=lambda options: options["task"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def masked(env: SymbolicTorchEnv) -> TransformedEnv:
    return TransformedEnv(env, ActionMask(action_key=("agents", "action"), mask_key=("agents", "action_mask")))


@pytest.mark.parametrize("max_cycles", [None, 3])
def test_torchrl_accepts_the_specs(options: dict[str, Any], max_cycles: int | None) -> None:
    check_env_specs(SymbolicTorchEnv(make_rules(**options), GAMES, max_cycles=max_cycles))
    check_env_specs(masked(SymbolicTorchEnv(make_rules(**options), GAMES, max_cycles=max_cycles)))


def test_the_specs_of_one_game_can_be_asked_for() -> None:
    """As BenchMARL does."""
    rules = make_rules(max_clones=3)
    env = SymbolicTorchEnv(rules, GAMES)
    specs = env.full_observation_spec_unbatched
    assert specs["agents", "can_act"].shape == (4,)
    assert specs["agents", "action_mask"].shape == (4, rules.num_actions)
    assert env.full_action_spec_unbatched["agents", "action"].shape == (4,)


def test_a_rollout_is_the_kernel_step_by_step(options: dict[str, Any]) -> None:
    """Games restart alone; every tensor is the array of a kernel that plays the same actions."""
    rules = make_rules(**options)
    env, kernel = masked(SymbolicTorchEnv(rules, GAMES, max_cycles=2)), BatchDelegation(rules, GAMES, max_cycles=2)
    torch.manual_seed(0)
    env.set_seed(4)
    data = env.rollout(60, break_when_any_done=False)
    kernel.reset(4)
    for step in range(60):
        now = data[:, step]
        for part in (now, now["next"]):
            np.testing.assert_array_equal(part["agents", "observation"], kernel.observations())
            np.testing.assert_array_equal(part["agents", "action_mask"], kernel.action_masks())
            np.testing.assert_array_equal(part["agents", "can_act"], kernel.can_act)
            np.testing.assert_array_equal(part["state"], kernel.states())
            np.testing.assert_array_equal(part["done"][:, 0], kernel.done)
            np.testing.assert_array_equal(part["terminated"][:, 0], kernel.state.terminated)
            np.testing.assert_array_equal(part["truncated"][:, 0], kernel.state.truncated)
            if part is now:
                kernel.step(now["agents", "action"].numpy())
        reward = kernel.state.team_return.astype(np.float32)[:, None, None]
        np.testing.assert_array_equal(now["next", "agents", "reward"], reward.repeat(rules.num_agents, 1))
        kernel.restart()
    assert data["next", "terminated"].sum() > 20
    assert data["next", "truncated"].any() or options["task"] == "cells"  # which are over in two steps


def test_actions_sampled_through_the_mask_are_legal() -> None:
    env = SymbolicTorchEnv(make_rules(max_clones=3), GAMES)
    torch.manual_seed(0)
    data = masked(env).rollout(40, break_when_any_done=False)
    assert data["agents", "action_mask"].gather(-1, data["agents", "action"].unsqueeze(-1)).all()
    assert env.kernel.state.illegal.sum() == 0


def test_a_game_that_is_over_pays_once_and_stands_still() -> None:
    env = SymbolicTorchEnv(make_rules("chain", {"items": 2}, max_clones=2), 2)
    env.set_seed(0)
    first = env.reset()
    value = first["state"][:, 3:8].argmax(-1)  # the right answer, after three globals
    actions = torch.zeros(2, 3, dtype=torch.int64)
    actions[0, 0], actions[1, 0] = 1 + value[0], 6  # an answer, and a call
    last = env.step(first.set(("agents", "action"), actions))["next"]
    assert last["agents", "reward"].flatten().tolist() == [1, 1, 1, 0, 0, 0]
    assert last["done"].flatten().tolist() == [True, False]
    again = env.step(last.clone().set(("agents", "action"), actions))["next"]
    assert again["agents", "reward"].flatten().tolist() == [0] * 6
    assert torch.equal(again["state"][0], last["state"][0])


def test_one_game_is_reset_alone() -> None:
    env = SymbolicTorchEnv(make_rules("chain", {"items": 2}, max_clones=2), 2)
    env.set_seed(0)
    first = env.reset()
    actions = torch.tensor([[1, 0, 0], [6, 0, 0]])
    last = env.step(first.set(("agents", "action"), actions))["next"]
    fresh = env.reset(last.clone().set("_reset", last["done"].clone()))
    assert fresh["done"].sum() == 0
    assert fresh["agents", "can_act"].tolist() == [[True, False, False], [False, True, True]]
    assert env.kernel.state.episode.tolist() == [2, 1]


def test_a_seed_starts_the_series_anew() -> None:
    env = SymbolicTorchEnv(make_rules(max_clones=2), 4)
    states = []
    for seed in (7, None, 7):
        if seed is not None:
            env.set_seed(seed)
        states.append(env.reset()["state"])
    assert torch.equal(states[0], states[2])
    assert not torch.equal(states[0], states[1])


def test_bad_input_is_named() -> None:
    with pytest.raises(ConfigError, match="num_envs is 0; expected"):
        SymbolicTorchEnv(make_rules(max_clones=2), 0)
    with pytest.raises(ConfigError, match="max_cycles is 0; expected"):
        SymbolicTorchEnv(make_rules(max_clones=2), 1, max_cycles=0)
