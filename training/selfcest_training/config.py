"""Configuration: frozen dataclasses. A value that cannot be right is an error before any work; see `config_file`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from selfcest_agents.lora_options import LoraOptions
from selfcest_agents.retries import RetryOptions
from selfcest_env.errors import ConfigError, did_you_mean
from selfcest_env.plugin import PlugIn
from selfcest_env.structure import (
    AtLeast,
    Between,
    Bound,
    Checked,
    Count,
    Distinct,
    Name,
    NotEmpty,
    NotNegative,
    OrOne,
    Positive,
    Seed,
    Share,
    Size,
    construct,
    to_builtins,
)
from selfcest_env.tasks.source import Style
from selfcest_env.types import Limits
from selfcest_training.cluster.config import ClusterConfig
from selfcest_training.learner.options import Denominator, ForwardOptions, LossConfig, OptimizerConfig, Rows

# Inside the folder of a model: the model that plays clones, where roles have weights of their own.
CLONES = "clones"


@dataclass(frozen=True)
class FileName(Bound):
    """What a folder can be called. `forbidden`: characters that mean something where such names are listed."""

    forbidden: str = ""

    def holds(self, value: str) -> bool:
        return value.isprintable() and value[:1] not in ("", ".") and not set(value) & set("/\\" + self.forbidden)

    def __str__(self) -> str:
        marks = "".join(f" or '{mark}'" for mark in self.forbidden)
        return f"that can name a folder: printable, not empty, no leading dot, no slash{marks}; rename it"


@dataclass(frozen=True)
class SomeAboveZero(Bound):
    """Of weights to draw by."""

    def holds(self, value: Mapping[Any, float]) -> bool:
        return any(value.values())

    def __str__(self) -> str:
        return "with a weight > 0, or it draws nothing"


def check_eval_sets(eval_sets: Iterable[EvalSet]) -> None:
    """Raise `ConfigError` if two are of one family and size."""
    names = [(eval_set.family, eval_set.size) for eval_set in eval_sets]
    if len(set(names)) < len(names):
        raise ConfigError(f"eval_sets (family, size) is {names}; expected each one once; remove the duplicates")


@dataclass(frozen=True)
class Demonstrations(Checked):
    """One family of a phase.

    Attributes:
        share: of the phase's tokens, relative to the other families.
        styles: weights of `delegate`, `solve` and `read`. The limits of the variant must allow the tool that a style
            uses.
    """

    share: NotNegative
    styles: Annotated[Mapping[Style, NotNegative], SomeAboveZero()]


@dataclass(frozen=True)
class Phase(Checked):
    """A stretch of the warm start: so many demonstration tokens, prompts included, of a mix of families.

    Attributes:
        limits: change the variant's for this phase alone, as when a policy that will read by key first learns from full
            texts.
        min_accuracy: the accuracy that the model must reach on every family of the mix when the phase ends, or the warm
            start begins again; see `WarmStart`. `None`: nobody looks; 0: the accuracy is measured and logged.
    """

    tokens: Count
    mix: Mapping[str, Demonstrations]
    limits: Mapping[str, int | None] = field(default_factory=dict)
    min_accuracy: Annotated[Share | None, "null: no probe"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = {family: spec.share for family, spec in self.mix.items()}
        if not any(shares.values()):
            raise ConfigError(f"mix has the shares {shares}; expected a family with a share > 0")


@dataclass(frozen=True)
class WarmStartConfig(Checked):
    """Imitation of scripted demonstrations.

    Attributes:
        batch_tokens: padded ids of an optimiser step at most.
        pool_tokens: demonstration tokens that are drawn at a time.
        max_attempts: how often it may begin, the first included, while a phase does not reach its `min_accuracy`.
        probe_episodes: of each family that a phase's end is judged by.
    """

    phases: tuple[Phase, ...] = ()
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=50, decay_share=0.3, beta1=0.9, beta2=0.98, weight_decay=0.01
    )
    batch_tokens: Count = 1024
    pool_tokens: Count = 16384
    max_attempts: Count = 3
    probe_episodes: Count = 64


@dataclass(frozen=True)
class RLConfig(Checked):
    """Group-relative policy gradient on rollouts.

    Attributes:
        task_sampler, group_filter, reward_schedule, credit: the stages of a step; see `stages` and `credit`.
        steps: rollout-and-update steps at most; 0 leaves the warm start as it is.
        sampled_tokens: RL ends with its first step at or above so many generated tokens, those of replays included.
        tasks: weights of task families to draw from.
        tasks_per_step, group_size: groups of one step, and episodes in each.
        minibatches: optimiser steps per rollout; the step's tasks are split evenly, whatever the number of clones.
        temperature: of sampling, and of the learner's log-probs.
        denominator, loss_denominator_tokens: see `Denominator`.
        max_staleness: rollouts run so many steps ahead of the learner, with weights that many steps old; 0: none.
        max_retries: further tries of a group that an infrastructure failure hits, before it is dropped.
        max_failed_fraction: share of a step's groups that may be dropped so; above it the run stops.
        probes: how often in RL, evenly over it, the policy plays greedily by itself, instances of the training part.
        probe_episodes: of each family in a probe.
    """

    steps: Size = 60
    sampled_tokens: Count | None = None
    tasks: Mapping[str, NotNegative] = field(default_factory=dict)
    tasks_per_step: Count = 24
    group_size: Annotated[int, AtLeast(2), "episodes of a task are compared with one another"] = 8
    minibatches: Count = 1
    temperature: Positive = 0.8
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    denominator: Denominator = Denominator.CONSTANT
    loss_denominator_tokens: Positive = 100.0
    task_sampler: PlugIn = PlugIn("mixture")
    group_filter: PlugIn = PlugIn("all")
    reward_schedule: PlugIn = PlugIn("constant")
    credit: PlugIn = PlugIn("gated")
    max_staleness: Size = 0
    max_retries: Size = 2
    max_failed_fraction: Annotated[float, Between(0, 1)] = 0.25
    probes: Size = 0
    probe_episodes: Count = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probes > self.steps > 0:
            raise ConfigError(f"probes is {self.probes}; expected at most one a step, and steps is {self.steps}")
        if self.probes and self.max_staleness:
            raise ConfigError(
                f"probes is {self.probes} and max_staleness {self.max_staleness}: the sampler is at work on coming "
                "steps when a probe would play; set one of the two to 0"
            )
        if self.tasks_per_step % self.minibatches:
            raise ConfigError(
                f"minibatches is {self.minibatches}; expected a divisor of tasks_per_step = {self.tasks_per_step}"
            )

    @property
    def retry(self) -> RetryOptions:
        """What is done about infrastructure failures."""
        return RetryOptions(self.max_retries, self.max_failed_fraction)


@dataclass(frozen=True)
class VariantConfig:
    """One policy of the comparison; its compute is the run's `compute_tokens`.

    Attributes:
        warmstart, rl: its training.
        limits: changes of the run's.
        evaluated_on: families whose eval sets it plays; empty: all.
        forced: also play both choices forced on its weights, see `evaluation.decision`.
    """

    warmstart: WarmStartConfig
    rl: RLConfig = RLConfig()
    limits: Mapping[str, int | None] = field(default_factory=dict)
    evaluated_on: Annotated[tuple[str, ...], OrOne()] = ()
    forced: bool = False

    @property
    def families(self) -> tuple[str, ...]:
        """Those that it is trained on."""
        shares = [{name: spec.share for name, spec in phase.mix.items()} for phase in self.warmstart.phases]
        drawn = [*shares, self.rl.tasks if self.rl.steps else {}]
        return tuple(dict.fromkeys(name for weights in drawn for name, weight in weights.items() if weight > 0))


@dataclass(frozen=True)
class EvalSet(Checked):
    """One eval set: a family at a size. `options` override the family's task options.

    `shift`: `in` the training distribution, or `out` of it.
    """

    family: str
    size: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shift: Literal["in", "out"] = "in"


BoardName = Literal["tensorboard", "wandb", "trackio"]

# What a server bills whose prompt cache makes known tokens cheaper; other costs follow from the record alone.
ADDED_COSTS = {"billed_tokens_cached": PlugIn("prompt_cache", {"discount": 0.9})}


@dataclass(frozen=True)
class EvaluationConfig(Checked):
    """Fixed sets, the same for every variant and seed.

    Attributes:
        eval_sets: rows of the table.
        episodes: instances per eval set.
        seed: draws the instances.
        temperatures: 0 is greedy; every temperature is evaluated and reported apart.
        costs: those beside the costs of every record, as in a study.
    """

    eval_sets: tuple[EvalSet, ...] = ()
    episodes: Count = 500
    seed: Seed = 20_000
    temperatures: Annotated[tuple[Annotated[NotNegative, "0: greedy"], ...], OrOne(), NotEmpty(), Distinct()] = (0.0,)
    costs: Mapping[str, PlugIn] = field(default_factory=lambda: dict(ADDED_COSTS))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_eval_sets(self.eval_sets)


@dataclass(frozen=True)
class RunConfig(Checked):
    """Everything one `selfcest train` does.

    Attributes:
        name: the run's folder is `output/name`.
        seeds: one independent repetition each, of everything: initial weights, warm start, rollouts.
        workers: jobs (variant and seed) at a time.
        threads: of each job.
        compute_tokens: what each variant may use, sampled + scored + 3 x trained tokens, warm start and RL together;
            its RL ends with the first step at or above it. `null` leaves it to `rl.steps`.
        model, sampler, limits, reward: shared by all variants; see `language` and `samplers` for the first two.
        rows: how the learner lays out its samples; the gradient is the same.
        forward: how the learner computes its model: precision, memory, compilation.
        lora: train a low-rank adapter in the warm start, merge it, and another in RL; `null`: every weight trains.
        tasks: the families by name.
        variants: the policies by name.
        logging: where the numbers of `metrics.jsonl` go too; what is not installed is an error.
        cluster: rollout workers on Ray; `null`: everything is done on this machine, without. It is no part of what the
            run is: one resumes with another, or with none.
    """

    name: Annotated[str, FileName()]
    tasks: Mapping[Name, PlugIn]
    variants: Annotated[Mapping[Annotated[str, FileName(",")], VariantConfig], NotEmpty()]
    evaluation: EvaluationConfig = EvaluationConfig()
    output: Name = "runs"
    seeds: Annotated[tuple[Seed, ...], OrOne(), NotEmpty(), Distinct()] = (0,)
    workers: Count = 2
    threads: Count = 1
    compute_tokens: Annotated[Count | None, "null: rl.steps says when it ends"] = None
    model: PlugIn = PlugIn("tiny")
    sampler: PlugIn = PlugIn("transformers")
    limits: Limits = Limits()
    reward: PlugIn = PlugIn("default")
    micro_batch_tokens: Count = 8192
    rows: Rows = Rows.BUCKETED
    forward: ForwardOptions = ForwardOptions()
    lora: LoraOptions | None = None
    checkpoint_every: Count = 1
    log_groups: Size = 2
    logging: Annotated[tuple[BoardName, ...], OrOne(), Distinct()] = ("tensorboard",)
    cluster: ClusterConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, variant in self.variants.items():
            self._check_variant(name, variant)
        for i, eval_set in enumerate(self.evaluation.eval_sets):
            check_families(f"evaluation.eval_sets[{i}].family", [eval_set.family], self.tasks)
        if self.cluster is not None and self.workers > 1:
            raise ConfigError(
                f"workers is {self.workers}, and beside a cluster block it must be 1: one job at a time has all "
                "rollout workers; set workers=1"
            )

    def _check_variant(self, name: str, variant: VariantConfig) -> None:
        """What only shows when the variant, its limits and the task families are seen together."""
        check_families(f"variants.{name}.rl.tasks", variant.rl.tasks, self.tasks)
        if variant.rl.steps and not any(variant.rl.tasks.values()):
            raise ConfigError(
                f"variants.{name}.rl.tasks is {dict(variant.rl.tasks)}; expected a family with a weight > 0"
            )
        check_families(f"variants.{name}.evaluated_on", variant.evaluated_on, self.tasks)
        limits = self.limits_of(name)
        if variant.forced and not limits.delegation:
            raise ConfigError(f"variants.{name}.forced is true, and by its limits it cannot delegate; set it to false")
        for i, phase in enumerate(variant.warmstart.phases):
            place = f"variants.{name}.warmstart.phases[{i}]"
            check_families(f"{place}.mix", phase.mix, self.tasks)
            phase_limits = changed_limits(limits, phase.limits, f"{place}.limits")
            _check_tools(f"{place}.mix", phase, phase_limits)
        tokens = sum(phase.tokens for phase in variant.warmstart.phases)
        # Pools are whole, so a warm start that is meant to use the whole budget may end a little above it.
        if self.compute_tokens is not None and 3 * tokens > 1.05 * self.compute_tokens:
            raise ConfigError(
                f"variants.{name}.warmstart.phases have {tokens} tokens, which cost 3 x {tokens} = {3 * tokens}: the "
                f"warm start alone is over compute_tokens = {self.compute_tokens}; lower the phases' tokens or raise "
                "compute_tokens"
            )

    def limits_of(self, variant: str) -> Limits:
        """The run's limits with the variant's overrides."""
        return changed_limits(self.limits, self.variants[variant].limits, f"variants.{variant}.limits")

    @property
    def folder(self) -> Path:
        return Path(self.output) / self.name


def check_families(place: str, families: Iterable[str], tasks: Mapping[str, PlugIn]) -> None:
    """Raise `ConfigError` that names the place for a family that is not under `tasks`."""
    for family in families:
        if family not in tasks:
            raise ConfigError(
                f"{place} names the family '{family}', which is not under tasks ({', '.join(tasks)})."
                + did_you_mean(family, tasks)
            )


def changed_limits(limits: Limits, changes: Mapping[str, int | None], place: str) -> Limits:
    """Limits with some of them replaced. Raises `ConfigError` that names one by its place in the config."""
    return construct(Limits, {**to_builtins(limits), **changes}, place=place)


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
                    f"{style}; set the style to 0 or raise {zero} for this variant or phase"
                )
