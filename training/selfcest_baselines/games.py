"""Vectorised games for learners, on the batch kernel or behind SMAC's interface.

Shapes: G games, N agents of one game, F features of an observation, A actions, S numbers of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.streams import make_keys

Index = NDArray[np.intp]


class GamesView(NamedTuple):
    """Observations and action masks at one moment: R rows in order of game, then agent."""

    num_agents: int  # N, of one game
    game: Index  # [R]
    agent: Index  # [R]
    observations: NDArray[np.float32]  # [R, F]
    masks: NDArray[np.bool_]  # [R, A]


class Games(Protocol):
    """A batch of games. A game that is over does not change until all games are reset.

    Attributes:
        group_size: number of neighbouring games that play the same problem.
    """

    group_size: int

    def reset(self) -> None:
        """Start the next episode of every game."""
        ...

    def view(self) -> GamesView:
        """Return observations and masks. An agent without a row can only take action 0.

        A truncated game has rows of all agents, as if the game continued: bootstrapping needs their values.
        """
        ...

    def states(self) -> NDArray[np.float32]:
        """Return the states for a centralised critic, [G, S]."""
        ...

    def step(self, actions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Play the joint actions [G, N] and return the team rewards [G]."""
        ...

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """Which games have ended, [G]."""
        ...

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Which games were cut before their end, [G]."""
        ...


class KernelGames:
    """Games on the batch kernel.

    Args:
        rules: rules of all games.
        num_games: number of games.
        seed: seed of the problems.
        group_size: number of neighbouring games that play the same problem.
        max_cycles: joint steps before truncation, `None` for none.
    """

    def __init__(
        self, rules: SymbolicRules, num_games: int, seed: int, *, group_size: int = 1, max_cycles: int | None = None
    ) -> None:
        _check_groups(num_games, group_size)
        self.kernel = BatchDelegation(rules, num_games, max_cycles=max_cycles)
        self.rules = rules
        self.group_size = group_size
        self._keys = np.repeat(make_keys(seed, num_games // group_size), group_size)
        self._started = False

    def reset(self) -> None:
        # The kernel derives the keys of later episodes from the first ones, so groups stay together.
        self.kernel.reset(keys=None if self._started else self._keys)
        self._started = True

    def view(self) -> GamesView:
        if not self.truncated.any():
            return GamesView(self.kernel.num_agents, *self.kernel.ready_agents())
        kernel = self._untruncated_kernel()
        return _view_all_agents(kernel.observations(), kernel.action_masks())

    def states(self) -> NDArray[np.float32]:
        return self._untruncated_kernel().states()

    def _untruncated_kernel(self) -> BatchDelegation:
        """Return a kernel at the same moment in which no game is truncated."""
        if not self.truncated.any():
            return self.kernel
        kernel = BatchDelegation(self.rules, self.kernel.num_envs)
        kernel.set_snapshot(replace(self.kernel.state, truncated=np.zeros_like(self.truncated)))
        return kernel

    def step(self, actions: NDArray[np.int64]) -> NDArray[np.float64]:
        return_before = self.kernel.state.team_return.copy()
        self.kernel.step(actions)
        return self.kernel.state.team_return - return_before

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self.kernel.state.terminated

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return self.kernel.state.truncated


class SmacGames:
    """Games behind the interface of SMAC (Samvelyan et al. 2019), as PyMARL and EPyMARL drive it.

    Args:
        envs: environments with `reset`, `step(actions) -> (reward, terminated, info)`, `get_obs`, `get_state` and
            `get_avail_actions`. `info["episode_limit"]` marks truncation.
        group_size: number of neighbouring environments that play the same problem in every episode. Give them the same
            seed.

    Raises:
        ConfigError: there is no environment, or their number is no multiple of `group_size`.
    """

    def __init__(self, envs: Sequence[Any], *, group_size: int = 1) -> None:
        if not envs:
            raise ConfigError("envs is empty; expected one environment or more")
        _check_groups(len(envs), group_size)
        self.envs = envs
        self.group_size = group_size
        # All games are over until the first reset.
        self.terminated = np.ones(len(envs), bool)
        self.truncated = np.ones(len(envs), bool)

    def reset(self) -> None:
        for env in self.envs:
            env.reset()
        self.terminated[:] = False
        self.truncated[:] = False

    def view(self) -> GamesView:
        return _view_all_agents(
            np.array([env.get_obs() for env in self.envs], np.float32),
            np.array([env.get_avail_actions() for env in self.envs], bool),
        )

    def states(self) -> NDArray[np.float32]:
        return np.array([env.get_state() for env in self.envs], np.float32)

    def step(self, actions: NDArray[np.int64]) -> NDArray[np.float64]:
        rewards = np.zeros(len(self.envs))
        for i, env in enumerate(self.envs):
            if self.terminated[i] or self.truncated[i]:
                continue
            reward, over, info = env.step(actions[i])
            rewards[i] = reward
            self.truncated[i] = over and bool(info.get("episode_limit", False))
            self.terminated[i] = over and not self.truncated[i]
        return rewards


def _view_all_agents(observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> GamesView:
    """Return a view with a row for every agent, from observations [G, N, F] and masks [G, N, A]."""
    num_games, num_agents = masks.shape[:2]
    game, agent = np.divmod(np.arange(num_games * num_agents), num_agents)
    return GamesView(num_agents, game, agent, observations.reshape(len(game), -1), masks.reshape(len(game), -1))


def _check_groups(num_games: int, group_size: int) -> None:
    if group_size < 1 or num_games % group_size:
        raise ConfigError(
            f"there are {num_games} games and group_size is {group_size}; expected a multiple of group_size as the "
            "number of games"
        )
