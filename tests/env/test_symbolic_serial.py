"""The symbolic game one decision at a time, in Gymnasium's two forms."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, VectorEnv

import selfcest_env.symbolic_v0  # noqa: F401, registers the environment
from selfcest_env.errors import ConfigError, GameError
from selfcest_env.symbolic.parallel import SymbolicEnv
from selfcest_env.symbolic.serial import SymbolicSerialEnv, SymbolicSerialVectorEnv

ID = "selfcest/SymbolicSerial-v0"
GAMES: dict[str, dict[str, Any]] = {
    "chain": {"task_options": {"items": (2, 12)}, "total_tokens": 60, "token_cost": 0.001},
    "lookup": {"total_tokens": 30, "max_clones": 3},
    "noisy": {"total_tokens": 40, "max_clones": 5, "max_turns": 3},
    "cells": {"task_options": {"cells": 4, "coupling": "zipf", "hidden": 0.3}, "max_clones": 5, "token_cost": 0.001},
    "deep": {"task_options": {"items": (2, 8)}, "total_tokens": 58, "token_cost": 0.001},
}


@pytest.fixture(params=GAMES)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(np.array_equal(left, right)) and np.asarray(left).dtype == np.asarray(right).dtype


def draw(mask: np.ndarray, rng: np.random.Generator) -> int:
    """Mostly a legal action."""
    return int(rng.choice(np.flatnonzero(mask))) if rng.random() < 0.9 else int(rng.integers(len(mask)))


# The checkers of others


def test_the_checker_of_gymnasium_has_nothing_to_say(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(ID, task=task, **GAMES[task])
        check_env(env.unwrapped)
        limited = gymnasium.make(ID, task=task, max_cycles=3)
        check_env(limited.unwrapped, skip_render_check=True)
    assert "agent_0  ready" in capsys.readouterr().out  # it has been rendered for humans


def test_the_checker_of_sb3_has_nothing_to_say(task: str) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(gymnasium.make(ID, task=task, **GAMES[task]).unwrapped)


def test_registered_with_both_entry_points() -> None:
    assert isinstance(gymnasium.make(f"selfcest_env.symbolic_v0:{ID}").unwrapped, SymbolicSerialEnv)
    vector = gymnasium.make_vec(ID, num_envs=3, task="noisy")
    assert isinstance(vector.unwrapped, SymbolicSerialVectorEnv)
    assert (vector.num_envs, vector.unwrapped.rules.task.num_symbols) == (3, 3)


def test_sb3_contrib_finds_the_masks() -> None:
    masks = pytest.importorskip("sb3_contrib.common.maskable.utils")
    env = gymnasium.make(ID)
    _, info = env.reset(seed=0)
    assert masks.is_masking_supported(env.unwrapped)
    assert np.array_equal(masks.get_action_masks(env.unwrapped), info["action_mask"])


# What a decision is


def test_the_ready_agent_with_the_lowest_number_decides() -> None:
    env = SymbolicSerialEnv("chain", task_options={"items": 8}, token_cost=0.01)
    _, info = env.reset(seed=3)
    assert (info["agent"], info["illegal"]) == (0, 0)
    assert info["action_mask"].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    rewards, agents = [], []
    # Split; agent 1 wastes a turn, then splits itself; agents 2, 3 and 4 answer 0; the parents add, and answer.
    for action in (6, 0, 6, 1, 1, 1, 1, 1):
        agents.append(info["agent"])
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        assert not truncated
    assert agents == [0, 1, 1, 2, 3, 4, 1, 0]
    assert terminated
    assert rewards[:-1] == [0.0] * 7
    assert rewards[-1] == pytest.approx(float(env._game.state.target[0] == 0) - 0.01 * env._game.total_tokens()[0])
    # Nothing moves, and nothing is paid, after the end.
    last = env._observe()
    assert same(env.step(1), (last[0], 0.0, True, False, last[1]))


def test_illegal_actions_are_waits_and_counted() -> None:
    env = SymbolicSerialEnv("chain", task_options={"items": 8}, max_turns=9)
    env.reset(seed=0)
    assert [env.step(action)[-1]["illegal"] for action in (0, 1, 8, -1, 10**6, np.int64(5))] == [1, 2, 3, 4, 5, 6]


def test_one_at_a_time_or_all_at_once_is_the_same_game(task: str) -> None:
    """A policy that looks at nothing but the observation ends both with the same reward and the same spends."""
    joint, serial = SymbolicEnv(task, **GAMES[task]), SymbolicSerialEnv(task, **GAMES[task])
    clones = 0
    for seed in range(60):

        def choose(observation: np.ndarray, mask: np.ndarray, salt: int = seed) -> int:
            rng = random.Random(f"{salt} {observation.tolist()}")
            return int(rng.choice(np.flatnonzero(mask).tolist())) if rng.random() < 0.9 else 0

        seen, _ = joint.reset(seed=seed)
        while joint.agents:
            seen, *_ = joint.step({agent: choose(**renamed(seen[agent])) for agent in joint.agents})
        observation, info = serial.reset(seed=seed)
        over, reward = False, 0.0
        while not over:
            observation, reward, over, _, info = serial.step(choose(observation, info["action_mask"]))
        assert reward == joint.team_return
        states = joint._batch.state, serial._game.state
        for name in ("tokens_left", "prompt_tokens", "generated_tokens", "turns"):
            spends = [sorted(getattr(s, name)[0, : s.num_born[0]].tolist()) for s in states]
            assert spends[0] == spends[1], name
        clones += int(states[0].num_born[0]) - 1
    assert clones > 30


def renamed(seen: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"observation": seen["observation"], "mask": seen["action_mask"]}


def test_a_seed_starts_a_series_and_no_seed_goes_on() -> None:
    one, two = SymbolicSerialEnv(), SymbolicSerialEnv()
    first = [one.reset(seed=1)[0], *(one.reset()[0] for _ in range(4))]
    assert all(map(same, first, [two.reset(seed=1)[0], *(two.reset()[0] for _ in range(4))]))
    assert len({observation.tobytes() for observation in first}) > 3


def test_only_max_cycles_truncates_and_the_cut_can_be_seen() -> None:
    env = SymbolicSerialEnv("chain", task_options={"items": 8}, max_cycles=2)
    env.reset(seed=0)
    env.step(6)
    observation, reward, terminated, truncated, info = env.step(1)
    assert (reward, terminated, truncated, info["agent"]) == (0.0, False, True, 2)
    assert observation[0] == 1.0
    assert info["action_mask"].tolist() == [1] + [0] * 7
    assert env.step(1)[1:4] == (0.0, False, True)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_where_the_original_stands(how: Any) -> None:
    for env in (SymbolicSerialEnv(), SymbolicSerialVectorEnv(4)):
        env.reset(seed=0)
        action = 6 if isinstance(env, SymbolicSerialEnv) else np.full(4, 6)
        env.step(action)
        other = how(env)
        for _ in range(20):
            assert same(env.step(action), other.step(action))


# Many at once


@pytest.mark.parametrize("steps", [50, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("max_cycles", [5, pytest.param(None, marks=pytest.mark.slow)])
def test_the_vector_environment_is_many_single_ones(task: str, max_cycles: int | None, steps: int) -> None:
    options = {**GAMES[task], "task": task, "max_cycles": max_cycles}
    sync = gymnasium.make_vec(ID, num_envs=7, vectorization_mode="sync", **options)
    batch = gymnasium.make_vec(ID, num_envs=7, vectorization_mode="vector_entry_point", **options)
    assert sync.metadata["autoreset_mode"] is batch.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(sync, name) == getattr(batch, name)
    rng, ends = np.random.default_rng(0), np.zeros(2, int)
    for seed in (5, [11, 3, 5, 7, 2, 13, 17], None):
        left = sync.reset(seed=seed)
        assert same(left, batch.reset(seed=seed))
        for _ in range(steps):
            actions = np.array([draw(mask, rng) for mask in left[-1]["action_mask"]])
            left = sync.step(actions)
            assert same(left, batch.step(actions))
            assert batch.observation_space.contains(left[0])
            ends += [left[2].sum(), left[3].sum()]
    assert ends[0] > steps / 2
    assert (ends[1] > steps / 10) == (max_cycles is not None)


@pytest.mark.parametrize("seed", [None, 3, np.array([4, 5, 6, 7]), np.arange(4, dtype=np.uint8)])
def test_some_environments_start_anew_as_in_gymnasium(seed: Any) -> None:
    sync = gymnasium.make_vec(ID, num_envs=4, vectorization_mode="sync", max_cycles=5)
    batch = gymnasium.make_vec(ID, num_envs=4, vectorization_mode="vector_entry_point", max_cycles=5)
    rng, over = np.random.default_rng(0), 0
    assert same(sync.reset(seed=0), batch.reset(seed=0))
    ends = np.zeros(4, bool)
    for step in range(60):
        if step % 3 == 2:
            mask = rng.random(4) < 0.5
            mask[rng.integers(4)] = True
            over += int((mask & ends).sum())
            seeds = seed.tolist() if isinstance(seed, np.ndarray) else seed  # Gymnasium's own takes no arrays of them
            left = sync.reset(seed=seeds, options={"reset_mask": mask.copy()})
            assert same(left, batch.reset(seed=seed, options={"reset_mask": mask.copy()}))
        actions = rng.integers(batch.single_action_space.n, size=4)
        stepped = batch.step(actions)
        assert same(sync.step(actions), stepped)
        ends = stepped[2] | stepped[3]
    assert over


def test_a_first_reset_may_leave_environments_out() -> None:
    env, whole = SymbolicSerialVectorEnv(3), SymbolicSerialVectorEnv(3)
    mask = np.array([True, False, True])
    observations, infos = env.reset(seed=0, options={"reset_mask": mask})
    all_observations, _ = whole.reset(seed=0)
    assert same(observations[mask], all_observations[mask])
    assert not observations[~mask].any()
    assert infos["_agent"].tolist() == mask.tolist()
    # Who was left out starts with the next step, as whoever is over does.
    assert same(env.step(np.zeros(3, int))[0][1], all_observations[1])


@pytest.mark.parametrize("mask", [[True, False], np.zeros(2, bool), np.ones(3, bool), np.ones(2, int), None])
def test_a_reset_mask_that_is_none_is_refused(mask: Any) -> None:
    env = SymbolicSerialVectorEnv(2)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"reset_mask is .*; expected a bool array of shape \(2,\)"):
        env.reset(options={"reset_mask": mask})
    with pytest.raises(ConfigError, match="'tsak'"):
        env.reset(options={"reset_mask": np.ones(2, bool), "tsak": 1})


def test_the_next_step_starts_the_next_episode() -> None:
    vector, single = SymbolicSerialVectorEnv(2, task_options={"items": 4}), SymbolicSerialEnv(task_options={"items": 4})
    vector.reset(seed=8)
    single.reset(seed=8)
    _, rewards, terminated, _, infos = vector.step(np.array([1, 6]))
    assert terminated.tolist() == [True, False]
    assert infos["agent"].tolist() == [0, 1]
    assert infos["_agent"].all()
    last, reward, *_ = single.step(1)
    assert rewards.tolist() == [reward, 0.0]
    # The action of the environment that is over is ignored, and nothing is paid.
    observations, rewards, terminated, truncated, _ = vector.step(np.array([6, 1]))
    assert same(observations[0], single.reset()[0])
    assert not same(observations[0], last)
    assert rewards.tolist() == [0.0, 0.0]
    assert not terminated.any()
    assert not truncated.any()
    assert vector._game.state.cycle.tolist() == [0, 2]


def test_nothing_is_shared_between_steps() -> None:
    env = SymbolicSerialVectorEnv(3)
    results: list[Any] = [env.reset(seed=0), *(env.step(np.full(3, 6)) for _ in range(3))]
    arrays = [a for result in results for a in (*result[:-1], *result[-1].values())]
    assert all(not np.may_share_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    live = [env._game.state.terminated, env._game.state.truncated, env._game.state.team_return]
    assert all(not np.may_share_memory(a, b) for a in arrays for b in live)


# Pictures, mistakes, surface


def test_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    env = SymbolicSerialEnv(render_mode="ansi")
    env.reset(seed=0)
    text = env.render()
    assert isinstance(text, str)
    human = SymbolicSerialEnv(render_mode="human")
    human.reset(seed=0)
    assert capsys.readouterr().out == text + "\n"
    assert human.render() is None
    human.step(7)
    assert "├─ agent_1" in capsys.readouterr().out
    pictures = SymbolicSerialVectorEnv(2, render_mode="ansi")
    pictures.reset(seed=[0, 1])
    shown = pictures.render()
    assert shown is not None
    assert shown[0] == text != shown[1]
    images = SymbolicSerialVectorEnv(2, render_mode="rgb_array")
    images.reset(seed=0)
    drawn = images.render()
    assert drawn is not None
    assert [image.shape for image in drawn] == [(360, 640, 3)] * 2
    assert SymbolicSerialVectorEnv(2).render() is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_clones": None}, "max_clones is None"),
        ({"max_cycles": 0}, "max_cycles is 0"),
        ({"task": "chian"}, "Did you mean 'chain'"),
        ({"render_mode": "text"}, "render_mode is 'text'"),
    ],
)
def test_an_impossible_argument_is_refused_at_once(kwargs: dict[str, Any], message: str) -> None:
    for build in (SymbolicSerialEnv, SymbolicSerialVectorEnv):
        with pytest.raises(ValueError, match=message):
            build(**kwargs)


def test_mistakes_of_the_caller_are_named() -> None:
    env, vector = SymbolicSerialEnv(), SymbolicSerialVectorEnv(3)
    with pytest.raises(ConfigError, match="num_envs is 0"):
        SymbolicSerialVectorEnv(0)
    for use in (lambda: env.step(1), SymbolicSerialEnv(render_mode="ansi").render):
        with pytest.raises(GameError, match=r"call reset\(\) first"):
            use()
    with pytest.raises(ConfigError, match="'tsak'"):
        vector.reset(options={"tsak": 1})
    for seed in (
        [1, 2],
        [1, None, 3],
        -1,
        1.5,
        np.array([0.0, 1.0, 2.0]),
        np.arange(4),
        np.array(1),
        np.zeros((3, 1), int),
    ):
        with pytest.raises(ConfigError, match="seed is"):
            vector.reset(seed=seed)  # type: ignore[arg-type]
    env.reset(seed=0)
    vector.reset(seed=0)
    for action in (0.5, "a", [1, 2]):
        with pytest.raises(GameError, match="the action is .*; expected a whole number from 0 to 7$"):
            env.step(action)  # type: ignore[arg-type]
    for actions in (np.zeros(4, int), None, [1, None, 1]):
        with pytest.raises(GameError, match="the actions are .*; expected one whole number per environment, 3$"):
            vector.step(actions)  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [1, 1.0, np.array([1]), 0, None])
def test_an_action_is_read_as_in_the_parallel_environment(action: Any) -> None:
    one, all_at_once = SymbolicSerialEnv("noisy"), SymbolicEnv("noisy")
    one.reset(seed=0)
    all_at_once.reset(seed=0)
    _, reward, over, _, info = one.step(action)
    *_, infos = all_at_once.step({"agent_0": action})
    assert (over, info["illegal"]) == (not all_at_once.agents, infos["agent_0"]["illegal"])
    assert not over or reward == all_at_once.team_return


def test_an_unknown_argument_is_named_as_it_was_written() -> None:
    message = "unknown argument 'tokens_cost'. Did you mean 'token_cost'"
    for build in (lambda **given: gymnasium.make(ID, **given), lambda **given: gymnasium.make_vec(ID, 2, **given)):
        with pytest.raises(ConfigError, match=message):
            build(tokens_cost=0.1)


def test_the_public_surface() -> None:
    arguments = ["task", "task_options", "max_cycles", "render_mode", "limits"]
    assert list(inspect.signature(SymbolicSerialEnv).parameters) == arguments
    assert list(inspect.signature(SymbolicSerialVectorEnv).parameters) == ["num_envs", *arguments]
    shared = {"metadata", "reset", "step", "render", "action_masks"}
    for cls, further in ((SymbolicSerialEnv, {"close"}), (SymbolicSerialVectorEnv, set[str]())):
        assert {name for name in vars(cls) if not name.startswith("_")} == shared | further
    assert issubclass(SymbolicSerialVectorEnv, VectorEnv)
