"""The Stable-Baselines3 adapter against the batch kernel it wraps, and under SB3's own tools."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from selfcest_env.adapters.sb3 import SymbolicVecEnv
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic import BatchDelegation, make_rules

GAMES = 7
TASKS: list[dict[str, Any]] = [
    {"task": "chain", "max_clones": 4, "total_tokens": 70},
    {"task": "noisy", "max_clones": 3, "token_cost": 0.01},
    {"task": "lookup", "max_depth": 1},
    {"task": "cells"},
    {"task": "deep", "task_options": {"items": (2, 4)}},
]


@pytest.fixture(params=TASKS, ids=lambda options: options["task"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def sample(masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A uniform legal action per row, and now and then an illegal one."""
    legal = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
    return np.where(rng.random(len(masks)) < 0.1, rng.integers(masks.shape[1], size=len(masks)), legal)


@pytest.mark.slow
def test_per_agent_is_the_kernel_row_by_row(options: dict[str, Any]) -> None:
    rules, rng = make_rules(**options), np.random.default_rng(0)
    env, kernel = SymbolicVecEnv(rules, GAMES, per="agent", max_cycles=3), BatchDelegation(rules, GAMES, max_cycles=3)
    env.seed(3)
    seen = env.reset()
    kernel.reset(3)
    endings = 0
    for _ in range(150):
        rows = env.num_envs, -1
        np.testing.assert_array_equal(seen, kernel.observations().reshape(rows))
        np.testing.assert_array_equal(env.action_masks(), kernel.action_masks().reshape(rows))
        actions = sample(env.action_masks(), rng)
        seen, rewards, dones, infos = env.step(actions)
        kernel.step(actions.reshape(GAMES, -1))
        last = kernel.observations().reshape(rows)
        np.testing.assert_array_equal(dones, kernel.done.repeat(rules.num_agents))
        np.testing.assert_allclose(rewards, kernel.state.team_return.repeat(rules.num_agents), rtol=1e-6)
        for row, info in enumerate(infos):
            assert bool(info) == dones[row]
            if info:
                game = row // rules.num_agents
                np.testing.assert_array_equal(info["terminal_observation"], last[row])
                assert info["TimeLimit.truncated"] is bool(kernel.state.truncated[game])
        endings += dones.sum()
        kernel.restart()
    assert endings > 20 * rules.num_agents


@pytest.mark.slow
def test_per_decision_is_every_game_played_alone(options: dict[str, Any]) -> None:
    """Row i is a kernel of one game with the same key, in which the first agent that can act does."""
    rules, rng = make_rules(**options), np.random.default_rng(1)
    env = SymbolicVecEnv(rules, GAMES, max_cycles=3)
    env.seed(5)
    seen = env.reset()
    alone = [BatchDelegation(rules, 1, max_cycles=3) for _ in range(GAMES)]
    for game, kernel in enumerate(alone):
        kernel.reset(keys=env.kernel.state.keys[game : game + 1])
    truncated = 0
    for _ in range(150):
        masks = env.action_masks()
        actions = sample(masks, rng)
        before, (seen, rewards, dones, infos) = seen, env.step(actions)
        for game, kernel in enumerate(alone):
            agent = np.flatnonzero(kernel.can_act[0])[0]
            np.testing.assert_array_equal(before[game], kernel.observations()[0, agent])
            np.testing.assert_array_equal(masks[game], kernel.action_masks()[0, agent])
            acting = np.arange(rules.num_agents)[None] == agent
            kernel.step(np.where(acting, actions[game], 0), acting)
            assert dones[game] == kernel.done[0]
            assert rewards[game] == np.float32(kernel.state.team_return[0])
            if dones[game]:
                ready = np.flatnonzero(kernel.observations()[0, :, 0])
                assert kernel.state.truncated[0] == bool(ready.size) == infos[game]["TimeLimit.truncated"]
                np.testing.assert_array_equal(
                    infos[game]["terminal_observation"], kernel.observations()[0, ready[0] if ready.size else 0]
                )
                truncated += ready.size > 0
                kernel.restart()
    assert truncated > 5


@pytest.mark.parametrize("per", ["decision", "agent"])
def test_infos_of_a_last_step_count_and_score_the_episode(per: Any) -> None:
    """`noisy` with a price: the return is the success less what the tokens cost."""
    rules, rng = make_rules("noisy", token_cost=0.01, max_clones=2), np.random.default_rng(0)
    env = SymbolicVecEnv(rules, 50, per=per)
    env.seed(0)
    env.reset()
    steps, returns, ends = np.zeros(env.num_envs), np.zeros(env.num_envs), []
    for _ in range(40):
        _, rewards, dones, infos = env.step(sample(env.action_masks(), rng))
        steps, returns = steps + 1, returns + rewards
        for row in np.flatnonzero(dones):
            episode = infos[row]["episode"]
            assert episode["l"] == steps[row]
            assert episode["r"] == pytest.approx(returns[row])
            assert infos[row]["is_success"] == (episode["r"] > 0)  # dearer than 100 tokens no game here can be
            ends.append(infos[row]["is_success"])
        steps[dones], returns[dones] = 0, 0
    assert 0.1 < np.mean(ends) < 0.9


@pytest.mark.parametrize("per", ["decision", "agent"])
def test_a_seed_starts_the_series_anew_and_a_reset_goes_on(per: Any) -> None:
    def play(env: SymbolicVecEnv, seed: int | None) -> list[np.ndarray]:
        if seed is not None:
            assert env.seed(seed) == [seed + row for row in range(env.num_envs)]
        rng, seen = np.random.default_rng(0), [env.reset()]
        for _ in range(30):
            seen += env.step(sample(env.action_masks(), rng))[:3]
        return seen

    def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))

    env = SymbolicVecEnv(make_rules(max_clones=2), 4, per=per)
    first = play(env, 11)
    assert not same(first, play(env, None))
    assert not same(first, play(env, 12))
    assert same(first, play(env, 11))


def test_nothing_that_was_returned_changes_later() -> None:
    env = SymbolicVecEnv(make_rules(max_clones=2), 4, per="agent", max_cycles=3)
    rng, kept = np.random.default_rng(0), []
    env.seed(0)
    seen = env.reset()
    for _ in range(12):
        masks = env.action_masks()
        kept += [(masks, masks.copy()), (seen, seen.copy())]
        seen, rewards, dones, infos = env.step(sample(masks, rng))
        kept += [(rewards, rewards.copy()), (dones, dones.copy())]
        kept += [(info["terminal_observation"], info["terminal_observation"].copy()) for info in infos if info]
    assert all(np.array_equal(array, copy) for array, copy in kept)


def test_the_vec_env_interface() -> None:
    env = SymbolicVecEnv(make_rules(max_clones=2), 3, per="agent")
    env.reset()
    assert (env.num_envs, env.observation_space.shape, env.action_space.n) == (9, (env.reset().shape[1],), 8)  # type: ignore[attr-defined]
    assert env.observation_space.contains(env.reset()[0])
    assert is_masking_supported(env)
    np.testing.assert_array_equal(get_action_masks(env), env.action_masks())
    np.testing.assert_array_equal(env.env_method("action_masks", indices=[4, 0]), env.action_masks()[[4, 0]])
    assert env.has_attr("kernel")
    assert not env.has_attr("absent")
    assert env.get_attr("per", indices=1) == ["agent"]
    assert env.env_is_wrapped(VecMonitor, indices=[0, 1]) == [False, False]  # type: ignore[arg-type]
    env.set_attr("note", 1)
    assert env.get_attr("note") == [1] * 9
    env.close()


def test_bad_input_is_named() -> None:
    rules = make_rules(max_clones=2)
    with pytest.raises(ValueError, match=r"per is 'clone'; expected one of 'decision', 'agent'"):
        SymbolicVecEnv(rules, 2, per="clone")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_envs is 0; expected"):
        SymbolicVecEnv(rules, 0)
    env = SymbolicVecEnv(rules, 2)
    with pytest.raises(ConfigError, match=r"indices are \[1\]; expected None"):
        env.set_attr("note", 1, indices=[1])
    with pytest.raises(AttributeError, match="no method 'fly'; expected 'action_masks'"):
        env.env_method("fly")
    env.set_options({"task": 1})
    with pytest.raises(ConfigError, match="expected none"):
        env.reset()


@pytest.mark.parametrize("per", ["decision", "agent"])
def test_sb3_trains_evaluates_and_wraps_it_without_a_warning(per: Any) -> None:
    rules = make_rules("lookup", max_depth=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for algorithm in (PPO, MaskablePPO):
            env = VecNormalize(VecMonitor(SymbolicVecEnv(rules, 8, per=per)), norm_obs=False)
            model = algorithm("MlpPolicy", env, n_steps=4, batch_size=16, n_epochs=1, seed=0, device="cpu")
            model.learn(8 * 4 * rules.num_agents * 3)
            assert all(episode["l"] >= 1 for episode in model.ep_info_buffer)
    mean, _ = evaluate_policy(model, SymbolicVecEnv(rules, 8, per=per), n_eval_episodes=16, warn=False)
    assert 0 <= mean <= 1
