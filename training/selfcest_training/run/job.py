"""A job trains one variant with one seed, and resumes exactly from the files in its folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from selfcest_agents.language import Language, language_of
from selfcest_agents.lora import add_lora, has_roles, merge_lora, use_adapter
from selfcest_agents.player import ModelPlayer, TrainedPlayer
from selfcest_agents.rollout import RolloutRequest, collect_failures
from selfcest_agents.samplers import (
    SamplerByRole,
    SamplerSpec,
    WeightSyncTarget,
    check_own_weights,
    check_positions,
    make_sampler,
)
from selfcest_agents.server_counts import CountsByServer, compute_server_metrics, tally_requests
from selfcest_env.errors import ConfigError, StoppedError
from selfcest_env.reward import Reward, make_reward
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import to_builtins
from selfcest_env.tasks import TaskSource
from selfcest_env.types import Limits, Role
from selfcest_training.cluster.group import LearnerGroup, Ranks
from selfcest_training.cluster.partition import check_ranks
from selfcest_training.cluster.rank import LearnerSpec
from selfcest_training.cluster.rollouts import RolloutPool, RolloutWorkers, WorkerSpec
from selfcest_training.config import CLONES, RunConfig, override_limits
from selfcest_training.config_file import run_digest
from selfcest_training.families import make_families
from selfcest_training.files import AppendLog, FileOffset, atomic_write, hash_files, measure_offset, remove_partials
from selfcest_training.learner.losses import Need, make_loss_sum
from selfcest_training.learner.memory import release_memory
from selfcest_training.learner.options import OptimizerConfig
from selfcest_training.learner.tree_rows import max_micro_batches
from selfcest_training.learner.update import Learner, LearnerProtocol
from selfcest_training.run.account import JobAccount
from selfcest_training.run.boards import BOARDS, BoardJob, check_boards
from selfcest_training.run.checkpoint import (
    WARM_START,
    CheckpointManifest,
    TrainState,
    find_newest_checkpoint,
    load_checkpoint,
    read_state,
    read_trainer_state,
    save_checkpoint,
)
from selfcest_training.run.evaluator import EvaluationStage
from selfcest_training.run.metrics import (
    MetricsLog,
    compute_probe_metrics,
    compute_rollout_metrics,
    format_episode_lines,
)
from selfcest_training.run.shared_warmstart import find_shared_phases, hand_over
from selfcest_training.servers import store_counts
from selfcest_training.stages.base import Stages
from selfcest_training.stages.checks import check_menu, check_reward, get_reward_weights
from selfcest_training.stages.probe import draw_probe_requests, group_by_family
from selfcest_training.stages.registry import make_reward_schedule, make_stages, make_task_menu
from selfcest_training.stages.warmstart import Pool, WarmStart, check_demonstrations
from selfcest_training.trainer import Trainer, TrainStep

# The arguments are the stage, the share that is done, and a note.
OnProgress = Callable[[str, float, str], None]
LOGS = ("metrics.jsonl", "episodes.jsonl")
# Name of the trained model's folder in the job's folder.
FINAL_MODEL = "model"
_RESULTS_BEFORE_RL = f"{EvaluationStage.BEFORE}/results.jsonl"


@dataclass(frozen=True)
class JobId:
    """One variant of a run with one seed."""

    variant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.variant}/seed{self.seed}"


class Job:
    """Trains one variant with one seed, in `folder`. The constructor checks the config and writes nothing.

    Args:
        config: of the run.
        job_id: the variant and the seed.
        on_progress: called after every pool and step.
        asked_to_stop: called after every pool and step; if it returns true, the job writes a checkpoint and raises
            `StoppedError`.
        ranks: the processes that train the weights, which the caller closes; `None` trains in this process.

    Raises:
        ConfigError: an option is wrong or does not fit the others, as far as this shows before anything has started.
    """

    def __init__(
        self,
        config: RunConfig,
        job_id: JobId,
        on_progress: OnProgress,
        asked_to_stop: Callable[[], bool] = lambda: False,
        ranks: Ranks | None = None,
    ) -> None:
        self.config = config
        self.id = job_id
        self.on_progress = on_progress
        self._asked_to_stop = asked_to_stop
        self._ranks = ranks
        self.variant = config.variants[job_id.variant]
        self.folder = config.job_folder(job_id.variant, job_id.seed)
        self.language = language_of(config.model)
        self.sampler_spec = make_sampler(config.sampler.name, config.sampler.options)
        parts = make_parts(config, job_id.variant)
        self.reward = parts.reward
        self.families = parts.families
        self.stages = parts.stages
        self.loss_needs = parts.loss_needs
        check_contexts(config, job_id.variant, self.language, self.sampler_spec)
        check_options(config, job_id.variant, self.sampler_spec, ranks)
        check_stages(config, job_id.variant, self.stages)
        self._led_phases = [shared for shared in find_shared_phases(config) if shared.leader == job_id.variant]
        # Their CPU seconds count for this job.
        self._other_processes: list[Ranks | RolloutWorkers] = [] if ranks is None else [ranks]
        self.account = self._make_account(TrainState())
        self._exit_stack = ExitStack()
        self._logs: Mapping[str, AppendLog] = {}
        # SHA-256 of the warm-started model's files, and the offset of the results before RL, for checkpoints of RL.
        self._warm_start_digests: Mapping[str, str] = {}
        self._evaluation_offsets: Mapping[str, FileOffset] = {}

    def check_demonstrations(self) -> None:
        """Raise `ConfigError` if a script of the warm start fails tasks of its family; see the function."""
        limits = self.config.limits_of(self.id.variant)
        place = f"variants.{self.id.variant}.warmstart"
        check_demonstrations(self.language, limits, self.reward, self.families, self.variant.warmstart, place)

    @property
    def state(self) -> TrainState:
        return self.account.state

    def _make_account(self, state: TrainState) -> JobAccount:
        return JobAccount(state, self.variant.rl, self.config.compute_tokens, self._cpu_seconds)

    def _cpu_seconds(self) -> float:
        """The CPU seconds of this process and, as far as they have reported, of the processes that work for it."""
        return time.process_time() + sum(processes.cpu_seconds for processes in self._other_processes)

    def close(self) -> None:
        """Stop the engine and release its memory for the next job of this process."""
        self._exit_stack.close()

    # Stages

    def run(self, before_rl: Callable[[], None], only_warm_start: bool = False) -> None:
        """Run the warm start and RL, or resume them from the newest whole checkpoint.

        Args:
            before_rl: called after the warm start, to evaluate its policy. A resumed RL does not call it again.
            only_warm_start: whether to end before RL.
        """
        for folder in (self.folder, self.folder / "checkpoints"):
            folder.mkdir(parents=True, exist_ok=True)
            remove_partials(folder)
        checkpoint, manifest = find_newest_checkpoint(self.folder) or (None, CheckpointManifest())
        if checkpoint is not None:
            self.account = self._make_account(read_state(checkpoint))
        self._logs = {name: AppendLog(self.folder / name, manifest.logs.get(name, FileOffset())) for name in LOGS}
        self._open()
        board_job = BoardJob(self.config.name, str(self.id), self.folder, to_builtins(self.config))
        with (
            closing(self._logs["episodes.jsonl"]),
            MetricsLog(self._logs["metrics.jsonl"]) as log,
            self._counted_servers(),
        ):
            for name in self.config.logging:
                log.add_board(BOARDS[name](board_job))
            if self.state.stage == "warmstart":
                self._warm_start(checkpoint, log)
                self._save(WARM_START)
                self.sampler.sync(self.model, 0)
                self._store_server_counts()
                before_rl()
                # Drop these counts: the evaluation stores its requests to servers in its own folder.
                self._servers.take()
                self.account.begin_rl()
                self._add_lora()
                checkpoint = None
            if not only_warm_start:
                self._warm_start_digests = hash_files(self.folder / WARM_START)
                # Once RL has begun the policy before RL cannot be evaluated again, so checkpoints hold this file's
                # length and digest.
                if checkpoint is not None:
                    if _RESULTS_BEFORE_RL in manifest.logs:
                        self._evaluation_offsets = {_RESULTS_BEFORE_RL: manifest.logs[_RESULTS_BEFORE_RL]}
                elif (self.folder / _RESULTS_BEFORE_RL).exists():
                    self._evaluation_offsets = {_RESULTS_BEFORE_RL: measure_offset(self.folder / _RESULTS_BEFORE_RL)}
                self._train_with_rl(checkpoint, log)
                self._save(FINAL_MODEL)

    def _save(self, name: str) -> None:
        """Write the model as a folder that transformers loads, and merge an adapter into the weights.

        With an adapter for each role the folder holds the model of roots, and inside it a folder with that of clones.
        """
        by_role = has_roles(self.model)
        if not by_role:
            merge_lora(self.model)
        with atomic_write(self.folder / name) as folder:
            self.language.save(self.model, folder)
            if by_role:
                with use_adapter(self.model, Role.CLONE):
                    self.language.save(self.model, folder / CLONES)

    def _open(self) -> None:
        """Load the model and start its sampler.

        Initial weights depend on the seed and the attempt at the warm start only, so variants start from the same ones.
        """
        # In RL the adapter is on top of the warm-started weights, which are also the frozen reference.
        base = self.folder / WARM_START if self.config.lora and self.state.stage == "rl" else None
        self.model = self.language.load(self._initial_seed("weights"), base)
        self._add_lora()
        self.player: TrainedPlayer = self._make_player()
        self.sampler: WeightSyncTarget = self.player.sampler
        self._exit_stack.callback(self.player.close)

    def _make_player(self) -> TrainedPlayer:
        """Make a player that plays in this process, or in the rollout workers of the cluster."""
        config = self.config
        limits = config.limits_of(self.id.variant)
        if config.cluster is None:
            start = partial(self.sampler_spec.start, self.language, self.model)
            first = start()
            # A merged copy has one adapter; the learner's own model has those of both roles.
            by_role = config.lora is not None and config.lora.per_role and not first.shared
            sampler = SamplerByRole({Role.ROOT: first, Role.CLONE: start()}) if by_role else first
            return ModelPlayer(self.language, sampler, limits=limits, reward=self.reward)
        spec = WorkerSpec(config.model, config.sampler, config.reward, limits, torch.get_num_threads())
        # A sampler without this option uses the model's dtype.
        dtype = getattr(self.sampler_spec, "dtype", None)
        workers = RolloutWorkers(config.cluster, spec, None if dtype is None else getattr(torch, dtype))
        self._other_processes.append(workers)
        return RolloutPool(self.language, limits, workers)

    def _add_lora(self) -> None:
        if self.config.lora is not None:
            # In the warm start both roles share one adapter.
            per_role = self.config.lora.per_role and self.state.stage == "rl"
            options = replace(self.config.lora, per_role=per_role)
            add_lora(self.model, options, self._initial_seed("lora", self.state.stage))

    def _initial_seed(self, what: str, *key: str) -> int:
        # The first attempt has no number in the key: runs from before there were attempts keep their weights.
        attempt = (self.state.attempt,) if self.state.attempt else ()
        return stream_seed(what, self.id.seed, *key, *attempt)

    def _make_learner(self, stage: str, checkpoint: Path | None = None) -> LearnerProtocol:
        optimizer = self.variant.warmstart.optimizer if stage == "warmstart" else self.variant.rl.optimizer
        needs_reference = stage == "rl" and Need.REFERENCE in self.loss_needs
        learner: LearnerProtocol
        if self._ranks is not None:
            learner = self._make_group(self._ranks, stage, optimizer, needs_reference)
        else:
            reference = None
            if needs_reference:
                # Without its adapter the model still has the weights of the warm start.
                has_adapter = self.config.lora is not None
                reference = self.model if has_adapter else self.language.load(0, self.folder / WARM_START)
            learner = Learner(
                self.model,
                optimizer,
                pad_id=0,
                micro_batch_tokens=self.config.micro_batch_tokens,
                reference=reference,
                rows=self.config.rows,
                forward=self.config.forward,
            )
        if checkpoint is not None:
            load_checkpoint(checkpoint, learner)
        return learner

    def _make_group(self, ranks: Ranks, stage: str, optimizer: OptimizerConfig, needs_reference: bool) -> LearnerGroup:
        """Make a learner over ranks, which begin with the weights of this process's model.

        This process does not train: it gets the weights when the ranks are done.
        """
        # The adapter of RL is on top of the warm start, as in `_open`.
        has_adapter = self.config.lora is not None and stage == "rl"
        spec = LearnerSpec(
            self.config.model,
            optimizer,
            self.config.micro_batch_tokens,
            seed=self._initial_seed("weights"),
            folder=self.folder / WARM_START if has_adapter else None,
            lora=self.config.lora,
            lora_seed=self._initial_seed("lora", stage),
            reference=self.folder / WARM_START if needs_reference else None,
            rows=self.config.rows,
            forward=self.config.forward,
        )
        group = LearnerGroup(ranks, spec, sampler_dtype=getattr(self.sampler_spec, "dtype", None))
        group.load_weights_from(self.model)
        return group

    def _warm_start(self, checkpoint: Path | None, log: MetricsLog) -> None:
        """Attempt the warm start until its phases reach their accuracy, at most `max_attempts` times."""
        while not self._attempt_warm_start(checkpoint, log):
            self.account.begin_again()
            # The checkpoint belongs to the failed attempt.
            checkpoint = None
            self.close()
            # Release the old model before the next one is loaded: memory may not hold both.
            del self.model, self.sampler, self.player
            self._open()

    def _attempt_warm_start(self, checkpoint: Path | None, log: MetricsLog) -> bool:
        """Attempt the warm start once. Return False if a phase missed its accuracy and another attempt is left."""
        config = self.variant.warmstart
        learner = self._make_learner("warmstart", checkpoint)
        state = self.state
        warm_start = WarmStart(
            config,
            self.player,
            learner,
            self.families,
            self.reward,
            seed=self.id.seed,
            attempt=state.attempt,
            pool=state.step,
            tokens=state.demonstration_tokens,
        )
        self.on_progress("warm start", warm_start.progress, f"attempt {state.attempt + 1} of {config.max_attempts}")
        while not warm_start.done:
            state_before = self.state
            pool = warm_start.step()
            self.account.spend(sampled=pool.sampled_tokens, trained=pool.trained_tokens)
            self.account.tick(learner.num_steps, pool.tokens)
            release_memory()
            self._log_pool(log, pool, warm_start.progress)
            if not pool.passed and state.attempt + 1 < config.max_attempts:
                return False
            self._hand_over(state_before, learner)
            self._after_step(learner)
        self._checkpoint(learner)
        learner.copy_weights_to(self.model)
        return True

    def _hand_over(self, state_before: TrainState, learner: LearnerProtocol) -> None:
        """Hand the weights over to the variants whose warm start begins with phases that end with the last pool."""
        for shared in self._led_phases:
            if shared.are_ahead_of(state_before) and not shared.are_ahead_of(self.state):
                follower = self.config.job_folder(shared.follower, self.id.seed)
                hand_over(self.folder, follower, learner.state(), self.state, self._manifest())

    def _log_pool(self, log: MetricsLog, pool: Pool, progress: float) -> None:
        step = self.state.step - 1
        used = self.account.metrics()
        log.write("warmstart", step, {"loss": pool.loss, **used})
        self.on_progress("warm start", progress, f"loss {pool.loss:.3f}")
        for probe in pool.probes:
            log.write("probe", step, {"attempt": self.state.attempt, **probe.metrics(), **used})
            self.on_progress("warm start", progress, str(probe))

    def _train_with_rl(self, checkpoint: Path | None, log: MetricsLog) -> None:
        config = self.variant.rl
        learner = self._make_learner("rl", checkpoint)
        menu = make_task_menu(self.config, self.id.variant, self.families)
        second_player = None
        if self.config.cluster is not None and self.config.cluster.overlap:
            second_player = self._make_player()
            self._exit_stack.callback(second_player.close)
        with Trainer(
            self.player,
            self.sampler,
            learner,
            menu,
            self.stages,
            config,
            account=self.account,
            seed=self.id.seed,
            second_player=second_player,
        ) as trainer:
            if checkpoint is not None:
                trainer.load_state_dict(read_trainer_state(checkpoint))
            self.on_progress("RL", self.account.progress(), f"step {self.state.step} of {config.steps}")
            while self.state.step < config.steps and not self.account.spent():
                progress_before = self.account.progress()
                step = trainer.step()
                self.account.tick(learner.num_steps)
                release_memory()
                self._log_step(log, step, self._probe(learner, progress_before))
                self._after_step(learner, trainer)
        self._checkpoint(learner, trainer)
        learner.copy_weights_to(self.model)
        self.sampler.sync(self.model, self.state.step)

    def _probe(self, learner: LearnerProtocol, progress_before: float) -> dict[str, float]:
        """Play greedily and return metrics by family, if a probe became due in the last step.

        Every probe plays the same instances. Episodes that an infrastructure failure leaves unplayed are left out and
        counted.

        Args:
            learner: holds the weights that play.
            progress_before: the share of RL that was done before the last step.
        """
        config = self.variant.rl
        number = self._probes_due(self.account.progress())
        if number == self._probes_due(progress_before):
            return {}
        requests_by_family: dict[str, list[RolloutRequest]] = {}
        for family, weight in config.tasks.items():
            if weight > 0:
                # A generator for each family: its instances do not depend on which other families a variant has.
                rng = np.random.default_rng(stream_seed("probe", self.id.seed, family))
                source = {family: self.families[family]}
                name = f"probe{number}.{family}"
                requests_by_family |= draw_probe_requests(source, config.probe_episodes, rng, name)
        learner.sync(self.sampler, self.state.step)
        requests = list(chain.from_iterable(requests_by_family.values()))
        records, _ = collect_failures(partial(self.player.play, requests, temperature=0.0))
        self.account.pause()
        return compute_probe_metrics(group_by_family(requests_by_family, records), config.probe_episodes)

    def _probes_due(self, progress: float) -> int:
        # The small number makes up for rounding: the product may be just below a whole number.
        return math.floor(self.variant.rl.probes * progress + 1e-9)

    def _log_step(self, log: MetricsLog, step: TrainStep, probe_metrics: Mapping[str, float]) -> None:
        batch = step.batch
        credit = step.credit
        metrics = {
            **compute_rollout_metrics(batch.groups),
            **batch.diagnostics(),
            **credit.diagnostics(),
            **step.metrics,
            **probe_metrics,
            **compute_server_metrics(self._store_server_counts()),
        }
        log.write("rl", self.state.step - 1, {**metrics, **self.account.metrics()})
        num_logged = self.config.log_groups
        lines = format_episode_lines(batch.train_groups[:num_logged], credit.replayed[:num_logged])
        self._logs["episodes.jsonl"].append(lines)
        note = f"step {self.state.step} of {self.variant.rl.steps}, {metrics['total_tokens']:.0f} tokens an episode"
        if returns := [value for name, value in probe_metrics.items() if name.endswith("/return")]:
            note = f"{note}; probe: return {np.mean(returns):.2f}"
        self.on_progress("RL", self.account.progress(), note)

    @contextmanager
    def _counted_servers(self) -> Iterator[None]:
        with tally_requests() as self._servers:
            try:
                yield
            finally:
                self._store_server_counts()

    def _store_server_counts(self) -> CountsByServer:
        """Write the counts of servers, such as judges, since the last call into the job's folder, and return them."""
        counts = self._servers.take()
        store_counts(self.folder, counts)
        return counts

    def _after_step(self, learner: LearnerProtocol, trainer: Trainer | None = None) -> None:
        """Write a checkpoint if one is due. Raises `StoppedError` after it if the job was asked to stop."""
        stop = self._asked_to_stop()
        if stop or self.state.step % self.config.checkpoint_every == 0:
            self._checkpoint(learner, trainer)
        if stop:
            raise StoppedError("stopped after a checkpoint")

    @cached_property
    def _config_digest(self) -> str:
        # Cached: it takes a tenth of a second, and every checkpoint needs it.
        return run_digest(self.config)

    def _checkpoint(self, learner: LearnerProtocol, trainer: Trainer | None = None) -> None:
        trainer_state = {} if trainer is None else trainer.state_dict()
        save_checkpoint(self.folder / "checkpoints", learner.state(), self.state, trainer_state, self._manifest())

    def _manifest(self) -> CheckpointManifest:
        offsets = {**self._evaluation_offsets, **{name: log.offset() for name, log in self._logs.items()}}
        return CheckpointManifest(self._config_digest, offsets, self._warm_start_digests)


@dataclass(frozen=True)
class JobParts:
    """The parts of a job that need neither its model nor its sampler.

    Attributes:
        reward: reward of the episodes.
        families: training part of each family of the config's tasks.
        stages: task sampler, group filter, reward schedule and credit scheme of RL.
        loss_needs: what the loss of RL reads.
    """

    reward: Reward
    families: Mapping[str, TaskSource]
    stages: Stages
    loss_needs: Collection[Need]


def make_parts(config: RunConfig, variant: str) -> JobParts:
    """Make these parts of a variant. Raises `ConfigError` or `PlugInError` that names the config key of a mistake."""
    check_boards(config.logging)
    reward = make_reward(config.reward.name, **config.reward.options)
    families = make_families(config.tasks, "train")
    for name, source in families.items():
        reward.check([source.draw(np.random.default_rng(0))], f"tasks.{name}")
    rl = config.variants[variant].rl
    place = f"variants.{variant}.rl"
    stages = make_stages(rl, place)
    check_menu(stages.tasks, make_task_menu(config, variant, families))
    for key, stage in stages.by_key().items():
        check_reward(stage, reward, f"{place}.{key}")
    # A second instance: the run's own schedule may be called only once per step.
    schedule = make_reward_schedule(rl.reward_schedule, f"{place}.reward_schedule")
    reward.checked_weights(get_reward_weights(schedule, 0))
    return JobParts(reward, families, stages, make_loss_sum(rl.loss, where=f"{place}.loss").needs)


def check_contexts(config: RunConfig, variant: str, language: Language, sampler: SamplerSpec) -> None:
    """Raise `ConfigError` if a context of the variant, or of a phase of it, could outgrow the model or the engine."""
    variant_limits = config.limits_of(variant)
    limits_by_place = {f"variants.{variant}": variant_limits}
    engine_places = {f"variants.{variant}"}
    for i, phase in enumerate(config.variants[variant].warmstart.phases):
        place = f"variants.{variant}.warmstart.phases[{i}]"
        limits_by_place[place] = override_limits(variant_limits, phase.limits, "limits")
        # Scripts play the demonstrations of a phase. The engine plays under its limits only in a probe.
        if phase.min_accuracy is not None:
            engine_places.add(place)
    for place, limits in limits_by_place.items():
        if place in engine_places:
            check_positions(sampler, _longest_context(limits), place)
        try:
            language.rules(limits)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error


def check_options(config: RunConfig, variant: str, sampler: SamplerSpec, ranks: Ranks | None = None) -> None:
    """Raise `ConfigError` if options of the sampler, the adapters or the cluster do not fit the rest of the config."""
    rl = config.variants[variant].rl
    cluster = config.cluster
    lora = config.lora
    # A merged adapter gives the sampler weights of its own anyway. Samplers without this option merge.
    if lora is None or not getattr(sampler, "merge_lora", True):
        check_own_weights(
            sampler,
            f"variants.{variant}.rl",
            max_staleness=rl.max_staleness,
            on_cluster=cluster is not None,
            on_ranks=ranks is not None,
        )
    if lora is not None:
        lora.check_roles(
            f"variants.{variant}.rl",
            on_cluster=cluster is not None,
            on_ranks=ranks is not None,
            sampler=config.sampler.name,
            max_staleness=rl.max_staleness,
            compiled=config.forward.compile,
        )
    if cluster is not None:
        cluster.check_devices(
            cuda=str(config.model.options.get("device", "cpu")).startswith("cuda"),
            tensor_parallel=getattr(sampler, "tensor_parallel", 1),
            compiled=config.forward.compile,
        )


def check_stages(config: RunConfig, variant: str, stages: Stages) -> None:
    """Raise `ConfigError` if the options of the cluster do not fit the stages of a variant."""
    rl = config.variants[variant].rl
    cluster = config.cluster
    limits = config.limits_of(variant)
    if cluster is None or not rl.steps:
        return
    contexts = stages.max_contexts(rl, limits)
    if contexts is not None:
        longest = _longest_context(limits) or config.micro_batch_tokens
        micro_batches = max_micro_batches(contexts, longest, config.rows, max_tokens=config.micro_batch_tokens)
        check_ranks(cluster.learner_ranks, micro_batches, f"a mini-batch of variants.{variant}.rl, at its fullest,")
    cluster.check_overlap(f"variants.{variant}.rl", rl.max_staleness, stages.rollout_keys_with_state())


def _longest_context(limits: Limits) -> int | None:
    """Return the most tokens that one context can have; `None` for no bound."""
    bounds = [bound for bound in (limits.context_tokens, limits.total_tokens) if bound is not None]
    return min(bounds, default=None)
