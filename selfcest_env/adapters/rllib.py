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

    Who cannot act (unborn, waiting, ended) is in no dict, so there are no idle rows to train on: what an agent does is
    followed by what it sees at its next turn. With the last step every agent that has ever acted gets its last
    observation and the team reward, also a clone that answered long before. RLlib's `episode_return_mean` adds up these
    agents, whose number differs from game to game; `agent_episode_returns_mean` of "agent_0", the root, which acts in
    every game, is the team return.

    An observation is `{"observations": float32 (features,), "action_mask": float32 (actions,)}`, the names that RLlib's
    `ActionMaskingTorchRLModule` asks for. An illegal action is WAIT, which costs the agent a turn. Infos are those of
    `symbolic_v0`.

    Args:
        config: arguments of `symbolic_v0.parallel_env`, as `env_config` hands them over; `population` and
            `observation_mode` are not among them.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        arguments = dict(config or {})
        for name in ("population", "observation_mode"):
            if name in arguments:
                raise ConfigError(
                    f"{name} is {arguments[name]!r}; expected to be left out: this adapter shows who acts"
                )
        self.game = SymbolicEnv(**arguments, population=Population.FIXED, observation_mode="dict")
        self.agents = self.possible_agents = list(self.game.possible_agents)
        seen = spaces.Box(0.0, 1.0, (observation_size(self.game.rules),), np.float32)
        mask = spaces.Box(0.0, 1.0, (self.game.rules.num_actions,), np.float32)
        space = spaces.Dict({"observations": seen, "action_mask": mask})
        self.observation_spaces = dict.fromkeys(self.agents, space)
        self.action_spaces = dict(self.game.action_spaces)
        self.render_mode = self.game.render_mode
        self._met: set[str] = set()
        super().__init__()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode. With a seed the series of episodes starts anew; without, it goes on."""
        observations, infos = self.game.reset(seed, options)
        self._met = set()
        return self._shown(observations, infos)

    def step(
        self, action_dict: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """Play one joint step of all who can act; actions of others are ignored, a missing one is WAIT."""
        observations, rewards, terminations, truncations, infos = self.game.step(action_dict)
        seen, told = self._shown(observations, infos)
        paid = {agent: rewards[agent] for agent in seen}
        root = self.possible_agents[0]
        return seen, paid, {"__all__": terminations[root]}, {"__all__": truncations[root]}, told

    def render(self) -> Any:
        return self.game.render()

    def close(self) -> None:
        self.game.close()

    def _shown(self, observations: dict[str, Any], infos: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What agents that can act see; at the end, what all see that have acted."""
        if self.game.agents:
            shown = [agent for agent in self.possible_agents if infos[agent]["can_act"]]
            self._met.update(shown)
        else:
            shown = [agent for agent in self.possible_agents if agent in self._met]
        return {agent: _renamed(observations[agent]) for agent in shown}, {agent: infos[agent] for agent in shown}


def _renamed(observation: Mapping[str, Any]) -> dict[str, Any]:
    return {"observations": observation["observation"], "action_mask": observation["action_mask"].astype(np.float32)}
