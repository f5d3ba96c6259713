"""Stages by name: built in, installed by another package, or `package.module:Class`.

A package installs one by an entry point in the group `selfcest.task_sampler`, `selfcest.gate` or
`selfcest.reward_schedule`; nothing of it is imported before a config names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from selfcest_env.plugin import PlugIn, build, load, with_entry_points
from selfcest_training.credit.registry import check_learning
from selfcest_training.stages.base import Gate, RewardSchedule, TaskSampler

T = TypeVar("T")

TASK_SAMPLERS: dict[str, str] = {
    "mixture": "selfcest_training.stages.mixture:Mixture",
}
GATES: dict[str, str] = {
    "all": "selfcest_training.stages.gates:AdmitAll",
    "varied": "selfcest_training.stages.gates:AdmitVaried",
}
REWARD_SCHEDULES: dict[str, str] = {
    "constant": "selfcest_training.stages.schedules:Constant",
    "linear": "selfcest_training.stages.schedules:Linear",
}


def make_task_sampler(plug_in: PlugIn, where: str) -> TaskSampler:
    """Raises `ConfigError` or `PlugInError` that names the place in the config."""
    return _make(plug_in, TASK_SAMPLERS, TaskSampler, "task sampler", where)


def make_gate(plug_in: PlugIn, where: str) -> Gate:
    """Raises `ConfigError` or `PlugInError` that names the place in the config."""
    return _make(plug_in, GATES, Gate, "gate", where)


def make_reward_schedule(plug_in: PlugIn, where: str) -> RewardSchedule:
    """Raises `ConfigError` or `PlugInError` that names the place in the config."""
    return _make(plug_in, REWARD_SCHEDULES, RewardSchedule, "reward schedule", where)


def _make(plug_in: PlugIn, builtins: Mapping[str, str], kind: type[T], what: str, where: str) -> T:
    known = with_entry_points(builtins, f"selfcest.{what.replace(' ', '_')}")
    cls = load(plug_in.name, known, kind, what=what)
    check_learning(cls, f"{what} '{plug_in.name}'", ("state_dict", "load_state_dict"))
    return build(cls, plug_in.options, where=f"{where}.options")
