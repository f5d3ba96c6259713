"""Stages by name: built in, installed by another package, or `package.module:Class`.

A package installs one by an entry point in the group `selfcest.task_sampler`, `selfcest.gate` or
`selfcest.reward_schedule`; nothing of it is imported before a config names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfcest_env.errors import PlugInError
from selfcest_env.plugin import PlugIn, build, load, with_entry_points
from selfcest_training.stages.base import Gate, RewardSchedule, TaskSampler

TASK_SAMPLERS: dict[str, str] = {"mixture": "selfcest_training.stages.mixture:Mixture"}
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
    found: TaskSampler = _make(plug_in, TASK_SAMPLERS, "task sampler", ("propose", "observe"), where)
    return found


def make_gate(plug_in: PlugIn, where: str) -> Gate:
    """Raises `ConfigError` or `PlugInError` that names the place in the config."""
    found: Gate = _make(plug_in, GATES, "gate", ("admit",), where)
    return found


def make_reward_schedule(plug_in: PlugIn, where: str) -> RewardSchedule:
    """Raises `ConfigError` or `PlugInError` that names the place in the config."""
    found: RewardSchedule = _make(plug_in, REWARD_SCHEDULES, "reward schedule", ("weights", "observe"), where)
    return found


def _make(plug_in: PlugIn, builtins: Mapping[str, str], what: str, methods: tuple[str, ...], where: str) -> Any:
    known = with_entry_points(builtins, f"selfcest.{what.replace(' ', '_')}")
    cls = load(plug_in.name, known, what=what)
    for method in methods:
        if not callable(getattr(cls, method, None)):
            raise PlugInError(f"{what} '{plug_in.name}': {cls.__name__} has no method {method} (see stages/base.py)")
    return build(cls, plug_in.options, where=f"{where}.options")
