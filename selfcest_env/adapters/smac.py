"""SMAC's `MultiAgentEnv` interface, as PyMARL and EPyMARL drive it. Needs NumPy alone."""

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

    All agents are there from the start. Who is unborn, waits or has ended has one available action, WAIT (0), like the
    no-op of SMAC's dead units. The reward is the team's, one number, 0 until the game ends. `reset` must come first.

    Args:
        task: a task, or its name.
        task_options: of a task given by name.
        max_cycles: joint steps before truncation. By default as many as the longest game can have, so that no game is
            cut; PyMARL's buffers hold `episode_limit` steps, so a tight bound saves memory.
        seed: of the series of problems; `None` draws one.
        limits: those of `SymbolicRules`.
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
        """Start the next game; returns its observations and state."""
        self.kernel.reset(self._next_seed)
        self._next_seed = None
        return self.get_obs(), self.get_state()

    def step(self, actions: Sequence[int] | NDArray[np.integer[Any]] | Any) -> tuple[float, bool, dict[str, Any]]:
        """Play one joint step.

        Args:
            actions: one per agent; whatever NumPy can read, so also a tensor on the CPU. An illegal one is WAIT.

        Returns:
            Team reward; whether the game is over; infos. A game that was cut by `episode_limit` has
            `info["episode_limit"]` True and is no terminal state: PyMARL bootstraps from there.
        """
        try:
            played = np.asarray(actions).reshape(1, -1)
        except ValueError as error:
            raise ConfigError(f"actions are {actions!r}; expected {self.n_agents} whole numbers") from error
        if played.shape[1] != self.n_agents:
            raise ConfigError(f"actions are {played.shape[1]}; expected one per agent, {self.n_agents}")
        standing = bool(self.kernel.done[0])
        self.kernel.step(played)
        state = self.kernel.state
        over = bool(self.kernel.done[0])
        info: dict[str, Any] = {"illegal_actions": int(state.illegal.sum())}
        if over:
            info |= {"episode_limit": bool(state.truncated[0]), "battle_won": bool(self.kernel.solved[0])}
        return 0.0 if standing else float(state.team_return[0]), over, info

    def get_obs(self) -> list[NDArray[np.float32]]:
        """What each agent sees, one array of `get_obs_size()` per agent."""
        return list(self.kernel.observations()[0])

    def get_obs_agent(self, agent_id: int) -> NDArray[np.float32]:
        return self.get_obs()[agent_id]

    def get_obs_size(self) -> int:
        return observation_size(self.rules)

    def get_state(self) -> NDArray[np.float32]:
        """The whole game, the right answer included, shape (get_state_size(),)."""
        state: NDArray[np.float32] = self.kernel.states()[0]
        return state

    def get_state_size(self) -> int:
        return state_size(self.rules)

    def get_avail_actions(self) -> list[list[int]]:
        """1 for every action that an agent has, one list of `get_total_actions()` per agent."""
        available: list[list[int]] = self.kernel.action_masks()[0].astype(int).tolist()
        return available

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        return self.get_avail_actions()[agent_id]

    def get_total_actions(self) -> int:
        return self.rules.num_actions

    def get_env_info(self) -> dict[str, int]:
        """The sizes that PyMARL builds its networks and buffers from."""
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
        """Start the series of a seed with the next `reset`; without an argument, the seed in use."""
        if seed is not None:
            self._seed = self._next_seed = seed
        return self._seed

    def render(self) -> None:
        """PyMARL calls it in tests; the drawn tree is in `symbolic_v0`."""

    def close(self) -> None:
        """There is nothing to close."""

    def save_replay(self) -> None:
        """SMAC stores StarCraft replays here; there are none."""


class SymbolicEPyMARL(SymbolicSMAC):
    """The same for EPyMARL since 2024, whose runners follow Gymnasium: five values per step, two per reset.

    EPyMARL hands three arguments of its own to every environment: `key`, a label for its results, `common_reward`,
    which the game has, and `reward_scalarisation`, for games that have not.
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
