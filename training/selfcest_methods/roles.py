"""Values of single agents, compared within groups of peers, for credit schemes that tell roles apart."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.types import ROOT, AgentId, Role, TurnKey
from selfcest_training.credit.base import Advantage, get_term


class AgentKey(NamedTuple):
    """An agent of one episode of a group."""

    episode_id: str
    agent_id: AgentId

    @property
    def role(self) -> Role:
        return Role.ROOT if self.agent_id == ROOT else Role.CLONE


def list_agents(group: EpisodeGroup) -> Iterator[tuple[AgentKey, EpisodeRecord]]:
    """List the agents of a group that took a turn, each with its episode."""
    for episode in group.episodes:
        for agent in episode.agents:
            if agent.turns:
                yield AgentKey(episode.episode_id, agent.agent_id), episode


def remove_agents(episode: EpisodeRecord, *agents: AgentId) -> Replay:
    """Return the replay in which these agents are absent and their parent reads the default reply."""
    return Replay.of(episode.episode_id, dict.fromkeys(agents, Intervention.DEFAULT))


def sum_own_turns(episode: EpisodeRecord, agent_id: AgentId, term: str | None = None) -> float:
    """Return the summands of the return that judge the turns of one agent, of one reward term or of all.

    Raises:
        RewardError: the reward has no such term.
    """
    if term is None:
        return sum(value for key, value in episode.returns_by_turn.items() if key.agent_id == agent_id)
    get_term(episode, term)
    return episode.weights.get(term, 1.0) * sum(episode.by_turn.get(term, {}).get(agent_id, ()))


def compare_with_peers(
    values: Mapping[AgentKey, float],
    peers_of: Callable[[AgentKey], Hashable],
    *,
    ddof: int = 1,
    epsilon: float | None = None,
) -> dict[AgentKey, float]:
    """Subtract from each value the mean over its peers, of which it is one, and divide by their standard deviation.

    Args:
        values: a value for each agent.
        peers_of: agents with an equal result are peers.
        ddof: number that is subtracted from the number of peers in the variance. An agent without other peers gets 0.
        epsilon: number that is added to the divisor; `None` for no division.
    """
    peers: dict[Hashable, list[AgentKey]] = {}
    for agent in values:
        peers.setdefault(peers_of(agent), []).append(agent)
    compared: dict[AgentKey, float] = {}
    for agents in peers.values():
        numbers = np.array([values[agent] for agent in agents])
        centred = numbers - numbers.mean()
        if epsilon is not None:
            std = numbers.std(ddof=ddof) if len(agents) > 1 else 0.0
            # Equal values have a standard deviation of rounding errors, and no advantage.
            centred = centred / (std + epsilon) if std > 1e-12 else np.zeros(len(agents))
        compared.update(zip(agents, centred.tolist(), strict=True))
    return compared


def give_to_turns(group: EpisodeGroup, values: Mapping[AgentKey, float]) -> dict[TurnKey, Advantage]:
    """Give every turn the value of its agent."""
    advantage: dict[TurnKey, Advantage] = {}
    for episode in group.episodes:
        for key, _ in episode.turns():
            advantage[key] = values[AgentKey(episode.episode_id, key.agent_id)]
    return advantage
