"""The interfaces of a step's plug-ins: task samplers, group filters and reward schedules.

A stage is an ordinary class whose options are its constructor's arguments. `observe` gives it the results of earlier
steps, in the order of the steps. It has no access to the policy, the learner or the clock, and draws random numbers
only from the generator that it is given. A stage with a state has `state_dict` and `load_state_dict`, whose values go
into every checkpoint: dicts with string keys, lists, texts, numbers, booleans, None and tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from selfcest_env.plugin import HasState
from selfcest_env.record import EpisodeGroup
from selfcest_env.tasks import TaskSource
from selfcest_env.types import Limits, Task
from selfcest_training.config import RLConfig
from selfcest_training.credit import CreditAssigner, overrides
from selfcest_training.credit.wrapping import WrapperScheme


@dataclass(frozen=True)
class PlannedGroup:
    """A task, the number of its rollouts, and their limits; `None` for the limits of the variant."""

    task: Task
    num_rollouts: int
    limits: Limits | None = None


@dataclass(frozen=True)
class TaskMenu:
    """The task families and options from which a `TaskSampler` plans.

    Attributes:
        sources: the training part of each task family, by name.
        weights: weights of the families in the config.
        group_size: number of rollouts per task in the config.
        limits: limits of plans without their own.
        remake: makes the training part of a family, by name, with changed options. It raises `ConfigError` for a wrong
            option. `None` if the families cannot be changed.
    """

    sources: Mapping[str, TaskSource]
    weights: Mapping[str, float]
    group_size: int
    limits: Limits = Limits()
    remake: Callable[[str, Mapping[str, Any]], TaskSource] | None = None


class TaskSampler(Protocol):
    """Proposes the tasks of a step, and the number of rollouts of each."""

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        """Propose tasks for a step, or for a further round of it if a group filter requests more.

        Args:
            step: number of the step, from 0.
            num_tasks: requested number of tasks. Any number above 0 may be returned.
            menu: the task families.
            rng: generator of the step. Further rounds continue with the same generator.
        """
        ...

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """Receive the scored groups of a round that this sampler proposed, also those that a filter drops.

        The groups of `FilterResult.further_rollouts` are not among them. Outcomes decided which tasks they repeat, so
        they would bias success rates.
        """
        ...


@runtime_checkable
class MenuBound(Protocol):
    """A task sampler whose options depend on the menu."""

    def check_menu(self, menu: TaskMenu) -> None:
        """Raise `ConfigError` for a menu from which it cannot plan. Called before any work."""
        ...


@dataclass(frozen=True)
class FilterResult:
    """The decision of a group filter about the groups of a step.

    Attributes:
        groups: the groups to train on, in order. Each one is a given group, a part of it, or a union of given groups of
            one task. No episode may be in two groups.
        num_new_tasks: number of new tasks to roll out before the filter is called again with all groups.
        further_rollouts: further rollouts of known tasks before the filter is called again. If no tasks and no
            rollouts are requested, the step continues with credit.
    """

    groups: tuple[EpisodeGroup, ...]
    num_new_tasks: int = 0
    further_rollouts: tuple[PlannedGroup, ...] = ()


class GroupFilter(Protocol):
    """Selects the groups to train on. The tokens of dropped groups still count as compute."""

    def filter(self, step: int, groups: Sequence[EpisodeGroup], num_groups: int, rounds: int) -> FilterResult:
        """Filter the groups of a step.

        Args:
            step: number of the step.
            groups: all groups of the step so far.
            num_groups: planned number of groups of the step.
            rounds: number of rounds so far.
        """
        ...


class RewardSchedule(Protocol):
    """Chooses the weights of the reward's terms for each step."""

    def weights(self, step: int) -> Mapping[str, float]:
        """Return weights by term; others have weight 1. Called once per step, after earlier steps were observed."""
        ...

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """Receive all scored groups of a round, also dropped ones and those of `FilterResult.further_rollouts`.

        If a filter rolls out tasks again by their outcomes, means over episodes are biased towards those tasks.
        """
        ...


@dataclass(frozen=True)
class Stages:
    """The plug-ins of a training step."""

    tasks: TaskSampler
    group_filter: GroupFilter
    rewards: RewardSchedule
    credit: CreditAssigner

    def by_key(self) -> dict[str, object]:
        """The stages by their config keys."""
        return {
            "task_sampler": self.tasks,
            "group_filter": self.group_filter,
            "reward_schedule": self.rewards,
            "credit": self.credit,
        }

    def with_state(self) -> dict[str, HasState]:
        """The stages that have a state, by their names in checkpoints."""
        stages = {"tasks": self.tasks, "gate": self.group_filter, "rewards": self.rewards, "credit": self.credit}
        stages_with_state = {name: stage for name, stage in stages.items() if isinstance(stage, HasState)}
        # Every scheme has the method, but in the base class it is empty.
        if not overrides(self.credit, "state_dict"):
            del stages_with_state["credit"]
        return stages_with_state

    def rollout_keys_with_state(self) -> list[str]:
        """Config keys of the stages that have a state and influence rollouts."""
        keys = {"tasks": "task_sampler", "gate": "group_filter", "rewards": "reward_schedule"}
        return [keys[name] for name in sorted(self.with_state().keys() & keys.keys())]

    def max_contexts(self, config: RLConfig, limits: Limits) -> int | None:
        """The largest number of contexts in a mini-batch.

        `None` if only the rollouts show it: stages decide about the number of episodes, or replays may be trained.
        """
        credit = self.credit
        while isinstance(credit, WrapperScheme):
            credit = credit.inner
        has_fixed_size = isinstance(self.tasks, FixedSize) and isinstance(self.group_filter, FixedSize)
        if not has_fixed_size or overrides(credit, "replays"):
            return None
        num_agents = 1
        if limits.delegation:
            if limits.max_clones is None:
                return None
            num_agents += limits.max_clones
        return config.tasks_per_step // config.minibatches * config.group_size * num_agents


class FixedSize:
    """Mixin for a task sampler or group filter that never gives a step more episodes than the config."""
