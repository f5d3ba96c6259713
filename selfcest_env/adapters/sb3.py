"""Stable-Baselines3: the batch kernel as a `VecEnv` with action masks, for PPO and sb3-contrib's MaskablePPO.

Needs the extra `selfcest[sb3]`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError, install_hint

try:
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvStepReturn
except ModuleNotFoundError as error:
    raise ImportError(f"this adapter needs Stable-Baselines3 ({error}); run: {install_hint('sb3')}") from error

from selfcest_env.symbolic.batch import BatchDelegation, Scalar
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.vectors import observation_size

Per = Literal["decision", "agent"]


class SymbolicVecEnv(VecEnv):
    """Many symbolic games as the rows of one `VecEnv`, with shared weights and one team reward.

    With `per="decision"` a row is a game, and a step is one action of its ready agent with the lowest number. This is
    plain single-agent RL with shared weights and without idle steps. The last action of an episode has the reward.

    With `per="agent"` a row is one agent of one game (row = game * num_agents + agent), and a step is a joint step, as
    with SuperSuit. All rows of a game end together with the team reward, also those of agents that were never born. An
    agent that cannot act has WAIT as its only legal action. MaskablePPO has no policy gradient from such rows, but its
    value loss counts them. PPO without masks also trains on their actions, which have no effect. Entry 0 of an
    observation, `can_act`, distinguishes the rows.

    An illegal action is played as WAIT, which costs an agent that could act a turn. Games restart automatically. The
    `infos` of a last step hold `terminal_observation`, `TimeLimit.truncated`, `is_success` (the root's answer was
    right) and `episode` (`r` is the team return, `l` the number of steps), as SB3's logger reads them. Other infos are
    empty.

    Args:
        rules: task, limits and prices (`make_rules`).
        num_envs: number of games. The attribute `num_envs` counts rows, as SB3 expects it.
        per: "decision" for a row per game, or "agent" for a row per agent.
        max_cycles: steps of a game before truncation; `None` never truncates, and the limits end every game.
    """

    render_mode = None

    def __init__(
        self, rules: SymbolicRules, num_envs: int, *, per: Per = "decision", max_cycles: int | None = None
    ) -> None:
        if per not in get_args(Per):
            raise ConfigError(f"per is {per!r}; expected one of {', '.join(map(repr, get_args(Per)))}")
        self.kernel = BatchDelegation(rules, num_envs, max_cycles=max_cycles)
        self.per: Per = per
        self._rows_per_game = rules.num_agents if per == "agent" else 1
        super().__init__(
            num_envs * self._rows_per_game,
            spaces.Box(0.0, 1.0, (observation_size(rules),), np.float32),
            spaces.Discrete(rules.num_actions),
        )

    def reset(self) -> NDArray[np.float32]:
        """Start the next episode of every game, or after `seed` the first one; return observations (rows, features)."""
        if any(self._options):
            raise ConfigError(f"options are {self._options[0]!r}; expected none: this environment has no reset options")
        self.kernel.reset(self._seeds[0])
        self._reset_seeds()
        return self._observations()

    def step_async(self, actions: NDArray[np.integer[Any]]) -> None:
        """Store the actions, shape (rows,), for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Play the stored actions.

        Returns:
            Observations (rows, features), rewards (rows,), dones (rows,) and one info per row.
        """
        self._play()
        done = self.kernel.done
        rewards = self.kernel.state.team_return.astype(np.float32)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if done.any():
            self._fill_last_infos(done, infos)
            self.kernel.restart()
        return self._observations(), rewards.repeat(self._rows_per_game), done.repeat(self._rows_per_game), infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the action masks, shape (rows, num_actions)."""
        if self.per == "agent":
            return self._flatten_agents(self.kernel.action_masks())
        return self.kernel.next_action_masks()

    def close(self) -> None:
        """Do nothing: the batch holds no resources."""

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Return `action_masks` of some rows, the only method that a row has."""
        if method_name != "action_masks":
            raise AttributeError(f"a row has no method {method_name!r}; expected 'action_masks'")
        masks = self.action_masks(*method_args, **method_kwargs)
        return [masks[row] for row in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of the batch once per row, because all rows share it."""
        value = getattr(self, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the batch. Raises `ConfigError` for a part of the rows, because all rows share it."""
        if sorted(self._get_indices(indices)) != list(range(self.num_envs)):
            raise ConfigError(f"indices are {indices!r}; expected None: {attr_name!r} belongs to the whole batch")
        setattr(self, attr_name, value)

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]

    def _play(self) -> None:
        kernel = self.kernel
        if self.per == "agent":
            kernel.step(self._actions.reshape(kernel.num_envs, kernel.num_agents))
        else:
            kernel.step_next(self._actions)

    def _observations(self) -> NDArray[np.float32]:
        if self.per == "agent":
            return self._flatten_agents(self.kernel.observations())
        return self.kernel.next_observations()

    def _flatten_agents(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return values of all agents, shape (games, num_agents, ...), with one axis for rows."""
        return values.reshape(-1, *values.shape[2:])

    def _fill_last_infos(self, done: NDArray[np.bool_], infos: list[dict[str, Any]]) -> None:
        """Fill the infos of rows whose game is over, before it restarts."""
        state = self.kernel.state
        solved = self.kernel.solved
        observations = self._observations()
        for row in np.flatnonzero(done.repeat(self._rows_per_game)):
            game = row // self._rows_per_game
            infos[row] = {
                "terminal_observation": observations[row],
                "TimeLimit.truncated": bool(state.truncated[game]),
                "is_success": bool(solved[game]),
                "episode": {"r": float(state.team_return[game]), "l": int(state.cycle[game])},
            }
