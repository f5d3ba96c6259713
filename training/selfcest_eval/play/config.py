"""The config of a study: frozen dataclasses, read by the same loader as a training run's."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.plugin import PlugIn
from selfcest_env.record import Measure
from selfcest_env.structure import (
    AtLeast,
    Below,
    Checked,
    Count,
    Distinct,
    Name,
    NotEmpty,
    NotNegative,
    OrOne,
    Printable,
    Seed,
    Size,
)
from selfcest_env.tasks import Style
from selfcest_env.types import Limits
from selfcest_eval.play.costs import WALL, Price, measures_of
from selfcest_eval.play.policies import parse_policy
from selfcest_training.config import ADDED_COSTS, EvalSet, FileName, check_eval_sets, check_families, override_limits
from selfcest_training.config_file import check_extends_nothing, load_as, parse_as, read_config

Temperature = Annotated[NotNegative, "0: greedy"]
Label = Annotated[str, Printable(), NotEmpty()]


@dataclass(frozen=True)
class StrategySpec(Checked):
    """One strategy of a study.

    Attributes:
        name: a built-in strategy or `package.module:Class`; empty: the strategy's key.
        options: options of the strategy.
        policy: policy that plays the strategy; `null`: the study's.
        temperature: sampling temperature; `null`: the study's.
        limits: changes of the study's limits for this strategy, but not of the limit that is swept.
        families: families that the strategy plays; empty: all.
        styles: styles of its perfect players, as in `delegate` and `solve` for a policy that chooses; `null`: the
            styles that the strategy names.
    """

    name: Name = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    policy: PlugIn | None = None
    temperature: Temperature | None = None
    limits: Mapping[str, int | None] = field(default_factory=dict)
    families: Annotated[tuple[str, ...], OrOne()] = ()
    styles: Annotated[tuple[Style, ...], OrOne(), Distinct()] | None = None


@dataclass(frozen=True)
class StudyConfig(Checked):
    """The config of `selfcest evaluate`.

    Attributes:
        name: name of the study. Its folder is `output/name`.
        output: folder of all studies.
        tasks: task sources by family.
        eval_sets: eval sets that are played, each a family at a size; of a family the smallest size first.
        strategies: strategies by their names in tables.
        budgets: values of the swept limit in tokens. Each strategy plays every instance once per budget and seed.
            `null`, the default, is the value in `limits`.
        swept: limit that a budget sets, `total_tokens` or `generated_tokens` of the whole strategy.
        limits: the other limits.
        subject: strategy that the others are compared with; empty: the first.
        policy: policy of the strategies that name none.
        temperature: sampling temperature of the strategies that name none; 0 is greedy.
        reward: reward, whose grader decides whether an answer is right and whose terms are stored with every episode.
        grade_reports: whether reports of single parts, by clones and of memories, are compared with the expert's.
        costs: costs beside those of every record.
        price: price per million tokens, which adds the cost `money`.
        compared: costs at which strategies are compared; empty: all but counts and wall-clock.
        episodes: number of instances per eval set; `null`: all tasks of a finite source.
        seeds: seeds, each of which plays the same instances.
        task_seed: seed of the draw of instances.
        held_out: whether only the tasks of a file that training never draws are played. Tasks of other sources are
            always held out.
        batch: number of instances that are played together. A killed study loses at most one batch.
        max_retries: number of retries of an episode after a server failure. If all fail, its instance is left out of
            every strategy.
        max_failed_fraction: fraction of an eval set's instances that may be left out; the study stops above it.
        timed_batches: number of timed batches of one request, and of sixteen, for each strategy and eval set, after a
            batch for the warm-up; at least 3, or 0 for none. They come after the study's own episodes.
        threads: number of threads of torch.
        resamples: number of resamples of the bootstrap.
        confidence: confidence of the intervals.
        min_difference: smallest difference of two accuracies that a verdict counts.
    """

    name: Annotated[str, FileName()]
    tasks: Mapping[Name, PlugIn]
    eval_sets: Annotated[tuple[EvalSet, ...], NotEmpty()]
    strategies: Annotated[Mapping[Label, StrategySpec], NotEmpty()]
    budgets: Annotated[tuple[Count | None, ...], OrOne(), NotEmpty(), Distinct()] = (None,)
    swept: Literal["total_tokens", "generated_tokens"] = "total_tokens"
    limits: Limits = Limits()
    subject: str = ""
    policy: PlugIn | None = None
    temperature: Temperature = 0.0
    reward: PlugIn = PlugIn("correct", {"grader": {"name": "by_source"}})
    grade_reports: bool = False
    costs: Mapping[str, PlugIn] = field(default_factory=lambda: dict(ADDED_COSTS))
    price: Price | None = None
    compared: Annotated[tuple[str, ...], OrOne()] = ()
    output: Name = "studies"
    episodes: Annotated[Count | None, "null: all there are"] = 100
    seeds: Annotated[tuple[Seed, ...], OrOne(), NotEmpty(), Distinct()] = (0,)
    task_seed: Seed = 20_000
    held_out: bool = False
    batch: Count = 64
    max_retries: Size = 2
    max_failed_fraction: Annotated[float, AtLeast(0), Below(1)] = 0.1
    timed_batches: Size = 0
    threads: Count = 1
    resamples: Annotated[int, AtLeast(100)] = 2000
    confidence: Annotated[float, AtLeast(0.5), Below(1)] = 0.95
    min_difference: Annotated[float, AtLeast(0), Below(1)] = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timed_batches in (1, 2):
            raise ConfigError(f"timed_batches is {self.timed_batches}; expected at least 3, or 0 for none")
        check_eval_sets(self.eval_sets)
        known = [*measures_of(self.costs, self.price), WALL]
        for cost in self.compared:
            if cost not in known:
                raise ConfigError(
                    f"compared has '{cost}', which is no cost.{did_you_mean(cost, known)} The costs are "
                    f"{', '.join(known)}"
                )
        for label, budget in itertools.product(self.strategies, self.budgets):
            self.limits_at(budget, label)
        limit = getattr(self.limits, self.swept)
        above = [budget for budget in self.budgets if budget is not None and limit is not None and budget > limit]
        if None in self.budgets and above:
            # The report takes `null` for the largest budget.
            raise ConfigError(
                f"budgets has null, which is limits.{self.swept} = {limit}, and {above[0]} above it; write {limit} "
                "in the place of null"
            )
        for i, eval_set in enumerate(self.eval_sets):
            check_families(f"eval_sets[{i}].family", [eval_set.family], self.tasks)
        for label, strategy in self.strategies.items():
            check_families(f"strategies.{label}.families", strategy.families, self.tasks)
            if strategy.policy is None and self.policy is None:
                raise ConfigError(f"strategies.{label} has no policy; set policy, or strategies.{label}.policy")
        if self.subject and self.subject not in self.strategies:
            raise ConfigError(
                f"subject is {self.subject!r}, which is no strategy.{did_you_mean(self.subject, self.strategies)} The "
                f"strategies are {', '.join(self.strategies)}"
            )

    def limits_at(self, budget: int | None, label: str) -> Limits:
        """Return the limits of a whole strategy on one instance.

        Raises:
            ConfigError: the limits contradict the budget.
        """
        changes = self.strategies[label].limits
        place = f"strategies.{label}.limits"
        if budget is None:
            return override_limits(self.limits, changes, place)
        if self.swept in changes:
            raise ConfigError(f"{place}.{self.swept} is the limit that the budgets sweep; remove it")
        try:
            return override_limits(self.limits, {**changes, self.swept: budget}, place)
        except ConfigError as error:
            raise ConfigError(f"budgets has {budget}: {error}") from error

    def policy_of(self, label: str) -> PlugIn:
        policy = self.strategies[label].policy or self.policy
        assert policy is not None  # checked at construction
        return policy

    def temperature_of(self, label: str) -> float:
        temperature = self.strategies[label].temperature
        return self.temperature if temperature is None else temperature

    def eval_sets_of(self, label: str) -> tuple[EvalSet, ...]:
        families = self.strategies[label].families
        return tuple(eval_set for eval_set in self.eval_sets if not families or eval_set.family in families)

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """Every cost by name."""
        return measures_of(self.costs, self.price)

    @property
    def compared_costs(self) -> tuple[str, ...]:
        return self.compared or tuple(name for name, measure in self.measures.items() if measure.compared)

    @property
    def subject_strategy(self) -> str:
        return self.subject or next(iter(self.strategies))

    @property
    def folder(self) -> Path:
        return Path(self.output) / self.name


def load_study(path: Path, overrides: Sequence[str] = ()) -> StudyConfig:
    """Read a YAML file, with `extends` and overrides as in a training run's config.

    A policy may be written as one text, see `policies.parse_policy`. Without `eval_sets` each family is one eval set
    of the size `all`.

    Raises:
        ConfigError: a value is wrong; the message names its key.
    """
    return load_as(StudyConfig, parse_study, path, overrides)


def load_stored_study(path: Path) -> StudyConfig:
    """Return the config that a study has stored in its folder. Raises `ConfigError` as `load_stored_config` does."""
    check_extends_nothing(path)
    return parse_study(with_current_study_keys(read_config(path)))


# Keys that were renamed, by the name that earlier versions stored in `study.yaml`.
_RENAMED_KEYS = {"cells": "eval_sets", "tries": "max_retries", "max_unplayable_share": "max_failed_fraction"}
_RENAMED_COSTS = {"peak_memory": "ideal_memory"}


def with_current_study_keys(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a study's config with every key under its present name."""
    current = {}
    for key, value in data.items():
        # `tries` counted the first try too.
        counts_first_try = key == "tries" and type(value) is int
        current[_RENAMED_KEYS.get(key, key)] = value - 1 if counts_first_try else value
    if isinstance(current.get("costs"), dict):
        # The user's own name of a cost stays, since stored results have it.
        current["costs"] = {name: _with_current_cost(spec) for name, spec in current["costs"].items()}
    return current


def _with_current_cost(spec: object) -> object:
    """Return the spec of a cost, with its plug-in under its present name."""
    if isinstance(spec, dict) and spec.get("name") in _RENAMED_COSTS:
        return {**spec, "name": _RENAMED_COSTS[spec["name"]]}
    return spec


def parse_study(data: dict[str, Any]) -> StudyConfig:
    """Return the `StudyConfig` of plain values. Raises `ConfigError` that names the key of a wrong value."""
    strategies = data.get("strategies")
    specs = strategies if isinstance(strategies, dict) else {}
    for label, spec in specs.items():
        if spec is None:
            raise ConfigError(
                f"strategies.{label} is empty; write {{}} for its defaults (null removes the strategy of another file)"
            )
    for holder in (data, *specs.values()):
        if isinstance(holder, dict) and isinstance(holder.get("policy"), str):
            holder["policy"] = asdict(parse_policy(holder["policy"]))
    tasks = data.get("tasks")
    if "eval_sets" not in data and isinstance(tasks, dict):
        data["eval_sets"] = [{"family": name, "size": "all"} for name in tasks]
    return parse_as(StudyConfig, data)
