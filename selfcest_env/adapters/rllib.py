"""RLlib: the PettingZoo environment as a `MultiAgentEnv` that shows agents only when they can act.

Needs the extra `selfcest[rllib]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from selfcest_env.errors import ConfigError, install_hint

try:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv
except ModuleNotFoundError as error:
    raise ImportError(f"this adapter needs RLlib ({error}); run: {install_hint('rllib')}") from error

from selfcest_env.roster import Population
from selfcest_env.symbolic.parallel import SymbolicEnv
from selfcest_env.symbolic.vectors import observation_size


class SymbolicRLlib(MultiAgentEnv):  # type: ignore[misc]  # Ray ships no types
    """The symbolic game for RLlib's new API stack: shared weights, masks, one team reward.

    Agents that cannot act (unborn, waiting, ended) are in no dict, so there are no idle rows in a batch: after its
    action an agent gets its next observation at its next turn. In the last step every agent that has acted gets its
    last observation and the team reward, even a clone that ended long before. RLlib's `episode_return_mean` sums over
    these agents, whose number differs between episodes. The team return is `agent_episode_returns_mean` of "agent_0",
    the root, which acts in every episode.

    An observation is `{"observations": float32 (features,), "action_mask": float32 (actions,)}`, with the keys that
    RLlib's `ActionMaskingTorchRLModule` expects. An illegal action is played as WAIT, which costs the agent a turn.
    Infos are those of `symbolic_v0`.

    Args:
        config: arguments of `symbolic_v0.parallel_env`, from RLlib's `env_config`, without `population` and
            `observation_mode`.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        arguments = dict(config or {})
        for name in ("population", "observation_mode"):
            if name in arguments:
                raise ConfigError(f"{name} is {arguments[name]!r}; expected to be left out: the adapter sets it")
        self.game = SymbolicEnv(**arguments, population=Population.FIXED, observation_mode="dict")
        self.agents = self.possible_agents = list(self.game.possible_agents)
        observation = spaces.Box(0.0, 1.0, (observation_size(self.game.rules),), np.float32)
        action_mask = spaces.Box(0.0, 1.0, (self.game.rules.num_actions,), np.float32)
        space = spaces.Dict({"observations": observation, "action_mask": action_mask})
        self.observation_spaces = dict.fromkeys(self.agents, space)
        self.action_spaces = dict(self.game.action_spaces)
        self.render_mode = self.game.render_mode
        self._have_acted: set[str] = set()
        super().__init__()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode: the first one of a seed, or without a seed the next one."""
        observations, infos = self.game.reset(seed, options)
        self._have_acted = set()
        return self._select_agents(observations, infos)

    def step(
        self, action_dict: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """Play one joint step of all agents that can act; a missing action is WAIT."""
        observations, rewards, terminations, truncations, infos = self.game.step(action_dict)
        observations, infos = self._select_agents(observations, infos)
        rewards = {agent: rewards[agent] for agent in observations}
        root = self.possible_agents[0]
        return observations, rewards, {"__all__": terminations[root]}, {"__all__": truncations[root]}, infos

    def render(self) -> Any:
        return self.game.render()

    def close(self) -> None:
        self.game.close()

    def _select_agents(
        self, observations: dict[str, Any], infos: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return observations and infos of the agents that can act; after the last step, of all that have acted."""
        if self.game.agents:
            selected = [agent for agent in self.possible_agents if infos[agent]["can_act"]]
            self._have_acted.update(selected)
        else:
            selected = [agent for agent in self.possible_agents if agent in self._have_acted]
        selected_observations = {agent: _rename_keys(observations[agent]) for agent in selected}
        return selected_observations, {agent: infos[agent] for agent in selected}


def _rename_keys(observation: Mapping[str, Any]) -> dict[str, Any]:
    return {"observations": observation["observation"], "action_mask": observation["action_mask"].astype(np.float32)}
