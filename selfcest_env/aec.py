"""The AEC API of both games: PettingZoo's conversion, with clear errors."""

from __future__ import annotations

from typing import Any

from pettingzoo.utils.conversions import parallel_to_aec_wrapper  # type: ignore[import-untyped, unused-ignore]

from selfcest_env.checks import check_agent
from selfcest_env.errors import GameError


class DelegationAEC(parallel_to_aec_wrapper):  # type: ignore[misc, unused-ignore]
    """A parallel environment of this project as an AEC environment.

    PettingZoo's own class raises an empty `AssertionError` for an action of an agent that has ended, and `KeyError` or
    `AttributeError` for calls before `reset` and after the end.
    """

    def step(self, action: Any) -> None:
        """Take the action of `agent_selection`: `None` if it has ended.

        Raises:
            GameError: no episode is running, the agent has ended, or the action is invalid.
        """
        self._check_playing()
        agent = self.agent_selection
        if not (self.terminations[agent] or self.truncations[agent]):
            self.env._check_action(agent, action)
        elif action is not None:
            raise GameError(f"{agent} has ended (last() says so); its action must be None")
        super().step(action)

    def observe(self, agent: str) -> Any:
        self._check_playing()  # here too, because the `last` of PettingZoo's wrappers calls `observe`
        check_agent(agent, self.possible_agents)
        if agent not in self._observations:
            raise GameError(f"{agent} is not in the game now; expected one of {', '.join(self._observations)}")
        return super().observe(agent)

    def last(self, observe: bool = True) -> Any:
        self._check_playing()
        return super().last(observe)

    def _check_playing(self) -> None:
        if not hasattr(self, "agent_selection"):
            raise GameError("no episode has been started; call reset() first")
        if not self.agents:
            raise GameError("the episode is over and no agent is left; call reset() to start the next one")
