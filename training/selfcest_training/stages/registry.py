"""Finds stages by name: built-in ones, those of installed packages, or `package.module:Class`.

A package registers a stage through an entry point in the group `selfcest.task_sampler`, `selfcest.group_filter` or
`selfcest.reward_schedule`. The stage is imported only when a config names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.plugin import PlugIn, Registry, build, check_state_apart
from selfcest_env.tasks import TaskSource
from selfcest_training.config import RLConfig, RunConfig
from selfcest_training.credit import make_assigner
from selfcest_training.families import split
from selfcest_training.learner.options import Denominator
from selfcest_training.stages.base import GroupFilter, RewardSchedule, Stages, TaskMenu, TaskSampler

T = TypeVar("T")

TASK_SAMPLERS = Registry(
    TaskSampler,
    "task sampler",
    "selfcest.task_sampler",
    {
        "mixture": "selfcest_training.stages.mixture:MixtureSampler",
    },
)
GROUP_FILTERS = Registry(
    GroupFilter,
    "group filter",
    "selfcest.group_filter",
    {
        "all": "selfcest_training.stages.group_filters:KeepAll",
        "varied": "selfcest_training.stages.group_filters:KeepVaried",
    },
)
REWARD_SCHEDULES = Registry(
    RewardSchedule,
    "reward schedule",
    "selfcest.reward_schedule",
    {
        "constant": "selfcest_training.stages.schedules:Constant",
        "linear": "selfcest_training.stages.schedules:Linear",
    },
)


def make_task_sampler(plug_in: PlugIn, where: str) -> TaskSampler:
    """Make a task sampler. Raises `ConfigError` or `PlugInError` that names the config key `where`."""
    return _make(plug_in, TASK_SAMPLERS, where)


def make_group_filter(plug_in: PlugIn, where: str) -> GroupFilter:
    """Make a group filter. Raises `ConfigError` or `PlugInError` that names the config key `where`."""
    return _make(plug_in, GROUP_FILTERS, where)


def make_reward_schedule(plug_in: PlugIn, where: str) -> RewardSchedule:
    """Make a reward schedule. Raises `ConfigError` or `PlugInError` that names the config key `where`."""
    return _make(plug_in, REWARD_SCHEDULES, where)


def _make(plug_in: PlugIn, registry: Registry[T], where: str) -> T:
    cls = registry.load(plug_in.name)
    _check_state_methods(cls, f"{registry.what} '{plug_in.name}'")
    return build(cls, plug_in.options, where=f"{where}.options")


def _check_state_methods(cls: type, label: str) -> None:
    """Raise `PlugInError` for a class with only one of the two methods of a state, which a checkpoint would lose.

    A frozen dataclass with both is refused too, because options and state must be two objects.
    """
    methods = ("state_dict", "load_state_dict")
    present = [name for name in methods if callable(getattr(cls, name, None))]
    if len(present) == 1:
        (missing,) = set(methods) - set(present)
        raise PlugInError(f"{label}: {cls.__name__} has {present[0]} and lacks {missing}; declare both of them or none")
    check_state_apart(cls, label, bool(present))


def make_stages(config: RLConfig, place: str = "rl") -> Stages:
    """Make the stages of a config. Raises `ConfigError` or `PlugInError` that names the config key below `place`."""
    credit = make_assigner(config.credit.name, config.credit.options, where=f"{place}.credit.options")
    is_constant = config.denominator is Denominator.CONSTANT
    try:
        credit.check_constant(config.loss_denominator_tokens if is_constant else None)
    except ConfigError as error:
        raise ConfigError(f"{place}.credit.options: {error}") from error
    return Stages(
        make_task_sampler(config.task_sampler, f"{place}.task_sampler"),
        make_group_filter(config.group_filter, f"{place}.group_filter"),
        make_reward_schedule(config.reward_schedule, f"{place}.reward_schedule"),
        credit,
    )


def make_task_menu(config: RunConfig, variant: str, families: Mapping[str, TaskSource]) -> TaskMenu:
    """Make the menu of a variant's task sampler. `families` are the training parts of the config's tasks."""
    return TaskMenu(
        families,
        config.variants[variant].rl.tasks,
        config.variants[variant].rl.group_size,
        limits=config.limits_of(variant),
        remake=lambda name, changes: split(config.tasks[name], "train", changes, where=f"tasks.{name}"),
    )
