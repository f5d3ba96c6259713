"""Configuration: frozen dataclasses. A value that cannot be right is an error before any work; see `config_file`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfcest_agents.tiny import TinyConfig
from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.types import Limits
from selfcest_training.batch import Denominator
from selfcest_training.update import LossConfig, OptimizerConfig


@dataclass(frozen=True)
class PlugIn:
    """Something pluggable: a built-in name or `package.module:Class`, and its constructor's options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Demonstrations:
    """One family of a phase.

    Attributes:
        share: of the phase's tokens, relative to the other families.
        styles: weights of `delegate`, `solve` and `read`. The limits of the arm must have the tool that a style uses.
    """

    share: float
    styles: Mapping[str, float]


@dataclass(frozen=True)
class Phase:
    """A stretch of the warm start: so many demonstration tokens, prompts included, of a mix of families.

    `limits` change the arm's for this phase alone, as when a policy that will read by key first learns from full texts.
    """

    tokens: int
    mix: Mapping[str, Demonstrations]
    limits: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class WarmStartConfig:
    """Imitation of scripted demonstrations."""

    phases: tuple[Phase, ...] = ()
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=50, decay_share=0.3, beta1=0.9, beta2=0.98, weight_decay=0.01
    )
    batch_tokens: int = 1024
    pool_tokens: int = 16384


@dataclass(frozen=True)
class RLConfig:
    """Group-relative policy gradient on rollouts.

    Attributes:
        steps: rollout-and-update steps at most; 0 leaves the warm start as it is.
        tasks: weights of task families to draw from.
        tasks_per_step, group_size: groups of one step, and episodes in each.
        minibatches: optimiser steps per rollout; the step's tasks are split evenly, whatever the number of clones.
        temperature: of sampling, and of the learner's log-probs.
        denominator, constant_tokens: see `Denominator`.
    """

    steps: int = 60
    tasks: Mapping[str, float] = field(default_factory=dict)
    tasks_per_step: int = 24
    group_size: int = 8
    minibatches: int = 1
    temperature: float = 0.8
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    denominator: Denominator = Denominator.CONSTANT
    constant_tokens: float = 100.0
    credit: PlugIn = PlugIn("gated")

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ConfigError(f"rl.temperature is {self.temperature!r}; training needs a temperature above 0")
        if self.group_size < 2:
            raise ConfigError(
                f"rl.group_size is {self.group_size}; a group baseline needs at least 2 episodes per task"
            )
        if self.minibatches < 1 or self.tasks_per_step % self.minibatches:
            raise ConfigError(
                f"rl.minibatches is {self.minibatches}; expected a divisor of rl.tasks_per_step = {self.tasks_per_step}"
            )


@dataclass(frozen=True)
class ArmConfig:
    """One policy of the comparison. `limits` override the run's; `compute_tokens` likewise."""

    warmstart: WarmStartConfig
    rl: RLConfig = RLConfig()
    limits: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One cell of the evaluation table: a family at a size. `options` override the family's task options."""

    family: str
    size: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shift: str = "in"


@dataclass(frozen=True)
class EvaluationConfig:
    """Fixed sets, the same for every arm and seed.

    Attributes:
        cells: rows of the table.
        episodes: instances per cell.
        seed: draws the instances.
        temperatures: 0 is greedy; every temperature is evaluated and reported apart.
    """

    cells: tuple[Cell, ...] = ()
    episodes: int = 500
    seed: int = 20_000
    temperatures: tuple[float, ...] = (0.0,)


@dataclass(frozen=True)
class RunConfig:
    """Everything one `selfcest train` does.

    Attributes:
        name: the run's folder is `output/name`.
        seeds: one independent repetition each, of everything: initial weights, warm start, rollouts.
        workers: jobs (arm and seed) at a time, one thread each.
        compute_tokens: what each arm may use, sampled + 3 x trained tokens, warm start and RL together; an arm's RL
            ends with the first step at or above it. `null` leaves it to `rl.steps`.
        model, limits, reward: shared by all arms.
        tasks: the families by name.
        arms: the policies by name.
    """

    name: str
    tasks: Mapping[str, PlugIn]
    arms: Mapping[str, ArmConfig]
    evaluation: EvaluationConfig = EvaluationConfig()
    output: str = "runs"
    seeds: tuple[int, ...] = (0,)
    workers: int = 2
    compute_tokens: int | None = None
    model: TinyConfig = TinyConfig()
    limits: Limits = Limits()
    reward: PlugIn = PlugIn("default")
    micro_batch_tokens: int = 8192
    checkpoint_every: int = 20
    log_groups: int = 2

    def __post_init__(self) -> None:
        if not self.arms:
            raise ConfigError("arms is empty; name at least one arm")
        for name, arm in self.arms.items():
            self._check_families(f"arms.{name}.rl.tasks", arm.rl.tasks)
            for i, phase in enumerate(arm.warmstart.phases):
                for family, demonstrations in phase.mix.items():
                    place = f"arms.{name}.warmstart.phases[{i}].mix"
                    self._check_families(place, {family: demonstrations.share})
                changed_limits(self.limits_of(name), phase.limits, f"arms.{name}.warmstart.phases[{i}].limits")
            self.limits_of(name)
        for i, cell in enumerate(self.evaluation.cells):
            self._check_families(f"evaluation.cells[{i}].family", {cell.family: 1.0})

    def _check_families(self, place: str, weights: Mapping[str, float]) -> None:
        for family, weight in weights.items():
            if family not in self.tasks:
                raise ConfigError(
                    f"{place} names the family '{family}', which is not under tasks ({', '.join(self.tasks)})."
                    + did_you_mean(family, self.tasks)
                )
            if not weight >= 0:
                raise ConfigError(f"{place}.{family} is {weight!r}; expected a weight >= 0")

    def limits_of(self, arm: str) -> Limits:
        """The run's limits with the arm's overrides."""
        return changed_limits(self.limits, self.arms[arm].limits, f"arms.{arm}.limits")

    @property
    def folder(self) -> Path:
        return Path(self.output) / self.name


def changed_limits(limits: Limits, changes: Mapping[str, int | None], place: str) -> Limits:
    """Limits with some of them replaced. Raises `ConfigError` that names an unknown one by its place in the config."""
    known = {item.name for item in dataclasses.fields(Limits)}
    for key in changes:
        if key not in known:
            raise ConfigError(f"{place}.{key} is no limit.{did_you_mean(key, known)}")
    values: Any = changes
    return dataclasses.replace(limits, **values)
