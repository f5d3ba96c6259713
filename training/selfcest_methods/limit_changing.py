"""Base of the task samplers that change a limit of what another one proposes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import HasState, PlugIn, Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked
from selfcest_training.stages.base import TaskMenu, TaskSampler
from selfcest_training.stages.checks import check_menu
from selfcest_training.stages.registry import make_task_sampler


@dataclass
class Inside:
    """The sampler inside, which may have a state of its own."""

    sampler: TaskSampler

    def state_dict(self) -> Mapping[str, Any]:
        return {"sampler": dict(self.sampler.state_dict()) if isinstance(self.sampler, HasState) else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if isinstance(self.sampler, HasState):
            self.sampler.load_state_dict(state["sampler"])


@dataclass(frozen=True)
class SetsLimitOptions(Checked):
    """Attributes:
    sampler: who chooses tasks and rollouts.
    """

    sampler: PlugIn = field(default_factory=lambda: PlugIn("mixture"), kw_only=True)


class SetsLimit(Stateful[Any]):
    """Base of a task sampler that sets one limit of what another one proposes.

    Raises `ConfigError` if a sampler inside sets the same limit.
    """

    Options: ClassVar[type[Any]] = SetsLimitOptions
    options: SetsLimitOptions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, inside in self.insides():
            if isinstance(inside, SetsLimit) and inside.limit_set == self.limit_set:
                raise ConfigError(
                    f"the sampler inside, '{name}', sets {self.limit_set}, and this one would set it again; expected "
                    "one of the two: take one out, or let a curriculum move another limit"
                )

    def initial_state(self) -> Any:
        return Inside(make_task_sampler(self.options.sampler, "sampler"))

    @property
    def inside(self) -> TaskSampler:
        """The sampler that chooses tasks and rollouts."""
        sampler: TaskSampler = self.state.sampler
        return sampler

    @property
    def limit_set(self) -> str:
        """The limit that it changes."""
        raise NotImplementedError

    def insides(self) -> Iterator[tuple[str, TaskSampler]]:
        """Every sampler inside with its name, the outermost first."""
        yield self.options.sampler.name, self.inside
        if isinstance(self.inside, SetsLimit):
            yield from self.inside.insides()

    def check_menu(self, menu: TaskMenu) -> None:
        check_menu(self.inside, menu)

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        self.inside.observe(step, groups)
