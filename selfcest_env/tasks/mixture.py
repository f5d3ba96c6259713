"""Mix several task sources by weight."""

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
    """Draws a source by weight, and a task from this source.

    Its expert is that of the first source that understands the task or objective of the agent.

    Attributes:
        sources: the sources. In a config each is a mapping with `name` and the options of that source.
        weights: one weight per source, with any positive sum. Empty means equal weights.
    """

    name: ClassVar[str] = "mixture"
    sources: Annotated[tuple[TaskSource, ...], NotEmpty()]
    weights: tuple[NotNegative, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights and len(self.weights) != len(self.sources):
            raise ConfigError(
                f"weights has {len(self.weights)} items; expected one for each of the {len(self.sources)} sources"
            )
        if self.weights and not sum(self.weights) > 0:
            raise ConfigError(f"weights is {self.weights}; expected at least one weight above 0")

    def draw(self, rng: np.random.Generator) -> Task:
        weights = np.array(self.weights or [1.0] * len(self.sources))
        source = self.sources[int(rng.choice(len(self.sources), p=weights / weights.sum()))]
        task = source.draw(rng)
        identity = identity_of(source, task)
        # The identity must be stored now: two sources of one kind cannot be told apart from the task later.
        return task if identity is None else replace(task, metadata={**task.metadata, IDENTITY: identity})

    def identity(self, task: Task) -> str | None:
        """Return the identity that the source of the task gave to it."""
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
