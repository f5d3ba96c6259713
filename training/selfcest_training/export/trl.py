"""TRL's `AsyncGRPOTrainer` makes the updates; the player, the engine and the credit of this project make its rows.

A row is one context with those of its turns that share one advantage. TRL's loss is a mean over the tokens of a
micro-batch; the loss of this project is a sum over a denominator that counts episodes. Both are linear in a positive
factor of the advantage. So each row's advantage is multiplied by its weight in our loss and by TRL's divisor, and the
gradients are equal. TRL needs the same number of rows in every step, so the batch is padded with rows without gradient.

TRL asks for step s + 1 before it learns from step s, so step s is always played with the weights of step s - 1.
Rollouts and updates alternate: a step is played when TRL asks for it.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from selfcest_agents.engine import check_weights
from selfcest_agents.language import language_of
from selfcest_agents.lora import has_lora
from selfcest_agents.player import ModelPlayer
from selfcest_agents.samplers import make_sampler
from selfcest_env.errors import ConfigError, TrainingError, install_hint
from selfcest_env.reward import make_reward
from selfcest_training.config import RLConfig, RunConfig
from selfcest_training.credit import fit
from selfcest_training.credit.offline import get_group_id
from selfcest_training.export.stored import list_temperatures
from selfcest_training.families import make_families
from selfcest_training.learner.batch import Sample, split_into_mini_batches
from selfcest_training.learner.losses import Clipped, make_loss_sum
from selfcest_training.learner.update import Learner
from selfcest_training.run.account import JobAccount
from selfcest_training.run.checkpoint import TrainState
from selfcest_training.run.job import check_contexts
from selfcest_training.run.metrics import compute_rollout_metrics
from selfcest_training.stages.checks import check_menu
from selfcest_training.stages.crediting import assign_step_credit, get_records
from selfcest_training.stages.registry import make_stages, make_task_menu
from selfcest_training.trainer import Trainer

if TYPE_CHECKING:
    from trl.experimental.async_grpo import AsyncGRPOTrainer


@dataclass(frozen=True)
class TrlRow:
    """One context with those of its trained tokens that share one advantage. Arrays are [T], aligned.

    Attributes:
        token_ids: ids of the whole context.
        mask: True where this row trains a token.
        logprobs: the sampler's log-probs, 0 where the mask is False.
        advantage: the credit times the weight of a token in our loss.
        group: the id from `get_group_id`; empty for a row without a gradient.
    """

    token_ids: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    advantage: float
    group: str

    @property
    def trained_tokens(self) -> int:
        return int(self.mask.sum())


def make_padding_row(trained_tokens: int) -> TrlRow:
    """Make a row without a gradient, with 0 or 1 tokens that count as trained."""
    mask = np.array([False, True]) if trained_tokens else np.array([False])
    return TrlRow(np.zeros(len(mask), np.int64), mask, np.zeros(len(mask), np.float32), 0.0, "")


def build_rows(samples: Sequence[Sample]) -> list[TrlRow]:
    """Build one row per context and distinct advantage. The rows of a context follow each other."""
    rows = []
    for sample in samples:
        advantages = sample.advantages.astype(np.float64) * sample.weight
        for advantage in np.unique(advantages[sample.loss_mask]):
            mask = sample.loss_mask & (advantages == advantage)
            logprobs = np.where(mask, sample.behavior_logprobs, 0).astype(np.float32)
            rows.append(TrlRow(sample.token_ids, mask, logprobs, float(advantage), get_group_id(sample.episode_id)))
    return rows


def split_micro_batches(rows: Sequence[TrlRow], size: int, count: int) -> list[list[tuple[TrlRow, float]]]:
    """Split the rows of one optimiser step into `count` micro-batches of `size` rows with their advantages in TRL.

    Raises:
        TrainingError: the step has more than `size * count` rows.
    """
    if len(rows) > size * count:
        raise TrainingError(
            f"a step has {len(rows)} rows, and TRL expects {count} micro-batches of {size}; raise `rows` or "
            "`micro_batches`, or lower rl.tasks_per_step or rl.group_size"
        )
    ends = [i * len(rows) // count for i in range(count + 1)]
    batches = []
    for start, end in pairwise(ends):
        batch = list(rows[start:end])
        if not batch:
            # TRL divides by the trained tokens of a micro-batch, so an empty one needs a token that counts.
            batch.append(make_padding_row(trained_tokens=1))
        batch += [make_padding_row(trained_tokens=0)] * (size - len(batch))
        # TRL divides the sum of a micro-batch by its trained tokens and by the number of micro-batches.
        divisor = sum(row.trained_tokens for row in batch) * count
        batches.append([(row, row.advantage * divisor) for row in batch])
    return batches


class TrlRolloutWorker:
    """Plays the steps of a `Trainer` as TRL's `rollout_worker`, and takes TRL's weights as its `weight_transfer`.

    Args:
        trainer: plays and credits the episodes. It makes no updates; its learner's model holds TRL's weights.
        rows: rows per micro-batch.
        micro_batches: micro-batches per step.

    Raises:
        ConfigError: the trainer has a stage or a loss that TRL's trainer cannot carry out.
    """

    def __init__(self, trainer: Trainer, *, rows: int, micro_batches: int = 1) -> None:
        _get_clip_range(trainer.config)
        if trainer.stages.credit.internals:
            raise ConfigError(
                f"credit scheme '{trainer.stages.credit.name}' needs internals of the learner, which is TRL's here; "
                "choose a scheme that only needs records"
            )
        if not isinstance(trainer.learner, Learner):
            raise ConfigError(
                "the trainer's learner runs on ranks, and TRL sends its weights to a model of this process; remove "
                "`cluster` from the config"
            )
        if has_lora(trainer.learner.model):
            raise ConfigError("the trainer's model has a LoRA adapter; remove it, and give TRL a peft_config")
        self.trainer = trainer
        self.learner = trainer.learner
        self.rows = rows
        self.micro_batches = micro_batches
        self.rollout_buffer: queue.Queue[Any] = _LazyQueue(self._make_samples)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._model_version = 0
        self._updates = 0
        self._step_metrics: dict[str, float] = {}

    # TRL's RolloutWorkerProtocol

    def start(self) -> None:
        """Do nothing: no rollouts run ahead."""

    def stop(self) -> None:
        """Do nothing: no rollouts run ahead."""

    def update_model_version(self, model_version: int) -> None:
        """Set the version number that later rows carry."""
        self._model_version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Do nothing: an error of a rollout is raised where TRL asks for rows."""

    # TRL's WeightTransferProtocol

    def init_weight_transfer(self) -> None:
        """Do nothing: both models are in this process."""

    def pause(self) -> None:
        """Do nothing: no rollouts run while TRL learns."""

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Copy TRL's weights into the trainer's model. Raises `PolicyError` if names or shapes differ from it."""
        model = self.learner.model
        parameters = dict(model.named_parameters())
        new_weights = dict(iterator)
        new_shapes = {name: tensor.shape for name, tensor in new_weights.items()}
        shapes = {name: parameter.shape for name, parameter in parameters.items()}
        check_weights(new_shapes, shapes)
        with torch.no_grad():
            for name, tensor in new_weights.items():
                parameters[name].copy_(tensor)
        # By these version counters a sampler notices that its packed copy of the weights is stale.
        increment_version(model.parameters())
        self.trainer.sampler.sync(model, self._updates)
        self._updates += 1

    def resume(self) -> None:
        """Do nothing: see `pause`."""

    def destroy(self) -> None:
        """Do nothing: there is nothing to release."""

    # Steps

    def _make_samples(self) -> list[Any]:
        """Play the next step and return its `RolloutSample`s; after the last step these are only padding."""
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        # TRL asks for this step right before it learns from the previous one, so these metrics belong to its log row.
        if self._step_metrics:
            self.metrics_queue.put(self._step_metrics)
            self._step_metrics = {}
        rows = self._play_step() if self.trainer.next_step < self.trainer.config.steps else []
        groups = dict.fromkeys(row.group for row in rows)
        group_numbers = {group: number for number, group in enumerate(groups)}
        samples = []
        for batch in split_micro_batches(rows, self.rows, self.micro_batches):
            for row, advantage in batch:
                sample = RolloutSample(
                    prompt=[],
                    completion=[],
                    input_ids=row.token_ids,
                    completion_mask=row.mask.astype(np.int64),
                    old_log_probs=row.logprobs,
                    advantage=advantage,
                    model_version=self._model_version,
                    group_id=group_numbers.get(row.group, -1),
                    metrics={},
                )
                samples.append(sample)
        return samples

    def _play_step(self) -> list[TrlRow]:
        trainer = self.trainer
        config = trainer.config
        scheme = trainer.stages.credit
        step = trainer.next_step
        rollouts = trainer.produce(step)
        credit = assign_step_credit(scheme, rollouts.train_groups, rollouts.replayed)
        fit(scheme, rollouts.train_groups, None)
        trainer.account.spend(sampled=rollouts.sampled_tokens)
        (samples,) = split_into_mini_batches(
            rollouts.train_groups,
            credit.credits,
            1,
            denominator=config.denominator,
            constant=config.loss_denominator_tokens,
            planned_episodes=rollouts.planned_episodes,
            replayed=get_records(rollouts.replayed),
        )
        temperatures = list_temperatures(samples)
        assert all(np.isclose(temperature, config.temperature) for temperature in temperatures), temperatures
        trainer.next_step += 1
        metrics = {**compute_rollout_metrics(rollouts.groups), **rollouts.diagnostics(), **credit.diagnostics()}
        metrics["policy_lag"] = rollouts.staleness(step)
        self._step_metrics = {f"selfcest/{name}": value for name, value in metrics.items()}
        return build_rows(samples)


class _LazyQueue(queue.Queue[Any]):
    """A queue that calls `produce` for more items when `get` finds it empty."""

    def __init__(self, produce: Callable[[], Iterable[Any]]) -> None:
        super().__init__()
        self._produce = produce

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            for item in self._produce():
                self.put(item)
        return super().get(block, timeout)


def _get_clip_range(config: RLConfig) -> tuple[float, float]:
    """Get the lower and upper clip range of the ratio. Raises `ConfigError` for a loss that TRL's trainer lacks."""
    policy = make_loss_sum(config.loss).policy
    is_token_clipped = isinstance(policy, Clipped) and policy.delta is None and policy.level == "token"
    # The second isinstance is for the type checker.
    if not isinstance(policy, Clipped) or not is_token_clipped or config.loss.terms or config.loss.importance.on:
        raise ConfigError(
            f"rl.loss is {config.loss}; TRL's trainer only has `clipped` with level `token`, without delta, "
            "importance or terms"
        )
    if config.minibatches != 1:
        raise ConfigError(
            f"rl.minibatches is {config.minibatches}; TRL's trainer makes one update per step: set it to 1"
        )
    return policy.clip_low, policy.clip_high


@contextmanager
def open_trainer(config: RunConfig, variant: str, seed: int, model: Path | str) -> Iterator[Trainer]:
    """Open the `Trainer` of one job with weights from a folder, as a job's `warmstart_model`. It writes no files.

    The engine starts here and ends on leaving the context.

    Raises:
        ConfigError: the config is wrong for a run, or has an option that TRL's trainer ignores.
    """
    rl = config.variants[variant].rl
    _refuse_ignored_options(config, variant)
    language = language_of(config.model)
    spec = make_sampler(config.sampler.name, config.sampler.options)
    reward = make_reward(config.reward.name, **config.reward.options)
    check_contexts(config, variant, language, spec)
    stages = make_stages(rl, f"variants.{variant}.rl")
    families = make_families(config.tasks, "train")
    menu = make_task_menu(config, variant, families)
    check_menu(stages.tasks, menu)
    weights = language.load(seed, Path(model))
    sampler = spec.start(language, weights)
    player = ModelPlayer(language, sampler, limits=config.limits_of(variant), reward=reward)
    learner = Learner(weights, rl.optimizer, pad_id=0, micro_batch_tokens=config.micro_batch_tokens)
    account = JobAccount(TrainState(), rl, None)
    try:
        # The staleness of 1 comes from the order in which TRL asks for steps. The trainer itself runs none ahead.
        rl = replace(rl, max_staleness=0)
        with Trainer(player, sampler, learner, menu, stages, rl, account, seed=seed) as trainer:
            yield trainer
    finally:
        player.close()


def _refuse_ignored_options(config: RunConfig, variant: str) -> None:
    """Raise `ConfigError` for an option that TRL's trainer would ignore."""
    where = f"variants.{variant}.rl"
    rl = config.variants[variant].rl
    if rl.max_staleness > 1:
        raise ConfigError(f"{where}.max_staleness is {rl.max_staleness}; set it to 1: TRL's trainer always has 1")
    if rl.sampled_tokens is not None:
        raise ConfigError(f"{where}.sampled_tokens is {rl.sampled_tokens}; set it to null: TRL ends after rl.steps")
    if config.compute_tokens is not None:
        raise ConfigError(f"compute_tokens is {config.compute_tokens}; set it to null: TRL ends after rl.steps")
    if config.cluster is not None:
        raise ConfigError(f"cluster is {config.cluster}; set it to null: TRL's trainer has one process")
    if rl.probes:
        raise ConfigError(f"{where}.probes is {rl.probes}; set it to 0: TRL's trainer plays no probes")
    if config.lora is not None:
        raise ConfigError(f"lora is {config.lora}; set it to null, and give TRL a peft_config")


def make_async_grpo_trainer(
    worker: TrlRolloutWorker, model: Path | str, output_dir: Path | str, **arguments: Any
) -> AsyncGRPOTrainer:
    """Make TRL's trainer, on one process, for the rows of a worker. Its `.train()` trains `config.steps` steps.

    Args:
        worker: plays the steps.
        model: the folder of the weights that the worker's trainer began with, or a name that transformers loads.
        output_dir: TRL's `output_dir`.
        arguments: fields of `AsyncGRPOConfig` that do not follow from the worker. Learning rate, betas, weight decay
            and gradient clipping are by default those of the worker's trainer, without its schedule.

    Raises:
        ConfigError: TRL is not installed, there is more than one process, or an argument follows from the worker.
    """
    try:
        from datasets import Dataset
        from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    except ImportError as error:
        raise ConfigError(f"{error}; run: {install_hint('trl')}") from error
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise ConfigError(
            f"found WORLD_SIZE={processes}; rollouts and updates alternate in one process with this integration, "
            "so start one process only"
        )
    config = worker.trainer.config
    clip_low, clip_high = _get_clip_range(config)
    fixed = {
        "max_steps": config.steps,
        "temperature": config.temperature,
        "epsilon": clip_low,
        "epsilon_high": clip_high,
        # With another value TRL asks a vLLM server for the budget.
        "token_budget": 0,
        "per_device_train_batch_size": worker.rows,
        "gradient_accumulation_steps": worker.micro_batches,
        # TRL takes later micro-batches of a step after the update that the step was played before.
        "max_staleness": 1,
        "weight_sync_steps": 1,
    }
    optimizer = worker.learner.optimizer_config
    defaults = {
        "learning_rate": optimizer.learning_rate,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
    }
    for name in sorted(fixed.keys() & arguments):
        raise ConfigError(f"{name} follows from the run's config, here {fixed[name]!r}; set it there")
    return AsyncGRPOTrainer(
        model=str(model),
        args=AsyncGRPOConfig(str(output_dir), **{**defaults, **fixed, **arguments}),
        # TRL requires a data set, but takes its rows from the rollout worker.
        train_dataset=Dataset.from_dict({"prompt": [""]}),
        rollout_worker=worker,
        weight_transfer=worker,
    )
