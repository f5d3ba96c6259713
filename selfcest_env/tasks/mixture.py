"""Several sources as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.structure import Checked, NotEmpty, NotNegative
from selfcest_env.tasks.source import (
    GIVE_UP,
    IDENTITY,
    ExpertSource,
    Proposal,
    Style,
    TaskSource,
    identity_of,
)
from selfcest_env.types import Task
from selfcest_env.views import Observation


@dataclass(frozen=True)
class Mixture(Checked):
    """Draws a source by weight, then a task from it; its expert is the first whose family fits what the agent sees.

    Attributes:
        sources: in a config, a list of mappings with `name` and the source's own options.
        weights: one per source, not necessarily adding up to 1; all equal if left empty.
    """

    name: ClassVar[str] = "mixture"
    sources: Annotated[tuple[TaskSource, ...], NotEmpty()]
    weights: tuple[NotNegative, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights and len(self.weights) != len(self.sources):
            raise ConfigError(
                f"weights has {len(self.weights)} items for {len(self.sources)} sources; expected one each"
            )
        if self.weights and not sum(self.weights) > 0:
            raise ConfigError(f"weights is {self.weights}; expected at least one weight above 0")

    def draw(self, rng: np.random.Generator) -> Task:
        weights = np.array(self.weights or [1.0] * len(self.sources))
        source = self.sources[int(rng.choice(len(self.sources), p=weights / weights.sum()))]
        task = source.draw(rng)
        identity = identity_of(source, task)
        # Written down here: afterwards nothing tells two sources of one kind apart.
        return task if identity is None else replace(task, metadata={**task.metadata, IDENTITY: identity})

    def identity(self, task: Task) -> str | None:
        """What the source that drew it says it is."""
        return str(task.metadata[IDENTITY]) if IDENTITY in task.metadata else None

    def understands(self, observation: Observation) -> bool:
        return self._expert(observation) is not None

    def propose(self, observation: Observation, rng: np.random.Generator, style: Style) -> Proposal:
        expert = self._expert(observation)
        return GIVE_UP if expert is None else expert.propose(observation, rng, style)

    def _expert(self, observation: Observation) -> ExpertSource | None:
        for source in self.sources:
            if isinstance(source, ExpertSource) and source.understands(observation):
                return source
        return None
