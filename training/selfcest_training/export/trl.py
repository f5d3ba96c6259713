"""TRL's `AsyncGRPOTrainer` makes the updates; the player, the engine and the credit of this project make its rows.

A row is a context and those of its turns that share one advantage. Its loss is a mean over the tokens of a micro-batch,
ours a sum over a denominator that counts episodes; both are of first degree in a positive factor of the advantage. So
a row's advantage is multiplied by what its tokens weigh in our loss and by what TRL will divide by, and the gradients
are the same. TRL wants the same number of rows in every step: the others train nothing and are in no denominator.

TRL asks for step s + 1 before it learns from step s, so step s is played with the weights of step s - 1, never others.
Nothing overlaps: a step is played when it is asked for.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator, Sequence
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
from selfcest_training.export.stored import group_of
from selfcest_training.families import make_families
from selfcest_training.learner.batch import Sample, mini_batches
from selfcest_training.learner.losses import Clipped, make_loss_sum
from selfcest_training.learner.update import Learner
from selfcest_training.run.account import JobAccount
from selfcest_training.run.checkpoint import TrainState
from selfcest_training.run.job import check_contexts
from selfcest_training.run.metrics import describe
from selfcest_training.stages.checks import check_menu
from selfcest_training.stages.crediting import credit_step, records_of
from selfcest_training.stages.registry import make_stages, task_menu
from selfcest_training.trainer import Trainer

if TYPE_CHECKING:
    from trl.experimental.async_grpo import AsyncGRPOTrainer


@dataclass(frozen=True)
class TrlRow:
    """A context, and those of its trained tokens that share one advantage. Arrays are [T], aligned.

    Attributes:
        token_ids: of the whole context.
        mask: True where a token is trained by this row.
        logprobs: of the sampler, 0 where the mask is False.
        advantage: that of credit times the weight of a token in our loss.
        group: see `group_of`; empty for a row without a gradient.
    """

    token_ids: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    advantage: float
    group: str

    @property
    def trained(self) -> int:
        return int(self.mask.sum())


def idle_row(trained: int) -> TrlRow:
    """A row without a gradient: of one token, or of two if one must count as trained."""
    mask = np.array([False, True]) if trained else np.array([False])
    return TrlRow(np.zeros(len(mask), np.int64), mask, np.zeros(len(mask), np.float32), 0.0, "")


def rows_of(samples: Sequence[Sample]) -> list[TrlRow]:
    """One row per context and distinct advantage, those of a context together."""
    rows = []
    for sample in samples:
        advantages = sample.advantages.astype(np.float64) * sample.weight
        for advantage in np.unique(advantages[sample.loss_mask]):
            mask = sample.loss_mask & (advantages == advantage)
            logprobs = np.where(mask, sample.behavior_logprobs, 0).astype(np.float32)
            rows.append(TrlRow(sample.token_ids, mask, logprobs, float(advantage), group_of(sample.episode_id)))
    return rows


def micro_batches(rows: Sequence[TrlRow], size: int, count: int) -> list[list[tuple[TrlRow, float]]]:
    """Rows of one optimiser step in `count` micro-batches of `size`, each with the advantage that it has in TRL.

    TRL divides a micro-batch's sum by its trained tokens and by `count`; both are multiplied in here.

    Raises:
        TrainingError: there are more rows than places.
    """
    if len(rows) > size * count:
        raise TrainingError(
            f"a step has {len(rows)} rows, and TRL was promised {count} micro-batches of {size}; raise `rows` or "
            "`micro_batches`, or lower rl.tasks_per_step or rl.group_size"
        )
    ends = [i * len(rows) // count for i in range(count + 1)]
    batches = []
    for start, end in pairwise(ends):
        batch = list(rows[start:end])
        batch += [idle_row(trained=int(not batch and i == 0)) for i in range(size - len(batch))]
        divisor = sum(row.trained for row in batch) * count
        batches.append([(row, row.advantage * divisor) for row in batch])
    return batches


class Rollouts:
    """The steps of a `Trainer` as TRL's `rollout_worker`, and its weights as TRL's `weight_transfer`.

    Args:
        trainer: plays and credits; its own updates are not made, and its learner's model holds what TRL sends.
        rows: of a micro-batch.
        micro_batches: of a step.

    Raises:
        ConfigError: a stage or a loss that TRL's trainer cannot carry out.
    """

    def __init__(self, trainer: Trainer, *, rows: int, micro_batches: int = 1) -> None:
        _clipping(trainer.config)
        if trainer.stages.credit.internals:
            raise ConfigError(
                f"credit scheme '{trainer.stages.credit.name}' looks into the learner, which is TRL's here; take a "
                "scheme that needs records alone"
            )
        if not isinstance(trainer.learner, Learner):
            raise ConfigError(
                "the trainer learns on ranks of its own, and TRL sends its weights to a model of this process"
            )
        if has_lora(trainer.learner.model):
            raise ConfigError("the trainer's model has a LoRA adapter; give one without, and TRL its own peft_config")
        self.trainer, self.learner = trainer, trainer.learner
        self.rows, self.micro_batches = rows, micro_batches
        self.rollout_buffer: queue.Queue[Any] = _OnDemand(self._next)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._version = self._updates = 0
        self._found: dict[str, float] = {}

    # TRL's RolloutWorkerProtocol

    def start(self) -> None:
        """Nothing runs ahead."""

    def stop(self) -> None:
        """Nothing runs on."""

    def update_model_version(self, model_version: int) -> None:
        """Later rows carry this number."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Steps are played by who asks for them, where an error is raised at once."""

    # TRL's WeightTransferProtocol

    def init_weight_transfer(self) -> None:
        """The weights go from one model of this process to another."""

    def pause(self) -> None:
        """Nothing plays while TRL learns."""

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Copy TRL's weights into the trainer's model. Raises `PolicyError` unless they are that model's."""
        model = self.learner.model
        own, given = dict(model.named_parameters()), dict(iterator)
        check_weights(*({name: tensor.shape for name, tensor in side.items()} for side in (given, own)))
        with torch.no_grad():
            for name, tensor in given.items():
                own[name].copy_(tensor)
        increment_version(model.parameters())
        self.trainer.sampler.sync(model, self._updates)
        self._updates += 1

    def resume(self) -> None:
        """See `pause`."""

    def destroy(self) -> None:
        """There is nothing to release."""

    # Steps

    def _next(self) -> list[Any]:
        """The `RolloutSample`s of the next step; behind the last one some that nobody learns from."""
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        if self._found:  # of the step before, which TRL is about to learn from
            self.metrics_queue.put(self._found)
            self._found = {}
        rows = self._play() if self.trainer.next_step < self.trainer.config.steps else []
        names = {name: i for i, name in enumerate(dict.fromkeys(row.group for row in rows))}
        return [
            RolloutSample(
                prompt=[],
                completion=[],
                input_ids=row.token_ids,
                completion_mask=row.mask.astype(np.int64),
                old_log_probs=row.logprobs,
                advantage=advantage,
                model_version=self._version,
                group_id=names.get(row.group, -1),
                metrics={},
            )
            for batch in micro_batches(rows, self.rows, self.micro_batches)
            for row, advantage in batch
        ]

    def _play(self) -> list[TrlRow]:
        trainer, config, scheme = self.trainer, self.trainer.config, self.trainer.stages.credit
        step = trainer.next_step
        rollouts = trainer.produce(step)
        credit = credit_step(scheme, rollouts.train_groups, rollouts.replayed)
        fit(scheme, rollouts.train_groups, None)
        trainer.account.spend(sampled=rollouts.sampled_tokens)
        (samples,) = mini_batches(
            rollouts.train_groups,
            credit.credits,
            1,
            denominator=config.denominator,
            constant=config.loss_denominator_tokens,
            planned_episodes=rollouts.planned_episodes,
            replayed=records_of(rollouts.replayed),
        )
        hot = sorted({float(value) for sample in samples for value in sample.temperature[sample.loss_mask]})
        assert all(np.isclose(value, config.temperature) for value in hot), hot
        trainer.next_step += 1
        found = {**describe(rollouts.groups), **rollouts.diagnostics(), **credit.diagnostics()}
        found["policy_lag"] = rollouts.staleness(step)
        self._found = {f"selfcest/{name}": value for name, value in found.items()}
        return rows_of(samples)


class _OnDemand(queue.Queue[Any]):
    """A queue that is filled by who finds it empty."""

    def __init__(self, fill: Any) -> None:
        super().__init__()
        self._fill = fill

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            for item in self._fill():
                self.put(item)
        return super().get(block, timeout)


def _clipping(config: RLConfig) -> tuple[float, float]:
    """Lower and upper bound of the loss's ratio. Raises `ConfigError` for a config that TRL's trainer does not have."""
    policy = make_loss_sum(config.loss).policy
    plain = isinstance(policy, Clipped) and policy.delta is None and policy.level == "token"
    if not isinstance(policy, Clipped) or not plain or config.loss.terms or config.loss.importance.on:
        raise ConfigError(
            f"rl.loss is {config.loss}; TRL's trainer has `clipped` by token alone: no delta, importance or terms"
        )
    if config.minibatches != 1:
        raise ConfigError(
            f"rl.minibatches is {config.minibatches}; TRL's trainer makes one update of a step: set it to 1"
        )
    return policy.clip_low, policy.clip_high


@contextmanager
def opened_trainer(config: RunConfig, variant: str, seed: int, model: Path | str) -> Iterator[Trainer]:
    """The `Trainer` of one job of a run's config, from a folder of weights, as `warmstart_model` of a job.

    Its engine is started here and ended on leaving. Nothing is written.

    Raises:
        ConfigError: as for the run, and for what TRL would not heed.
    """
    rl, language = config.variants[variant].rl, language_of(config.model)
    for name, found, expected in (
        (
            f"variants.{variant}.rl.max_staleness",
            rl.max_staleness if rl.max_staleness > 1 else None,
            "1, as it always is with TRL's trainer",
        ),
        (f"variants.{variant}.rl.sampled_tokens", rl.sampled_tokens, "null: TRL ends after rl.steps"),
        ("compute_tokens", config.compute_tokens, "null: TRL ends after rl.steps"),
        ("lora", config.lora, "null, and give TRL a peft_config"),
    ):
        if found is not None:
            raise ConfigError(f"{name} is {found}; set it to {expected}")
    spec, reward = (
        make_sampler(config.sampler.name, config.sampler.options),
        make_reward(config.reward.name, **config.reward.options),
    )
    check_contexts(config, variant, language, spec)
    stages, families = make_stages(rl, f"variants.{variant}.rl"), make_families(config.tasks, "train")
    menu = task_menu(config, variant, families)
    check_menu(stages.tasks, menu)
    weights = language.load(seed, Path(model))
    sampler = spec.start(language, weights)
    player = ModelPlayer(language, sampler, limits=config.limits_of(variant), reward=reward)
    learner = Learner(weights, rl.optimizer, pad_id=0, micro_batch_tokens=config.micro_batch_tokens)
    account = JobAccount(TrainState(), rl, None)
    try:
        rl = replace(rl, max_staleness=0)  # the trainer itself runs nothing ahead
        with Trainer(player, sampler, learner, menu, stages, rl, account, seed=seed) as trainer:
            yield trainer
    finally:
        player.close()


def async_grpo_trainer(
    rollouts: Rollouts, model: Path | str, output_dir: Path | str, **arguments: Any
) -> AsyncGRPOTrainer:
    """TRL's trainer with these rollouts, on one process; `.train()` trains `config.steps` steps.

    Args:
        rollouts: what it learns from.
        model: the folder that the rollouts' trainer began with, or a name that transformers loads.
        output_dir: TRL's.
        arguments: fields of `AsyncGRPOConfig`; those that the rollouts decide are refused. Rates, moments, decay and
            clipping of the optimiser are by default those of the trainer's, without its schedule.

    Raises:
        ConfigError: TRL is not installed, more than one process, or an argument that is not to be set.
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
    config = rollouts.trainer.config
    low, high = _clipping(config)
    ours = {
        "max_steps": config.steps,
        "temperature": config.temperature,
        "epsilon": low,
        "epsilon_high": high,
        "token_budget": 0,  # else it asks a server of vLLM for one
        "per_device_train_batch_size": rollouts.rows,
        "gradient_accumulation_steps": rollouts.micro_batches,
        "max_staleness": 1,  # later micro-batches of a step are taken after the update that it was played before
        "weight_sync_steps": 1,
    }
    optimizer = rollouts.learner.config
    defaults = {
        "learning_rate": optimizer.learning_rate,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
    }
    if clash := sorted(ours.keys() & arguments):
        raise ConfigError(f"{clash[0]} follows from the rollouts, here {ours[clash[0]]!r}; set it there")
    return AsyncGRPOTrainer(
        model=str(model),
        args=AsyncGRPOConfig(str(output_dir), **{**defaults, **ours, **arguments}),
        train_dataset=Dataset.from_dict({"prompt": [""]}),  # it wants one, and reads nothing of it
        rollout_worker=rollouts,
        weight_transfer=rollouts,
    )
