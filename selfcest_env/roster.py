"""PettingZoo names for the agents of a growing tree."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from selfcest_env.types import AgentId


class Population(enum.StrEnum):
    """Which agents are in `agents`. The game is the same in all three."""

    DYNAMIC = "dynamic"  # from birth to their own end
    PERSISTENT = "persistent"  # from birth to the end of the episode
    FIXED = "fixed"  # all possible agents, always


class Roster:
    """Names agents: `agent_0` is the root, and `agent_k` the k-th clone. Clones of one joint step are in tree order."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._ids: list[AgentId] = []
        self._index: dict[AgentId, int] = {}

    def copy(self) -> Roster:
        other = Roster(self.names)
        other._ids = list(self._ids)
        other._index = dict(self._index)
        return other

    def register(self, agents: Iterable[AgentId]) -> list[str]:
        """Name every agent that has no name yet. Return the new names."""
        born = sorted(agent_id for agent_id in agents if agent_id not in self._index)
        for agent_id in born:
            self._index[agent_id] = len(self._ids)
            self._ids.append(agent_id)
        return [self.name_of(agent_id) for agent_id in born]

    def index_of(self, agent_id: AgentId) -> int:
        return self._index[agent_id]

    def name_of(self, agent_id: AgentId) -> str:
        return self.names[self._index[agent_id]]

    def id_at(self, index: int) -> AgentId | None:
        """Return the agent at this index, or `None` while no agent has been born there."""
        return self._ids[index] if index < len(self._ids) else None
