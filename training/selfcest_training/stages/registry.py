"""Stages by name: built in, installed by another package, or `package.module:Class`.

A package installs one by an entry point in the group `selfcest.task_sampler`, `selfcest.gate` or
`selfcest.reward_schedule`; nothing of it is imported before a config names it.
"""

from __future__ import annotations

from typing import TypeVar

from selfcest_env.errors import PlugInError
from selfcest_env.plugin import PlugIn, Registry, build
from selfcest_training.stages.base import Gate, RewardSchedule, TaskSampler

T = TypeVar("T")

TASK_SAMPLERS = Registry(
    TaskSampler,
    "task sampler",
    "selfcest.task_sampler",
    {
        "mixture": "selfcest_training.stages.mixture:Mixture",
    },
)
GATES = Registry(
    Gate,
    "gate",
    "selfcest.gate",
    {
        "all": "selfcest_training.stages.gates:AdmitAll",
        "varied": "selfcest_training.stages.gates:AdmitVaried",
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
    """Raises `ConfigError` or `PlugInError` that names the place in the config."""
    return _make(plug_in, TASK_SAMPLERS, where)


def make_gate(plug_in: PlugIn, where: str) -> Gate:
    """Raises `ConfigError` or `PlugInError` that names the place in the config."""
    return _make(plug_in, GATES, where)


def make_reward_schedule(plug_in: PlugIn, where: str) -> RewardSchedule:
    """Raises `ConfigError` or `PlugInError` that names the place in the config."""
    return _make(plug_in, REWARD_SCHEDULES, where)


def _make(plug_in: PlugIn, registry: Registry[T], where: str) -> T:
    cls = registry.load(plug_in.name)
    _check_memory(cls, f"{registry.what} '{plug_in.name}'")
    return build(cls, plug_in.options, where=f"{where}.options")


def _check_memory(cls: type, who: str) -> None:
    """Raise `PlugInError` for a class with one of the two methods: what it remembers would be lost without a word."""
    methods = ("state_dict", "load_state_dict")
    memory = [name for name in methods if callable(getattr(cls, name, None))]
    if len(memory) == 1:
        (missing,) = set(methods) - set(memory)
        raise PlugInError(f"{who}: {cls.__name__} has {memory[0]} and lacks {missing}; declare both of them or none")
