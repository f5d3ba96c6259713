"""The symbolic game with one agent's action per step: Gymnasium's single-agent and vector environments.

Clones share their weights, so one action per step is plain single-agent reinforcement learning. In each step the ready
agent with the lowest number acts. The id is `selfcest/SymbolicSerial-v0`, with a vector entry point on the batch
kernel. Import `selfcest_env.symbolic_v0` before `gymnasium.make`, or prefix the id with this module and a colon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from selfcest_env.checks import MAX_SEED, check_options, check_seed
from selfcest_env.draw import Image
from selfcest_env.errors import ConfigError, GameError, is_integer_within
from selfcest_env.plugin import check_choice
from selfcest_env.screen import Screen
from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.parallel import parse_action
from selfcest_env.symbolic.picture import RENDER_MODES, render, show
from selfcest_env.symbolic.rules import SymbolicRules, make_rules
from selfcest_env.symbolic.streams import fold_in
from selfcest_env.symbolic.tasks import SymbolicTask
from selfcest_env.symbolic.vectors import observation_size

Observations = NDArray[np.float32]


class SymbolicSerialEnv(gymnasium.Env[Observations, np.int64]):
    """The symbolic game as a Gymnasium environment.

    Observations and actions are those of the acting agent (`symbolic_v0`). `info["action_mask"]` and `action_masks()`
    are its action mask, `info["agent"]` is its number, and `info["illegal"]` counts its illegal actions. The last step
    of an episode has the team reward.

    Args:
        task: "chain", "lookup", "noisy", "cells", "deep", `package.module:Class` or a `SymbolicTask`.
        task_options: options of a task given by name.
        max_cycles: steps before truncation; `None` never truncates, and the limits end every episode.
        render_mode: "human", "ansi", "rgb_array" or `None`.
        limits: limits of `SymbolicRules`.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 2}  # noqa: RUF012, as in Gymnasium

    def __init__(
        self,
        task: SymbolicTask | str = "chain",
        *,
        task_options: Mapping[str, Any] | None = None,
        max_cycles: int | None = None,
        render_mode: str | None = None,
        **limits: Any,
    ) -> None:
        self.rules = make_rules(task, task_options, **limits)
        self.render_mode = check_choice("render_mode", render_mode, (None, *RENDER_MODES))
        self._screen = Screen()
        self._game = BatchDelegation(self.rules, 1, max_cycles=max_cycles)
        self.observation_space, self.action_space = serial_spaces(self.rules)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start an episode: the first one of a seed, or without a seed the next one."""
        check_seed(seed)
        check_options(options)
        super().reset(seed=seed)
        _start(self._game, None if seed is None else [seed])
        self._show()
        return self._observe()

    def step(self, action: np.int64 | int) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        """Play the action of the acting agent; `None` is WAIT. After the end of the episode a step changes nothing."""
        number = parse_action(action, self._game.num_actions, "the action")
        reward = float(_step_next(self._game, np.array([number]))[0])
        self._show()
        observation, info = self._observe()
        state = self._game.state
        return observation, reward, bool(state.terminated[0]), bool(state.truncated[0]), info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the action mask of the acting agent, shape (num_actions,), as sb3-contrib expects it."""
        masks: NDArray[np.bool_] = self._game.next_action_masks()[0]
        return masks

    def render(self) -> str | Image | None:
        """Return the tree of agents: a text in "ansi", an image in "rgb_array". "human" shows it after every step."""
        return render(self._game.state, self.rules, self.render_mode)

    def close(self) -> None:
        """Close the window of the render mode "human", if one is open."""
        self._screen.close()

    def _show(self) -> None:
        if self.render_mode == "human":
            show(self._screen, self._game.state, self.rules)

    def _observe(self) -> tuple[Observations, dict[str, Any]]:
        observations, infos = _observe_next(self._game)
        info = {key: column[0] if column.ndim > 1 else int(column[0]) for key, column in infos.items()}
        return observations[0], info


class SymbolicSerialVectorEnv(VectorEnv[Observations, NDArray[np.int64], NDArray[Any]]):
    """Many copies of `SymbolicSerialEnv` on one batch kernel, with the trajectories of Gymnasium's `SyncVectorEnv`.

    After the end of an episode the following step starts the next one; it ignores the action and has the reward 0
    (`AutoresetMode.NEXT_STEP`). The other arguments are those of the single environment.

    Args:
        num_envs: number of environments.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012, as in Gymnasium
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 2,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        task: SymbolicTask | str = "chain",
        *,
        task_options: Mapping[str, Any] | None = None,
        max_cycles: int | None = None,
        render_mode: str | None = None,
        **limits: Any,
    ) -> None:
        self.rules = make_rules(task, task_options, **limits)
        self.num_envs = num_envs
        self.render_mode = check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self._game = BatchDelegation(self.rules, num_envs, max_cycles=max_cycles)
        self.single_observation_space, self.single_action_space = serial_spaces(self.rules)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | NDArray[np.integer[Any]] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Start an episode in all environments or some.

        Args:
            seed: one seed per environment, or one number, after which environment i gets seed + i. `None` starts the
                next episode of the current seeds.
            options: `{"reset_mask": mask}` resets the environments where the mask is true, bool of shape (num_envs,).
                The other environments do not change; their seeds are ignored, and their infos are zeros.
        """
        seeds: Any = seed
        if is_integer_within(seed, 0, MAX_SEED):
            seeds = [int(seed) + i for i in range(self.num_envs)]  # type: ignore[arg-type]
        if isinstance(seeds, np.ndarray):
            seeds = seeds.tolist()
        if seeds is not None and not _are_seeds(seeds, self.num_envs):
            raise ConfigError(f"seed is {seed!r}; expected a whole number, or {self.num_envs} of them, or None")
        check_options(options, ("reset_mask",))
        envs = _reset_mask(options["reset_mask"], self.num_envs) if options and "reset_mask" in options else None
        super().reset(seed=None if seeds is None else int(seeds[0]))
        _start(self._game, seeds, envs)
        return self._observe(envs)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Play one action in each environment; environments whose episode is over start the next one instead."""
        over = self._game.done
        rewards = _step_next(self._game, _whole_numbers(actions, self.num_envs))
        self._game.restart(over)
        observations, infos = self._observe()
        state = self._game.state
        return observations, rewards, state.terminated.copy(), state.truncated.copy(), infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the action masks of the acting agents, shape (num_envs, num_actions)."""
        return self._game.next_action_masks()

    def render(self) -> tuple[Any, ...] | None:
        """Return one text or image per environment."""
        if self.render_mode is None:
            return None
        return tuple(render(self._game.state, self.rules, self.render_mode, env) for env in range(self.num_envs))

    def _observe(self, envs: NDArray[np.bool_] | None = None) -> tuple[Observations, dict[str, Any]]:
        observations, infos = _observe_next(self._game)
        has_info = np.ones(self.num_envs, bool) if envs is None else envs
        if envs is not None:
            for column in infos.values():
                column[~envs] = 0
        # Gymnasium's vector infos have a mask `_key` beside each key.
        return observations, {**infos, **{f"_{key}": has_info.copy() for key in infos}}


def serial_spaces(rules: SymbolicRules) -> tuple[spaces.Space[Any], spaces.Discrete]:
    """Return the observation space and the action space of one agent."""
    return spaces.Box(0.0, 1.0, (observation_size(rules),), np.float32), spaces.Discrete(rules.num_actions)


def _start(game: BatchDelegation, seeds: Sequence[int] | None, envs: NDArray[np.bool_] | None = None) -> None:
    """Start the first episodes of seeds, or without seeds the next ones, in all environments or some."""
    keys = None if seeds is None else fold_in(np.array([int(seed) % (1 << 64) for seed in seeds], np.uint64), 0)
    game.reset(keys=keys, envs=envs)


def _step_next(game: BatchDelegation, actions: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Play one action in each environment whose episode is not over, and return the rewards, shape (num_envs,)."""
    playing = ~game.done
    game.step_next(actions)
    return game.state.team_return * playing


def _observe_next(game: BatchDelegation) -> tuple[Observations, dict[str, NDArray[Any]]]:
    """Return observations and infos of the acting agents, one row per environment."""
    infos: dict[str, NDArray[Any]] = {
        "action_mask": game.next_action_masks().view(np.int8),
        "agent": game.next_agents,
        "illegal": game.select_next(game.state.illegal).astype(np.int64),
    }
    return game.next_observations(), infos


def _reset_mask(mask: Any, count: int) -> NDArray[np.bool_]:
    if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (count,) or not mask.any():
        raise ConfigError(f"reset_mask is {mask!r}; expected a bool array of shape ({count},) with at least one True")
    return mask


def _are_seeds(seeds: Any, count: int) -> bool:
    if not isinstance(seeds, Sequence) or len(seeds) != count:
        return False
    return all(is_integer_within(seed, 0, MAX_SEED) for seed in seeds)


def _whole_numbers(actions: Any, count: int) -> NDArray[np.integer[Any]]:
    try:
        array = np.asarray(actions)
    except ValueError:  # rows of different lengths
        array = np.empty(0)
    if array.size != count or array.dtype.kind not in "iu":
        raise GameError(f"the actions are {actions!r}; expected one whole number per environment, {count}")
    return array.reshape(count)
