"""The config of a run as frozen dataclasses. A wrong value raises before any work; `config_file` reads files."""

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
from selfcest_env.types import Limits, Role
from selfcest_training.cluster.config import ClusterConfig
from selfcest_training.learner.options import Batches, Denominator, ForwardOptions, LossConfig, OptimizerConfig, Rows

# In the folder of a model: the folder of the clones' model, if each role has its own weights.
CLONES = "clones"


@dataclass(frozen=True)
class FileName(Bound):
    """A name that a folder can have. `forbidden` are characters with a meaning where such names are listed."""

    forbidden: str = ""

    def holds(self, value: str) -> bool:
        return value.isprintable() and value[:1] not in ("", ".") and not set(value) & set("/\\" + self.forbidden)

    def __str__(self) -> str:
        marks = "".join(f" or '{mark}'" for mark in self.forbidden)
        return f"that can name a folder: printable, not empty, no leading dot, no slash{marks}; rename it"


@dataclass(frozen=True)
class AnyPositive(Bound):
    """A mapping of weights of which at least one is above 0."""

    def holds(self, value: Mapping[Any, float]) -> bool:
        return any(value.values())

    def __str__(self) -> str:
        return "with at least one weight > 0"


def check_eval_sets(eval_sets: Iterable[EvalSet]) -> None:
    """Raise `ConfigError` if two eval sets have one family and size."""
    names = [(eval_set.family, eval_set.size) for eval_set in eval_sets]
    if len(set(names)) < len(names):
        raise ConfigError(f"eval_sets (family, size) is {names}; expected each one once: remove the duplicates")


@dataclass(frozen=True)
class DemonstrationMix(Checked):
    """The demonstrations of one task family in a phase of the warm start.

    Attributes:
        share: share of the phase's tokens, relative to the other families.
        styles: weights of the styles `delegate`, `solve` and `read`. The limits must allow the tool of a style.
        roles: agents that learn from these demonstrations. With `[root]` long texts of clones need not be computed.
    """

    share: NotNegative
    styles: Annotated[Mapping[Style, NotNegative], AnyPositive()]
    roles: Annotated[tuple[Role, ...], NotEmpty(), Distinct()] = tuple(Role)


@dataclass(frozen=True)
class WarmStartPhase(Checked):
    """One phase of the warm start.

    Attributes:
        tokens: number of demonstration tokens, with prompts.
        mix: demonstrations by task family.
        limits: changes of the variant's limits in this phase. For example, a policy that will read documents by key
            may first learn from full texts.
        min_accuracy: accuracy that the model must reach on every family of the mix at the end of the phase; otherwise
            the warm start begins again. 0 only measures and logs it; `null` does not measure it.
    """

    tokens: Count
    mix: Mapping[str, DemonstrationMix]
    limits: Mapping[str, int | None] = field(default_factory=dict)
    min_accuracy: Annotated[Share | None, "null: no probe"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = {family: demonstrations.share for family, demonstrations in self.mix.items()}
        if not any(shares.values()):
            raise ConfigError(f"mix has the shares {shares}; expected a family with a share > 0")


@dataclass(frozen=True)
class WarmStartConfig(Checked):
    """The warm start: supervised learning from scripted demonstrations.

    Attributes:
        phases: the phases, in order.
        optimizer: options of its optimizer.
        batches: the samples that make up a batch.
        batch_tokens: largest number of ids per optimizer step, with padding. With `batches: prefix`, the number of ids
            that tree rows compute.
        pool_tokens: number of demonstration tokens that are drawn at a time.
        tasks_at_once: number of tasks that are drawn from a family at a time. With long demonstrations a small number
            keeps a pool near the shares of its phase.
        max_attempts: largest number of attempts, the first one included, to reach every phase's `min_accuracy`.
        probe_episodes: number of episodes per family that measure the accuracy at the end of a phase.
    """

    phases: tuple[WarmStartPhase, ...] = ()
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=2e-3, warmup_steps=50, decay_share=0.3, beta1=0.9, beta2=0.98, weight_decay=0.01
    )
    batches: Batches = Batches.LENGTH
    batch_tokens: Count = 1024
    pool_tokens: Count = 16384
    tasks_at_once: Count = 8
    max_attempts: Count = 3
    probe_episodes: Count = 64


@dataclass(frozen=True)
class RLConfig(Checked):
    """Reinforcement learning: a policy gradient on groups of rollouts.

    Attributes:
        steps: largest number of steps, each with rollouts and an update; 0 skips RL.
        sampled_tokens: number of generated tokens, with those of replays, at which RL ends after the current step.
        tasks: weights of the task families.
        tasks_per_step: number of tasks, and so of groups, per step.
        group_size: number of episodes per task.
        minibatches: number of optimizer steps per step. Tasks are split evenly, whatever the number of clones.
        temperature: sampling temperature. The learner's log-probs have the same temperature.
        optimizer: options of the optimizer.
        loss: options of the loss.
        denominator: denominator of the loss.
        loss_denominator_tokens: number of tokens by which the `constant` denominator divides each episode's loss.
        task_sampler: plug-in that proposes the tasks of a step.
        group_filter: plug-in that selects the groups to train on.
        reward_schedule: plug-in that changes the weights of reward terms over the steps.
        credit: credit scheme.
        max_staleness: largest number of steps that rollouts run ahead of the learner, with weights of that age; 0 is
            on-policy.
        max_retries: number of retries of a group after an infrastructure failure, before it is dropped.
        max_failed_fraction: largest fraction of a step's groups that may be dropped after failures; above it the run
            stops.
        probes: number of probes, evenly spaced over RL, in which the policy plays training instances greedily.
        probe_episodes: number of episodes per family in a probe.
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
            raise ConfigError(
                f"probes is {self.probes}; expected at most one per step, so at most steps = {self.steps}"
            )
        if self.probes and self.max_staleness:
            raise ConfigError(
                f"probes is {self.probes} and max_staleness is {self.max_staleness}: the sampler plays later steps "
                "when a probe needs it; set one of the two to 0"
            )
        if self.tasks_per_step % self.minibatches:
            raise ConfigError(
                f"minibatches is {self.minibatches}; expected a divisor of tasks_per_step = {self.tasks_per_step}"
            )

    @property
    def retry(self) -> RetryOptions:
        """The handling of infrastructure failures."""
        return RetryOptions(self.max_retries, self.max_failed_fraction)


@dataclass(frozen=True)
class VariantConfig:
    """One policy of the comparison. Its compute is bounded by the run's `compute_tokens`.

    Attributes:
        warmstart: options of the warm start.
        rl: options of RL.
        limits: changes of the run's limits.
        evaluated_on: families of the eval sets that it plays; empty for all.
        forced: whether to also evaluate its weights with forced delegation and with forced answers.
    """

    warmstart: WarmStartConfig
    rl: RLConfig = RLConfig()
    limits: Mapping[str, int | None] = field(default_factory=dict)
    evaluated_on: Annotated[tuple[str, ...], OrOne()] = ()
    forced: bool = False

    @property
    def families(self) -> tuple[str, ...]:
        """The task families that it trains on, in the order of training."""
        families: dict[str, None] = {}
        for phase in self.warmstart.phases:
            families.update((family, None) for family, mix in phase.mix.items() if mix.share > 0)
        if self.rl.steps:
            families.update((family, None) for family, weight in self.rl.tasks.items() if weight > 0)
        return tuple(families)


@dataclass(frozen=True)
class EvalSet(Checked):
    """One eval set: instances of a task family at one size.

    Attributes:
        family: name of the task family.
        size: name of the size, for tables.
        options: changes of the family's task options.
        shift: `in` for the training distribution, `out` for another one.
    """

    family: str
    size: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shift: Literal["in", "out"] = "in"


BoardName = Literal["tensorboard", "wandb", "trackio"]

# The bill of a server whose prompt cache makes cached tokens cheaper. All other costs are in every record.
ADDED_COSTS = {"billed_tokens_cached": PlugIn("prompt_cache", {"discount": 0.9})}


@dataclass(frozen=True)
class EvaluationConfig(Checked):
    """The evaluation on fixed instances, equal for all variants and seeds.

    Attributes:
        eval_sets: the eval sets, which are the rows of the table; of a family the smallest size first.
        episodes: number of instances per eval set.
        seed: random seed of the instances.
        temperatures: sampling temperatures, each reported separately; 0 is greedy.
        costs: plug-ins for further costs, beside the costs of every record.
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
    """The config of one `selfcest train`.

    Attributes:
        name: name of the run. Its folder is `output/name`.
        tasks: task families by name.
        variants: policies by name.
        evaluation: options of the evaluation.
        output: folder of all runs.
        seeds: random seeds. Each one repeats initial weights, warm start and rollouts independently.
        workers: number of jobs (a variant with a seed) that run at the same time.
        threads: number of CPU threads per job.
        compute_tokens: compute of each variant in warm start and RL, as sampled + scored + 3 x trained tokens. RL ends
            after the step that reaches it. `null` leaves the end to `rl.steps`.
        model: the model of all variants.
        sampler: the engine that samples.
        limits: limits of an episode.
        reward: the reward.
        micro_batch_tokens: largest number of ids per forward pass of the learner.
        rows: layout of the learner's micro-batches. The gradient does not depend on it.
        forward: precision, memory and compilation of the learner's forward pass.
        lora: options of low-rank adapters. One is trained in the warm start and merged, another one in RL. `null`
            trains every weight.
        checkpoint_every: number of pools or steps between checkpoints.
        log_groups: number of groups per step whose episodes are stored.
        logging: further destinations of the numbers in `metrics.jsonl`. Each needs its package.
        cluster: rollout workers on Ray; `null` runs everything on this machine. A run may resume with another value.
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
                f"workers is {self.workers}; expected 1 with a cluster block, as one job at a time has all rollout "
                "workers: set workers=1"
            )

    def _check_variant(self, name: str, variant: VariantConfig) -> None:
        """Check the variant's options against its limits and the task families."""
        check_families(f"variants.{name}.rl.tasks", variant.rl.tasks, self.tasks)
        if variant.rl.steps and not any(variant.rl.tasks.values()):
            raise ConfigError(
                f"variants.{name}.rl.tasks is {dict(variant.rl.tasks)}; expected a family with a weight > 0"
            )
        check_families(f"variants.{name}.evaluated_on", variant.evaluated_on, self.tasks)
        limits = self.limits_of(name)
        if variant.forced and not limits.delegation:
            raise ConfigError(f"variants.{name}.forced is true, but its limits allow no delegation; set it to false")
        if variant.warmstart.batches == Batches.PREFIX and self.rows != Rows.TREE:
            raise ConfigError(
                f"variants.{name}.warmstart.batches is 'prefix' and rows is '{self.rows}', which computes a shared "
                "prefix for each sample; set rows to 'tree' or batches to 'length'"
            )
        for i, phase in enumerate(variant.warmstart.phases):
            place = f"variants.{name}.warmstart.phases[{i}]"
            check_families(f"{place}.mix", phase.mix, self.tasks)
            phase_limits = override_limits(limits, phase.limits, f"{place}.limits")
            _check_tools(f"{place}.mix", phase, phase_limits)
        tokens = sum(phase.tokens for phase in variant.warmstart.phases)
        # The last pool is not cut, so a warm start that should use the complete budget may end slightly above it.
        if self.compute_tokens is not None and 3 * tokens > 1.05 * self.compute_tokens:
            raise ConfigError(
                f"variants.{name}.warmstart.phases have {tokens} tokens, which cost 3 x {tokens} = {3 * tokens}: the "
                f"warm start alone is over compute_tokens = {self.compute_tokens}; lower the phases' tokens or raise "
                "compute_tokens"
            )

    def limits_of(self, variant: str) -> Limits:
        """The limits of a variant: those of the run with the variant's changes."""
        return override_limits(self.limits, self.variants[variant].limits, f"variants.{variant}.limits")

    @property
    def folder(self) -> Path:
        return Path(self.output) / self.name

    def job_folder(self, variant: str, seed: int) -> Path:
        """The folder of one variant with one seed."""
        return self.folder / variant / f"seed{seed}"


def check_families(place: str, families: Iterable[str], tasks: Mapping[str, PlugIn]) -> None:
    """Raise `ConfigError` for a family that is not in `tasks`. `place` is the config key that names it."""
    for family in families:
        if family not in tasks:
            raise ConfigError(
                f"{place} names the family '{family}', which is not in tasks.{did_you_mean(family, tasks)} Expected "
                f"one of {', '.join(tasks)}"
            )


def override_limits(limits: Limits, changes: Mapping[str, int | None], place: str) -> Limits:
    """Replace some limits. Raises `ConfigError` for a wrong limit. `place` is the config key of the changes."""
    return construct(Limits, {**to_builtins(limits), **changes}, place=place)


def _check_tools(place: str, phase: WarmStartPhase, limits: Limits) -> None:
    """Raise `ConfigError` for a style whose tool the limits forbid. It would silently use another style."""
    # For every style with a tool, whether limits allow it, and the limits that can forbid it.
    tools = {
        Style.DELEGATE: (limits.delegation, ("max_depth", "max_clones", "max_clones_per_call")),
        Style.READ: (limits.reading, ("max_reads",)),
    }
    for family, mix in phase.mix.items():
        for style, (is_allowed, limit_names) in tools.items():
            weight = mix.styles.get(style, 0)
            if is_allowed or mix.share == 0 or weight == 0:
                continue
            zero_limits = " and ".join(f"limits.{name}" for name in limit_names if getattr(limits, name) == 0)
            raise ConfigError(
                f"{place}.{family}.styles.{style} is {weight!r}, but {zero_limits} is 0, so no agent can {style}; set "
                f"the style to 0 or raise {zero_limits} for this variant or phase"
            )
