"""The stages of a step of training that can be exchanged: which tasks, which groups, which weights of the reward.

A stage is an ordinary class; its options are its constructor's arguments. It is told what came of earlier steps
(`observe`), in the order of the steps, and never sees the policy, the learner or the clock; what it draws it draws from
the generator that it is given. One that remembers something has `state_dict` and `load_state_dict` as well, whose
values go into every checkpoint: dicts with string keys, lists, texts, numbers, booleans, None and tensors.
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
    """A task, how many rollouts of it make a group, and under which limits; `None`: the run's."""

    task: Task
    num_rollouts: int
    limits: Limits | None = None


@dataclass(frozen=True)
class TaskMenu:
    """What a `TaskSampler` chooses from.

    Attributes:
        sources: task families by name, their training part alone.
        weights: of the families, as configured.
        group_size: rollouts of a task, as configured.
        limits: those that a plan without limits of its own is played under.
        remake: a family's training part with some of its options changed, by name and changes; `None`: the families
            are as they are. Raises `ConfigError` that names the option.
    """

    sources: Mapping[str, TaskSource]
    weights: Mapping[str, float]
    group_size: int
    limits: Limits = Limits()
    remake: Callable[[str, Mapping[str, Any]], TaskSource] | None = None


class TaskSampler(Protocol):
    """Which tasks are rolled out, and how often each."""

    def propose(self, step: int, num_tasks: int, menu: TaskMenu, rng: np.random.Generator) -> Sequence[PlannedGroup]:
        """Tasks of a step, or of another round of it when a group filter asks for more.

        Args:
            step: from 0.
            num_tasks: what the step wants; another number is allowed, none is not.
            menu: what there is.
            rng: the step's own stream; a later round goes on where the one before it stopped.
        """
        ...

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """The scored groups of a round that it proposed, whatever a group filter makes of them.

        Not those that a filter had rolled out again (`FilterResult.again`): which tasks these are of was decided by
        their outcomes, so a success rate over both is that of neither.
        """
        ...


@runtime_checkable
class MenuBound(Protocol):
    """A task sampler whose options go with what it chooses from."""

    def check_menu(self, menu: TaskMenu) -> None:
        """Raise `ConfigError` for a menu that it cannot plan from; before any work."""
        ...


@dataclass(frozen=True)
class FilterResult:
    """What a group filter says of the groups of a step.

    Attributes:
        kept: the groups to learn from, in their order; each is one of those that it was given, or made of episodes of
            them: of several groups of one task, or of a group in part. No episode is in two.
        more: tasks to roll out anew before it is asked again with all groups.
        again: what to roll out besides, as further rollouts of tasks that it has seen. Without either the step goes on.
    """

    kept: tuple[EpisodeGroup, ...]
    more: int = 0
    again: tuple[PlannedGroup, ...] = ()


class GroupFilter(Protocol):
    """Which groups are learned from. What it drops has been paid for, and is counted."""

    def filter(self, step: int, groups: Sequence[EpisodeGroup], wanted: int, rounds: int) -> FilterResult:
        """Judge all groups of a step so far, `rounds` rounds of them; the step was planned with `wanted` groups."""
        ...


class RewardSchedule(Protocol):
    """The weights of the reward's terms at a step."""

    def weights(self, step: int) -> Mapping[str, float]:
        """By term; a term that is not named has weight 1. Asked once per step, after earlier steps were observed."""
        ...

    def observe(self, step: int, groups: Sequence[EpisodeGroup]) -> None:
        """The scored groups of a round, whatever a group filter makes of them, and those that it had rolled out again.

        What was played is what was paid for; where a filter has tasks rolled out again by their outcomes, means over
        episodes lean to such tasks.
        """
        ...


@dataclass(frozen=True)
class Stages:
    """What can be exchanged in a step of training."""

    tasks: TaskSampler
    group_filter: GroupFilter
    rewards: RewardSchedule
    credit: CreditAssigner

    def remembering(self) -> dict[str, HasState]:
        """Those that have a state."""
        # The names stand in checkpoints.
        stages = {"tasks": self.tasks, "gate": self.group_filter, "rewards": self.rewards, "credit": self.credit}
        remembering = {name: stage for name, stage in stages.items() if isinstance(stage, HasState)}
        if not overrides(self.credit, "state_dict"):
            del remembering["credit"]  # every scheme has the method; of most it is the empty one of the base class
        return remembering

    def remembering_keys(self) -> list[str]:
        """Config keys of those stages with a state that decide what is played."""
        keys = {"tasks": "task_sampler", "gate": "group_filter", "rewards": "reward_schedule"}
        return [keys[name] for name in sorted(self.remembering().keys() & keys.keys())]

    def most_contexts(self, config: RLConfig, limits: Limits) -> int | None:
        """Contexts of a mini-batch at its fullest; `None` where that shows only when a step has been played.

        That is where stages decide how many episodes a step has, or credit has replays to train on.
        """
        credit = self.credit
        while isinstance(credit, WrapperScheme):
            credit = credit.inner
        agents = 1 if not limits.delegation else None if limits.max_clones is None else 1 + limits.max_clones
        fixed = isinstance(self.tasks, FixedSize) and isinstance(self.group_filter, FixedSize)
        if not fixed or overrides(credit, "replays") or agents is None:
            return None
        return config.tasks_per_step // config.minibatches * config.group_size * agents


class FixedSize:
    """Mixin of a task sampler or group filter with which no step has more episodes than the config says."""
