"""What a learner plays: a batch of games side by side, on the batch kernel or behind SMAC's interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.streams import seeds_of

Index = NDArray[np.intp]


class View(NamedTuple):
    """What agents see and may do at one moment, in order of game, then agent: R rows, F features, A actions."""

    num_agents: int  # of one game
    game: Index  # [R]
    agent: Index  # [R]
    observations: NDArray[np.float32]  # [R, F]
    masks: NDArray[np.bool_]  # [R, A]


class Games(Protocol):
    """Games of one kind. A game that is over stands still until all are started again.

    Attributes:
        group_size: neighbours that play the same problem.
    """

    group_size: int

    def reset(self) -> None:
        """Start the next episode of every game."""
        ...

    def view(self) -> View:
        """Whoever is left out can only take action 0. Of a truncated game all agents: what would be seen and could be
        done if it went on."""
        ...

    def states(self) -> NDArray[np.float32]:
        """What a centralised critic may know, [G, S]."""
        ...

    def step(self, actions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Play the actions [G, N]; the team rewards [G]."""
        ...

    @property
    def terminated(self) -> NDArray[np.bool_]: ...

    @property
    def truncated(self) -> NDArray[np.bool_]: ...


class KernelGames:
    """Games on the batch kernel.

    Args:
        rules: of all games.
        num_games: played side by side.
        seed: of the problems.
        group_size: neighbours that play the same problem.
        max_cycles: joint steps before truncation.
    """

    def __init__(
        self, rules: SymbolicRules, num_games: int, seed: int, *, group_size: int = 1, max_cycles: int | None = None
    ) -> None:
        _check_groups(num_games, group_size)
        self.kernel = BatchDelegation(rules, num_games, max_cycles=max_cycles)
        self.rules, self.group_size = rules, group_size
        self._keys = np.repeat(seeds_of(seed, num_games // group_size), group_size)
        self._started = False

    def reset(self) -> None:
        self.kernel.reset(keys=None if self._started else self._keys)
        self._started = True

    def view(self) -> View:
        if not self.truncated.any():
            return View(self.kernel.num_agents, *self.kernel.rows())
        kernel = self._untruncated()
        return _view_of_all(kernel.observations(), kernel.action_masks())

    def states(self) -> NDArray[np.float32]:
        return self._untruncated().states()

    def _untruncated(self) -> BatchDelegation:
        if not self.truncated.any():
            return self.kernel
        kernel = BatchDelegation(self.rules, self.kernel.num_envs)
        kernel.set_snapshot(replace(self.kernel.state, truncated=np.zeros_like(self.truncated)))
        return kernel

    def step(self, actions: NDArray[np.int64]) -> NDArray[np.float64]:
        before = self.kernel.state.team_return.copy()
        self.kernel.step(actions)
        return self.kernel.state.team_return - before

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self.kernel.state.terminated

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return self.kernel.state.truncated


class SmacGames:
    """Games behind the interface of SMAC (Samvelyan et al. 2019), as PyMARL and EPyMARL drive it.

    Args:
        envs: each with `reset`, `step(actions) -> (reward, terminated, info)`, `get_obs`, `get_state`,
            `get_avail_actions`. `info["episode_limit"]` tells truncation from termination.
        group_size: neighbours that play the same problem, in every episode: give them the same seed.
    """

    def __init__(self, envs: Sequence[Any], *, group_size: int = 1) -> None:
        if not envs:
            raise ConfigError("envs is empty; expected at least one environment")
        _check_groups(len(envs), group_size)
        self.envs, self.group_size = envs, group_size
        self.terminated, self.truncated = np.ones((2, len(envs)), bool)

    def reset(self) -> None:
        for env in self.envs:
            env.reset()
        self.terminated[:] = self.truncated[:] = False

    def view(self) -> View:
        return _view_of_all(
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


def _view_of_all(observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> View:
    """The view of G games of N agents: [G, N, F] and [G, N, A]."""
    games, agents = masks.shape[:2]
    game, agent = np.divmod(np.arange(games * agents), agents)
    return View(agents, game, agent, observations.reshape(len(game), -1), masks.reshape(len(game), -1))


def _check_groups(num_games: int, group_size: int) -> None:
    if group_size < 1 or num_games % group_size:
        raise ConfigError(f"there are {num_games} games; expected a multiple of group_size = {group_size}")
