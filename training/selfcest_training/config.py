"""Configuration: frozen dataclasses. A value that cannot be right is an error before any work; see `config_file`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfcest_agents.lora_options import LoraOptions
from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.plugin import PlugIn
from selfcest_env.structure import Name, Seed, show
from selfcest_env.tasks.source import Style
from selfcest_env.types import Limits
from selfcest_training.learner.options import Denominator, ForwardOptions, LossConfig, OptimizerConfig, Rows


def _require(right: bool, key: str, value: object, expected: str) -> None:
    if not right:
        raise ConfigError(f"{key} is {show(value)}; expected {expected}")


def _at_least(bound: int, config: object, place: str, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value >= bound, f"{place}{name}", value, f"a whole number >= {bound}")


def _check_weights(place: str, weights: Mapping[str, float]) -> None:
    """Each finite and >= 0, and something above 0 to draw from."""
    for name, weight in weights.items():
        _require(0 <= weight < math.inf, f"{place}.{name}", weight, "a finite weight >= 0")
    _require(any(weights.values()), place, dict(weights), "at least one name with a weight > 0, or it draws nothing")


def _check_file_name(key: str, name: str, forbidden: str = "") -> None:
    right = name and not name.startswith(".") and not set(name) & set("/\\" + forbidden) and name.isprintable()
    what = "slash, backslash" + "".join(f", '{mark}'" for mark in forbidden)
    expected = f"a folder name: not empty, no leading dot, no {what} or character that cannot be printed; rename it"
    _require(bool(right), key, name, expected)


def _check_distinct(key: str, values: Sequence[object]) -> None:
    _require(len(values) > 0, key, list(values), "at least one")
    _require(len(set(values)) == len(values), key, list(values), "each one once; remove the duplicates")


@dataclass(frozen=True)
class Demonstrations:
    """One family of a phase.

    Attributes:
        share: of the phase's tokens, relative to the other families.
        styles: weights of `delegate`, `solve` and `read`. The limits of the arm must have the tool that a style uses.
    """

    share: float
    styles: Mapping[str, float]

    def __post_init__(self) -> None:
        _require(0 <= self.share < math.inf, "share", self.share, "a finite number >= 0")
        for style in self.styles:
            if style not in list(Style):
                raise ConfigError(
                    f"styles.{style} is no style; expected {', '.join(Style)}.{did_you_mean(style, Style)}"
                )
        _check_weights("styles", self.styles)


@dataclass(frozen=True)
class Phase:
    """A stretch of the warm start: so many demonstration tokens, prompts included, of a mix of families.

    `limits` change the arm's for this phase alone, as when a policy that will read by key first learns from full texts.
    """

    tokens: int
    mix: Mapping[str, Demonstrations]
    limits: Mapping[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _at_least(1, self, "phase.", "tokens")
        _check_weights("phase.mix", {family: spec.share for family, spec in self.mix.items()})


@dataclass(frozen=True)
class WarmStartConfig:
    """Imitation of scripted demonstrations."""

    phases: tuple[Phase, ...] = ()
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=50, decay_share=0.3, beta1=0.9, beta2=0.98, weight_decay=0.01
    )
    batch_tokens: int = 1024
    pool_tokens: int = 16384

    def __post_init__(self) -> None:
        _at_least(1, self, "warmstart.", "batch_tokens", "pool_tokens")


@dataclass(frozen=True)
class RLConfig:
    """Group-relative policy gradient on rollouts.

    Attributes:
        task_sampler, gate, reward_schedule, credit: the stages of a step; see `stages` and `credit`.
        steps: rollout-and-update steps at most; 0 leaves the warm start as it is.
        sampled_tokens: RL ends with the first step at or above so many generated tokens, those of replays included.
        tasks: weights of task families to draw from.
        tasks_per_step, group_size: groups of one step, and episodes in each.
        minibatches: optimiser steps per rollout; the step's tasks are split evenly, whatever the number of clones.
        temperature: of sampling, and of the learner's log-probs.
        denominator, constant_tokens: see `Denominator`.
        max_policy_lag: rollouts run so many steps ahead of the learner, with weights that many steps old; 0: none.
    """

    steps: int = 60
    sampled_tokens: int | None = None
    tasks: Mapping[str, float] = field(default_factory=dict)
    tasks_per_step: int = 24
    group_size: int = 8
    minibatches: int = 1
    temperature: float = 0.8
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    denominator: Denominator = Denominator.CONSTANT
    constant_tokens: float = 100.0
    task_sampler: PlugIn = PlugIn("mixture")
    gate: PlugIn = PlugIn("all")
    reward_schedule: PlugIn = PlugIn("constant")
    credit: PlugIn = PlugIn("gated")
    max_policy_lag: int = 0

    def __post_init__(self) -> None:
        _at_least(0, self, "rl.", "steps", "max_policy_lag")
        _at_least(1, self, "rl.", "tasks_per_step")
        if self.sampled_tokens is not None:
            expected = "a whole number >= 1, or null for no limit"
            _require(self.sampled_tokens >= 1, "rl.sampled_tokens", self.sampled_tokens, expected)
        for name in ("temperature", "constant_tokens"):
            value = getattr(self, name)
            _require(0 < value < math.inf, f"rl.{name}", value, "a finite number > 0")
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
    """One policy of the comparison. `limits` override the run's; its compute is the run's `compute_tokens`."""

    warmstart: WarmStartConfig
    rl: RLConfig = RLConfig()
    limits: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def families(self) -> tuple[str, ...]:
        """Those that it is trained on."""
        shares = [{name: spec.share for name, spec in phase.mix.items()} for phase in self.warmstart.phases]
        drawn = [*shares, self.rl.tasks if self.rl.steps else {}]
        return tuple(dict.fromkeys(name for weights in drawn for name, weight in weights.items() if weight > 0))


@dataclass(frozen=True)
class Cell:
    """One cell of the evaluation table: a family at a size. `options` override the family's task options."""

    family: str
    size: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shift: str = "in"

    def __post_init__(self) -> None:
        expected = "'in' (the training distribution) or 'out'"
        _require(self.shift in ("in", "out"), "cell.shift", self.shift, expected)


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

    def __post_init__(self) -> None:
        _at_least(1, self, "evaluation.", "episodes")
        for temperature in self.temperatures:
            _require(
                0 <= temperature < math.inf, "evaluation.temperatures", temperature, "finite numbers >= 0 (0: greedy)"
            )
        _check_distinct("evaluation.temperatures", self.temperatures)
        if self.cells:
            _check_distinct("evaluation.cells (family, size)", [(cell.family, cell.size) for cell in self.cells])


@dataclass(frozen=True)
class RunConfig:
    """Everything one `selfcest train` does.

    Attributes:
        name: the run's folder is `output/name`.
        seeds: one independent repetition each, of everything: initial weights, warm start, rollouts.
        workers: jobs (arm and seed) at a time.
        threads: of each job.
        compute_tokens: what each arm may use, sampled + 3 x trained tokens, warm start and RL together; an arm's RL
            ends with the first step at or above it. `null` leaves it to `rl.steps`.
        model, sampler, limits, reward: shared by all arms; see `language` and `sync` for the first two.
        rows: how the learner lays out its samples; the gradient is the same.
        forward: how the learner computes its model: precision, memory, compilation.
        lora: train a low-rank adapter in the warm start, merge it, and another in RL; `null`: every weight trains.
        tasks: the families by name.
        arms: the policies by name.
    """

    name: str
    tasks: Mapping[Name, PlugIn]
    arms: Mapping[str, ArmConfig]
    evaluation: EvaluationConfig = EvaluationConfig()
    output: Name = "runs"
    seeds: tuple[Seed, ...] = (0,)
    workers: int = 2
    threads: int = 1
    compute_tokens: int | None = None
    model: PlugIn = PlugIn("tiny")
    sampler: PlugIn = PlugIn("transformers")
    limits: Limits = Limits()
    reward: PlugIn = PlugIn("default")
    micro_batch_tokens: int = 8192
    rows: Rows = Rows.BUCKETED
    forward: ForwardOptions = ForwardOptions()
    lora: LoraOptions | None = None
    checkpoint_every: int = 20
    log_groups: int = 2

    def __post_init__(self) -> None:
        _check_file_name("name", self.name)
        _check_distinct("seeds", self.seeds)
        _at_least(1, self, "", "workers", "threads", "checkpoint_every", "micro_batch_tokens")
        _at_least(0, self, "", "log_groups")
        if self.compute_tokens is not None:
            expected = "a whole number >= 1, or null to leave the end to rl.steps"
            _require(self.compute_tokens >= 1, "compute_tokens", self.compute_tokens, expected)
        if not self.arms:
            raise ConfigError("arms is empty; name at least one arm")
        for name, arm in self.arms.items():
            _check_file_name(f"arms.{name}" if name.isprintable() else "the name of an arm", name, forbidden=",")
            self._check_arm(name, arm)
        for i, cell in enumerate(self.evaluation.cells):
            self._check_families(f"evaluation.cells[{i}].family", [cell.family])

    def _check_arm(self, name: str, arm: ArmConfig) -> None:
        """What only shows when the arm, its limits and the task families are seen together."""
        self._check_families(f"arms.{name}.rl.tasks", arm.rl.tasks)
        if arm.rl.steps or any(arm.rl.tasks.values()):
            _check_weights(f"arms.{name}.rl.tasks", arm.rl.tasks)
        limits = self.limits_of(name)
        for i, phase in enumerate(arm.warmstart.phases):
            place = f"arms.{name}.warmstart.phases[{i}]"
            self._check_families(f"{place}.mix", phase.mix)
            phase_limits = changed_limits(limits, phase.limits, f"{place}.limits")
            _check_tools(f"{place}.mix", phase, phase_limits)
        tokens = sum(phase.tokens for phase in arm.warmstart.phases)
        # Pools are whole, so a warm start that is meant to use the whole budget may end a little above it.
        if self.compute_tokens is not None and 3 * tokens > 1.05 * self.compute_tokens:
            raise ConfigError(
                f"arms.{name}.warmstart.phases have {tokens} tokens, which cost 3 x {tokens} = {3 * tokens}: the warm "
                f"start alone is over compute_tokens = {self.compute_tokens}; lower the phases' tokens or raise "
                "compute_tokens"
            )

    def _check_families(self, place: str, families: Iterable[str]) -> None:
        for family in families:
            if family not in self.tasks:
                raise ConfigError(
                    f"{place} names the family '{family}', which is not under tasks ({', '.join(self.tasks)})."
                    + did_you_mean(family, self.tasks)
                )

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


def _check_tools(place: str, phase: Phase, limits: Limits) -> None:
    """A style whose tool is missing would silently fall back to another."""
    tools = {Style.DELEGATE: ("max_depth", "max_clones", "max_clones_per_call"), Style.READ: ("max_reads",)}
    available = {Style.DELEGATE: limits.delegation, Style.READ: limits.reading}
    for family, spec in phase.mix.items():
        for style, names in tools.items():
            if spec.share > 0 and spec.styles.get(style, 0) > 0 and not available[style]:
                zero = " and ".join(f"limits.{name}" for name in names if getattr(limits, name) == 0)
                raise ConfigError(
                    f"{place}.{family}.styles.{style} is {spec.styles[style]!r}, but {zero} is 0 there, so nobody can "
                    f"{style}; set the style to 0 or raise {zero} for this arm or phase"
                )
