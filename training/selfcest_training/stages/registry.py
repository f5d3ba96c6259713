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
    "knapsack": "selfcest_training.stages.knapsack:Knapsack",
    "v0": "selfcest_training.stages.v0:V0",
    "dots": "selfcest_training.stages.dots:Dots",
    "eva": "selfcest_training.stages.eva:Eva",
    "mopps": "selfcest_training.stages.mopps:Mopps",
    "active": "selfcest_training.stages.active:Active",
    "clpo": "selfcest_training.stages.clpo:Clpo",
    "scaler": "selfcest_training.stages.scaler:Scaler",
    "curriculum": "selfcest_training.stages.curriculum:Curriculum",
    "budgets": "selfcest_training.stages.budgets:Budgets",
}
GATES: dict[str, str] = {
    "all": "selfcest_training.stages.gates:AdmitAll",
    "reinforce_ada": "selfcest_training.stages.reinforce_ada:ReinforceAda",
    "varied": "selfcest_training.stages.gates:AdmitVaried",
}
REWARD_SCHEDULES: dict[str, str] = {
    "constant": "selfcest_training.stages.schedules:Constant",
    "linear": "selfcest_training.stages.schedules:Linear",
    "aligned": "selfcest_training.stages.aligned:Aligned",
    "lagrangian": "selfcest_training.stages.lagrangian:Lagrangian",
    "hypervolume": "selfcest_training.stages.hypervolume:Hypervolume",
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
