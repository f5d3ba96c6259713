"""The base of task samplers that change one limit of the groups that another sampler proposes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import HasState, PlugIn, Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Checked
from selfcest_env.types import Limits
from selfcest_methods.knapsack import Knapsack
from selfcest_training.config import override_limits
from selfcest_training.stages.base import PlannedGroup, TaskMenu, TaskSampler
from selfcest_training.stages.checks import check_menu
from selfcest_training.stages.registry import make_task_sampler


@dataclass
class InnerSamplerState:
    """The inner sampler, which may have a state of its own."""

    sampler: TaskSampler

    def state_dict(self) -> Mapping[str, Any]:
        return {"sampler": dict(self.sampler.state_dict()) if isinstance(self.sampler, HasState) else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if isinstance(self.sampler, HasState):
            self.sampler.load_state_dict(state["sampler"])


@dataclass(frozen=True)
class LimitChangingOptions(Checked):
    """Options of a `LimitChangingSampler`.

    Attributes:
        sampler: the inner sampler, which chooses tasks and numbers of rollouts.
    """

    sampler: PlugIn = field(default_factory=lambda: PlugIn("mixture"), kw_only=True)


class LimitChangingSampler(Stateful[Any]):
    """Base of a task sampler that sets one limit of the groups that its inner sampler proposes.

    Raises:
        ConfigError: an inner sampler sets the same limit.
    """

    Options: ClassVar[type[Any]] = LimitChangingOptions
    options: LimitChangingOptions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, sampler in self.inner_samplers():
            if isinstance(sampler, LimitChangingSampler) and sampler.changed_limit == self.changed_limit:
                raise ConfigError(
                    f"the inner sampler '{name}' sets {self.changed_limit}, which this one sets too; remove one of the "
                    "two, or let one set another limit"
                )

    def initial_state(self) -> Any:
        return InnerSamplerState(make_task_sampler(self.options.sampler, "sampler"))

    @property
    def inner(self) -> TaskSampler:
        sampler: TaskSampler = self.state.sampler
        return sampler

    @property
    def changed_limit(self) -> str:
        """Name of the limit that this sampler sets."""
        raise NotImplementedError(f"{type(self).__name__} does not override changed_limit")

    def inner_samplers(self) -> Iterator[tuple[str, TaskSampler]]:
        """Yield the name and the sampler of every inner sampler, the outermost first."""
        yield self.options.sampler.name, self.inner
        if isinstance(self.inner, LimitChangingSampler):
            yield from self.inner.inner_samplers()

    def check_menu(self, menu: TaskMenu) -> None:
        check_menu(self.inner, menu)

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        self.inner.observe(step, groups)


class LimitDrawingSampler(LimitChangingSampler):
    """Base of a task sampler that draws its limit for each group.

    Raises:
        ConfigError: an inner sampler sets the same limit, or allocates rollouts by success rates.
    """

    name: ClassVar[str]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, sampler in self.inner_samplers():
            # Its rates would be means over all draws, and never those of the limit that a group gets.
            if isinstance(sampler, Knapsack):
                raise ConfigError(
                    f"the inner sampler '{name}' allocates rollouts by success rates, which depend on the "
                    f"{self.changed_limit} that is drawn later; use one that gives every task group_size rollouts, "
                    "such as mixture, dots, eva or scaler"
                )

    @property
    def values(self) -> Sequence[int]:
        """The values that may be drawn, or the smallest and the largest one."""
        raise NotImplementedError(f"{type(self).__name__} does not override values")

    def draw(self, rng: np.random.Generator) -> int:
        """Draw the limit of one group."""
        return self.values[int(rng.integers(len(self.values)))]

    def check_menu(self, menu: TaskMenu) -> None:
        for value in self.values:
            self.set_limit(menu.limits, value)
        super().check_menu(menu)

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> list[PlannedGroup]:
        plans = self.inner.propose(step, num_tasks, menu, rng)
        # One draw per group and not per episode, so that a group baseline compares episodes under equal limits.
        return [replace(plan, limits=self.set_limit(plan.limits or menu.limits, self.draw(rng))) for plan in plans]

    def set_limit(self, limits: Limits, value: int) -> Limits:
        """Return the limits with this value of the changed limit. Raises `ConfigError` if they allow less."""
        highest = getattr(limits, self.changed_limit)
        if highest is not None and value > highest:
            raise ConfigError(
                f"task sampler '{self.name}' draws {self.changed_limit} = {value}, above limits.{self.changed_limit} = "
                f"{highest}; raise the limit, or leave the value out"
            )
        return override_limits(limits, {self.changed_limit: value}, f"task sampler '{self.name}': limits")
