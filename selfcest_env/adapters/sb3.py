"""Stable-Baselines3: the batch kernel as a `VecEnv` with action masks, for PPO and for sb3-contrib's MaskablePPO.

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
    """Many symbolic games as the rows of one `VecEnv`; shared weights, one team reward.

    With `per="decision"` a row is a game and a step is one decision of one agent, the lowest numbered of those that can
    act: shared weights as plain single-agent RL, without idle steps. The reward comes with the last decision.

    With `per="agent"` a row is one agent of one game (row = game * num_agents + agent) and a step is a joint step, as
    with SuperSuit. All rows of a game end together, each with the team reward, also those never born. The row of an
    agent that cannot act carries WAIT: MaskablePPO gets no policy gradient from it, but its value loss counts such
    rows, and PPO without masks also learns what to "do" there, to no effect. Entry 0 of an observation (`can_act`)
    tells the two apart.

    An illegal action is WAIT, which costs an agent that could act a turn. Games restart by themselves; the `infos` of a
    last step hold `terminal_observation`, `TimeLimit.truncated`, `is_success` (the root's answer was right) and
    `episode` (`r` team return, `l` steps), as SB3's logger reads them. All other infos are empty.

    Args:
        rules: task, limits and prices (`make_rules`).
        num_envs: games played side by side. The attribute `num_envs` counts rows, as SB3 needs it.
        per: what a row is.
        max_cycles: steps of a game before truncation, `None` for never: the limits end every game.
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
        """Start the next episode of every game, or the first one of the last `seed`; shape (rows, features)."""
        if any(self._options):
            raise ConfigError(f"options are {self._options[0]!r}; expected none: this environment has no reset options")
        self.kernel.reset(self._seeds[0])
        self._reset_seeds()
        return self._observations()

    def step_async(self, actions: NDArray[np.integer[Any]]) -> None:
        """Keep the actions, shape (rows,), for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Observations (rows, features), rewards (rows,), dones (rows,) and one dict per row."""
        self._play()
        done, rewards = self.kernel.done, self.kernel.state.team_return.astype(np.float32)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if done.any():
            self._say_how_it_ended(done, infos)
            self.kernel.restart()
        return self._observations(), rewards.repeat(self._rows_per_game), done.repeat(self._rows_per_game), infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Legal actions, shape (rows, num_actions)."""
        return self._of_agents(self.kernel.action_masks()) if self.per == "agent" else self.kernel.next_action_masks()

    def close(self) -> None:
        """There is nothing to close."""

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """`action_masks` of some rows; a row has no other method of its own."""
        if method_name != "action_masks":
            raise AttributeError(f"a row has no method {method_name!r}; expected 'action_masks'")
        masks = self.action_masks(*method_args, **method_kwargs)
        return [masks[row] for row in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the batch, once for every row: all rows share it."""
        value = getattr(self, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the batch; of some rows alone it cannot be set."""
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
        return self._of_agents(self.kernel.observations()) if self.per == "agent" else self.kernel.next_observations()

    def _of_agents(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values of all agents, shape (games, num_agents, ...), as those of rows."""
        return values.reshape(-1, *values.shape[2:])

    def _say_how_it_ended(self, done: NDArray[np.bool_], infos: list[dict[str, Any]]) -> None:
        state, right, last = self.kernel.state, self.kernel.solved, self._observations()
        for row in np.flatnonzero(done.repeat(self._rows_per_game)):
            game = row // self._rows_per_game
            infos[row] = {
                "terminal_observation": last[row],
                "TimeLimit.truncated": bool(state.truncated[game]),
                "is_success": bool(right[game]),
                "episode": {"r": float(state.team_return[game]), "l": int(state.cycle[game])},
            }
