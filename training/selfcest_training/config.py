"""Configuration: frozen dataclasses, read from YAML, with overrides from the command line.

A key that no field has is an error, a value that cannot be right is an error, and both come before any work.
"""

from __future__ import annotations

import dataclasses
import tempfile
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cattrs
import yaml

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


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply `key.path=value` overrides, whose values are YAML too.

    Raises:
        ConfigError: names the key, what was found, and what to do.
    """
    data = _read(path, seen=())
    for override in overrides:
        _override(data, override)
    return parse_config(data)


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A YAML mapping; `extends: other.yaml` names a file beside it, whose keys it changes or adds to."""
    if not path.is_file():
        raise ConfigError(f"there is no config file {path}; give the path of a YAML file, as in training/configs/")
    if path.resolve() in seen:
        raise ConfigError(f"{path} extends itself; remove one 'extends'")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {type(data).__name__}; expected a mapping of config keys")
    base = data.pop("extends", None)
    if base is None:
        return data
    return _merged(_read(path.parent / str(base), (*seen, path.resolve())), data)


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    """Plain values to a `RunConfig`; unknown keys and wrong types are errors that name the key."""
    _check_keys(RunConfig, data, "")
    try:
        return _converter.structure(data, RunConfig)
    except cattrs.BaseValidationError as error:
        raise ConfigError("config: " + "; ".join(_reasons(error))) from error


def dump_config(config: RunConfig) -> str:
    """The whole config as YAML, defaults written out; `load_config` reads it back."""
    return yaml.safe_dump(_converter.unstructure(config), sort_keys=False)


def check_writable(folder: Path) -> None:
    """Raise `ConfigError` now if the run folder cannot be written, rather than after the first checkpoint."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"the run folder {folder} cannot be written ({error.strerror or error}); set output= to a folder you own"
        ) from error


def _override(data: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"override {override!r} is not of the form key.path=value, as in rl.steps=10")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value") from error
    *parents, leaf = path.split(".")
    node: Any = data
    for key in parents:
        if isinstance(node, dict):
            node = node.setdefault(key, {})
        else:
            node = node[_index(override, node, key)]
    node[leaf if isinstance(node, dict) else _index(override, node, leaf)] = value


def _index(override: str, node: Any, key: str) -> int:
    """The position that a path's number means in a list, as in `phases.0.tokens`."""
    if not isinstance(node, list) or not key.isdecimal() or int(key) >= len(node):
        length = f"a list of {len(node)}" if isinstance(node, list) else f"{node!r}"
        raise ConfigError(f"override {override!r}: '{key}' leads nowhere in {length}")
    return int(key)


def _check_keys(kind: Any, data: Any, place: str) -> None:
    """Walk config and data side by side, so that an unknown key is reported with its whole path."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(data, Mapping):
            raise ConfigError(f"{place or 'config'} is {data!r}; expected a mapping")
        hints = typing.get_type_hints(kind)
        for key, value in data.items():
            if key not in hints:
                known = ", ".join(hints)
                raise ConfigError(f"unknown config key '{place}{key}' (known here: {known}).{did_you_mean(key, hints)}")
            _check_keys(hints[key], value, f"{place}{key}.")
    elif origin is tuple and isinstance(data, Sequence) and not isinstance(data, str):
        for i, value in enumerate(data):
            _check_keys(typing.get_args(kind)[0], value, f"{place[:-1]}[{i}].")
    elif origin is not None and isinstance(data, Mapping) and typing.get_args(kind)[1:]:
        for key, value in data.items():
            _check_keys(typing.get_args(kind)[1], value, f"{place}{key}.")


def _reasons(error: BaseException) -> list[str]:
    return [reason.replace("$.", "") for reason in cattrs.transform_error(error, format_exception=_reason)]


def _reason(error: BaseException, kind: type | None) -> str:
    if isinstance(error, KeyError):
        return f"required key {error} is missing"
    return str(error)


def _structure_number(value: Any, kind: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{value!r} is no {kind.__name__}")
    if kind is int and not isinstance(value, int):
        raise ConfigError(f"{value!r} is no whole number")
    return kind(value)


def _structure_bool(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{value!r} is neither true nor false")
    return value


def _structure_optional_int(value: Any, _: Any) -> int | None:
    return None if value is None else int(_structure_number(value, int))


def _structure_str(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is no text")
    return value


def _structure_enum(value: Any, kind: Any) -> Any:
    if value not in list(kind):
        raise ConfigError(f"{value!r} is none of {', '.join(kind)}")
    return kind(value)


_converter = cattrs.Converter(forbid_extra_keys=True)
_converter.register_structure_hook(int, _structure_number)
_converter.register_structure_hook(float, _structure_number)
_converter.register_structure_hook(bool, _structure_bool)
_converter.register_structure_hook(str, _structure_str)
_converter.register_structure_hook(int | None, _structure_optional_int)
_converter.register_structure_hook(Denominator, _structure_enum)
_converter.register_unstructure_hook(Denominator, str)

__all__ = [
    "ArmConfig",
    "Cell",
    "Demonstrations",
    "EvaluationConfig",
    "Phase",
    "PlugIn",
    "RLConfig",
    "RunConfig",
    "WarmStartConfig",
    "check_writable",
    "dump_config",
    "load_config",
    "parse_config",
]
