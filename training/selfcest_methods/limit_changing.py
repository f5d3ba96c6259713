"""Base of the task samplers that change a limit of what another one proposes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked
from selfcest_training.stages.base import Stateful, TaskMenu, TaskSampler
from selfcest_training.stages.checks import check_menu
from selfcest_training.stages.registry import make_task_sampler


@dataclass(frozen=True)
class SetsLimit(Checked):
    """Attributes:
    sampler: who chooses tasks and rollouts.
    """

    sampler: PlugIn = field(default_factory=lambda: PlugIn("mixture"), kw_only=True)

    def __post_init__(self) -> None:
        """What is wrong with the sampler inside is wrong with the config."""
        super().__post_init__()
        for name, inside in self.insides():
            if isinstance(inside, SetsLimit) and inside.limit_set == self.limit_set:
                raise ConfigError(
                    f"the sampler inside, '{name}', sets {self.limit_set}, and this one would set it again; expected "
                    "one of the two: take one out, or let a curriculum move another limit"
                )

    @property
    def limit_set(self) -> str:
        """The limit that it changes."""
        raise NotImplementedError

    def insides(self) -> Iterator[tuple[str, TaskSampler]]:
        """Every sampler inside with its name, the outermost first."""
        yield self.sampler.name, self.inside
        if isinstance(self.inside, SetsLimit):
            yield from self.inside.insides()

    def check_menu(self, menu: TaskMenu) -> None:
        check_menu(self.inside, menu)

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        self.inside.observe(step, groups)

    def state_dict(self) -> Mapping[str, Any]:
        return {"sampler": dict(self.inside.state_dict()) if isinstance(self.inside, Stateful) else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if isinstance(self.inside, Stateful):
            self.inside.load_state_dict(state["sampler"])

    @cached_property
    def inside(self) -> TaskSampler:
        return make_task_sampler(self.sampler, "sampler")
