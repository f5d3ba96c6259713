"""SMAC's `MultiAgentEnv` interface for PyMARL and EPyMARL. It needs only NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.rules import SymbolicRules, make_rules
from selfcest_env.symbolic.vectors import observation_size, state_size


class SymbolicSMAC:
    """One symbolic game with the methods of SMAC's `MultiAgentEnv` (Samvelyan et al. 2019, arXiv 1902.04043).

    All possible agents exist from the start. An agent that is unborn, waits or has ended has one available action, WAIT
    (0), like the no-op of SMAC's dead units. The reward is one number for the team, 0 until the game ends. Call `reset`
    before the first `step`.

    Args:
        task: a task, or its name.
        task_options: options of a task given by name.
        max_cycles: joint steps before truncation. The default is the length of the longest possible game, so no game is
            truncated. PyMARL's buffers hold `episode_limit` steps, so a tight bound saves memory.
        seed: seed of the series of problems; `None` draws one.
        limits: limits of `SymbolicRules`.
    """

    def __init__(
        self,
        task: Any = "chain",
        task_options: Mapping[str, Any] | None = None,
        *,
        max_cycles: int | None = None,
        seed: int | None = None,
        **limits: Any,
    ) -> None:
        self.rules: SymbolicRules = make_rules(task, task_options, **limits)
        self.n_agents = self.rules.num_agents
        # In every joint step at least one agent plays a turn.
        self.episode_limit = self.n_agents * self.rules.max_turns if max_cycles is None else max_cycles
        self.kernel = BatchDelegation(self.rules, 1, max_cycles=self.episode_limit)
        self._seed = self._next_seed = seed

    def reset(self) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Start the next game, and return its observations and state."""
        self.kernel.reset(self._next_seed)
        self._next_seed = None
        return self.get_obs(), self.get_state()

    def step(self, actions: Sequence[int] | NDArray[np.integer[Any]] | Any) -> tuple[float, bool, dict[str, Any]]:
        """Play one joint step.

        Args:
            actions: one per agent, in any form that NumPy can read, also a tensor on the CPU. An illegal action is
                played as WAIT.

        Returns:
            The team reward, whether the game is over, and infos. After a truncation `info["episode_limit"]` is True,
            and PyMARL bootstraps from the last state.
        """
        try:
            joint_action = np.asarray(actions).reshape(1, -1)
        except ValueError as error:
            raise ConfigError(f"actions are {actions!r}; expected {self.n_agents} whole numbers") from error
        if joint_action.shape[1] != self.n_agents:
            raise ConfigError(f"actions are {joint_action.shape[1]}; expected one per agent, {self.n_agents}")
        was_over = bool(self.kernel.done[0])
        self.kernel.step(joint_action)
        state = self.kernel.state
        over = bool(self.kernel.done[0])
        info: dict[str, Any] = {"illegal_actions": int(state.illegal.sum())}
        if over:
            info |= {"episode_limit": bool(state.truncated[0]), "battle_won": bool(self.kernel.solved[0])}
        return 0.0 if was_over else float(state.team_return[0]), over, info

    def get_obs(self) -> list[NDArray[np.float32]]:
        """Return the observations, one array of `get_obs_size()` entries per agent."""
        return list(self.kernel.observations()[0])

    def get_obs_agent(self, agent_id: int) -> NDArray[np.float32]:
        return self.get_obs()[agent_id]

    def get_obs_size(self) -> int:
        return observation_size(self.rules)

    def get_state(self) -> NDArray[np.float32]:
        """Return the whole game, the right answer included, shape (get_state_size(),)."""
        state: NDArray[np.float32] = self.kernel.states()[0]
        return state

    def get_state_size(self) -> int:
        return state_size(self.rules)

    def get_avail_actions(self) -> list[list[int]]:
        """Return the action masks, one list of `get_total_actions()` zeros and ones per agent."""
        available: list[list[int]] = self.kernel.action_masks()[0].astype(int).tolist()
        return available

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        return self.get_avail_actions()[agent_id]

    def get_total_actions(self) -> int:
        return self.rules.num_actions

    def get_env_info(self) -> dict[str, int]:
        """Return the sizes from which PyMARL builds its networks and buffers."""
        return {
            "state_shape": self.get_state_size(),
            "obs_shape": self.get_obs_size(),
            "n_actions": self.get_total_actions(),
            "n_agents": self.n_agents,
            "episode_limit": self.episode_limit,
        }

    def get_stats(self) -> dict[str, Any]:
        return {}

    def seed(self, seed: int | None = None) -> int | None:
        """Set the seed for the next `reset`, if one is given, and return the seed in use."""
        if seed is not None:
            self._seed = self._next_seed = seed
        return self._seed

    def render(self) -> None:
        """Do nothing: PyMARL only calls it in tests. `symbolic_v0` renders the tree."""

    def close(self) -> None:
        """Do nothing: the game holds no resources."""

    def save_replay(self) -> None:
        """Do nothing: there are no StarCraft replays to save."""


class SymbolicEPyMARL(SymbolicSMAC):
    """The same game for EPyMARL since 2024, which follows Gymnasium: `step` returns five values, and `reset` two.

    EPyMARL passes three arguments of its own to every environment: `key`, a label for its results, `common_reward`,
    which must be true here, and `reward_scalarisation`, which has no effect on a common reward.
    """

    def __init__(
        self, *args: Any, key: str = "", common_reward: bool = True, reward_scalarisation: str = "sum", **kwargs: Any
    ) -> None:
        if not common_reward:
            raise ConfigError("common_reward is False; expected True: the game has one reward for the whole team")
        super().__init__(*args, **kwargs)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        if options:
            raise ConfigError(f"options are {options!r}; expected none: this environment has no reset options")
        self.seed(seed)
        observations, _ = super().reset()
        return observations, {}

    def step(self, actions: Any) -> Any:
        reward, over, info = super().step(actions)
        truncated = info.get("episode_limit", False)
        return self.get_obs(), reward, over and not truncated, truncated, info
