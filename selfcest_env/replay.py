"""A counterfactual question about an episode: what would have come of it, had these agents done something else?

A `Replay` only names the question, so a credit scheme can ask it without holding the environment or the policy. Which
turns it keeps is decided by `counterfactual`, and it is played by `selfcest_agents.replay`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from selfcest_env.errors import CreditError
from selfcest_env.types import ROOT, AgentId


class Intervention(enum.StrEnum):
    """What is done to one agent, from its first turn on."""

    DEFAULT = "default"  # its reply is one fixed text; it generates nothing, is charged nothing, has no subtree
    RESAMPLE = "resample"  # its turns are sampled anew


@dataclass(frozen=True, slots=True, order=True)
class Replay:
    """A replay to play, hashable; prints as `e7/root.0=default,root.2=default/sample1`.

    Attributes:
        episode_id: the factual episode.
        interventions: what is done to whom, sorted by agent; at least one. None of the agents may owe its birth to
            another's turns: neither be below it nor be born after the call that it served had joined.
        sample: replays that differ in it alone are independent draws of the same question.

    Raises:
        CreditError: no intervention, two on one agent, a default reply for the root, a sample that is not >= 0.
    """

    episode_id: str
    interventions: tuple[tuple[AgentId, Intervention], ...]
    sample: int = 0

    def __post_init__(self) -> None:
        agents = [agent_id for agent_id, _ in self.interventions]
        if not agents:
            raise CreditError(f"replay {self} intervenes on nobody; name at least one agent")
        if agents != sorted(set(agents)):
            raise CreditError(f"replay {self}: expected agents in tree order, each once; build it with Replay.of")
        if (ROOT, Intervention.DEFAULT) in self.interventions:
            raise CreditError(f"replay {self}: the root has no parent to get a default reply; resample it instead")
        if type(self.sample) is not int or self.sample < 0:
            raise CreditError(f"replay {self}: sample is {self.sample!r}; expected a whole number >= 0")

    @classmethod
    def of(cls, episode_id: str, interventions: Mapping[AgentId, Intervention], sample: int = 0) -> Replay:
        return cls(episode_id, tuple(sorted(interventions.items())), sample)

    def __str__(self) -> str:
        agents = ",".join(f"{agent_id}={intervention}" for agent_id, intervention in self.interventions)
        return f"{self.episode_id}/{agents}/sample{self.sample}"
