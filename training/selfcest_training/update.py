"""One optimiser step. However many rows a mini-batch has, and however it is cut, it makes exactly one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_env.errors import ConfigError, TrainingError
from selfcest_training.batch import Sample, TokenBatch, collate
from selfcest_training.losses import clipped_surrogate, kl_to_reference, token_logprobs, weighted_sum
from selfcest_training.tree_rows import Rows, check_model, micro_batches, tree_logprobs


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW. `warmup_steps` rise linearly; `decay_share` is the last share of a run of known length that falls to 0."""

    learning_rate: float = 4e-4
    warmup_steps: int = 5
    decay_share: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        infinity = float("inf")
        for name, right, expected in (
            ("learning_rate", 0 < self.learning_rate < infinity, "a finite number > 0, as in 4e-4"),
            ("warmup_steps", self.warmup_steps >= 0, "a whole number >= 0 (0: full rate at once)"),
            ("decay_share", 0 <= self.decay_share <= 1, "a share between 0 and 1 (0: no decay)"),
            ("beta1", 0 <= self.beta1 < 1, "a number >= 0 and < 1, as in 0.9"),
            ("beta2", 0 <= self.beta2 < 1, "a number >= 0 and < 1, as in 0.95"),
            ("weight_decay", 0 <= self.weight_decay < infinity, "a finite number >= 0 (0: none)"),
            ("max_grad_norm", self.max_grad_norm > 0, "a number > 0 (.inf: no clipping)"),
        ):
            if not right:  # as every comparison with NaN
                raise ConfigError(f"optimizer.{name} is {getattr(self, name)!r}; expected {expected}")

    def rate(self, step: int, progress: float) -> float:
        """Learning rate of step `step` (from 0), at `progress` in [0, 1] of the run."""
        rate = self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps))
        if self.decay_share and progress > 1 - self.decay_share:
            rate *= max(0.02, (1 - progress) / self.decay_share)
        return rate


@dataclass(frozen=True)
class LossConfig:
    """The clipped surrogate and its optional KL to the warm start."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coefficient: float = 0.0

    def __post_init__(self) -> None:
        for name in ("clip_low", "clip_high"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"loss.{name} is {getattr(self, name)!r}; expected a number >= 0 (.inf: no clipping)")
        if not 0 <= self.kl_coefficient < float("inf"):
            raise ConfigError(f"loss.kl_coefficient is {self.kl_coefficient!r}; expected a finite number >= 0")


@dataclass(frozen=True)
class UpdateMetrics:
    """Numbers of one optimiser step; means are over the tokens that train.

    Attributes:
        trained_tokens: ids that went through forward and backward, prompts included, padding not; those that
            samples share in a tree row count once.
        max_logprob_gap: largest |log-prob now - behaviour log-prob|; before the first step on fresh samples this is the
            difference between sampler and learner.
    """

    loss: float
    grad_norm: float
    kl: float
    mean_ratio: float
    clip_share: float
    max_logprob_gap: float
    trained_tokens: int
    num_rows: int


def mean_metrics(steps: Sequence[UpdateMetrics]) -> dict[str, float]:
    """Means over the optimiser steps of one rollout, for the log; the gap is the first step's, rows are summed."""
    names = ("loss", "grad_norm", "kl", "mean_ratio", "clip_share")
    means = {name: sum(getattr(step, name) for step in steps) / len(steps) for name in names}
    return {**means, "logprob_gap": steps[0].max_logprob_gap, "rows": float(sum(step.num_rows for step in steps))}


# On fresh samples in float32 sampler and learner differ by rounding alone, about 1e-6; anything near this is a bug.
MAX_LOGPROB_GAP = 1e-2


def check_agreement(metrics: UpdateMetrics) -> None:
    """Raise `TrainingError` if the learner's log-probs of fresh samples are not the sampler's."""
    if metrics.max_logprob_gap > MAX_LOGPROB_GAP:
        raise TrainingError(
            f"sampler and learner disagree by {metrics.max_logprob_gap:.3g} in the log-prob of a token, more than "
            f"{MAX_LOGPROB_GAP}: the learner does not train on the ids, weights or temperature sampled with"
        )


class Learner:
    """A model and its optimiser.

    Args:
        model: a causal language model of transformers; shared with the sampler, which sees every step at once.
        optimizer: AdamW settings.
        pad_id: any id; pads are never seen.
        micro_batch_tokens: padded ids in one forward pass.
        reference: a frozen model for the KL term.
        rows: how `policy_step` lays out its samples.

    Raises:
        ConfigError: tree rows for a model whose attention cannot have them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerConfig,
        *,
        pad_id: int,
        micro_batch_tokens: int,
        reference: PreTrainedModel | None = None,
        rows: Rows = Rows.BUCKETED,
    ) -> None:
        if rows is Rows.TREE:
            check_model(model)
        self.model, self.config, self.reference = model, optimizer, reference
        self._pad_id, self._micro_batch_tokens, self._rows = pad_id, micro_batch_tokens, rows
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
        )
        self.num_steps = 0

    def policy_step(self, samples: Sequence[Sample], loss: LossConfig, progress: float = 0.0) -> UpdateMetrics:
        """Accumulate the surrogate's gradient over micro-batches and make one step.

        A mini-batch without a single row to train (every turn excluded) makes no step and says so: `num_rows` is 0.
        """
        if loss.kl_coefficient and self.reference is None:
            raise ConfigError("loss.kl_coefficient is set but there is no reference model to take the KL to")
        if not samples:
            return UpdateMetrics(0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0, 0)
        total = _Totals()
        for batch in self.micro_batches(samples):
            logprobs = self.logprobs(batch)
            per_token = clipped_surrogate(
                logprobs, batch.behavior_logprobs, batch.advantages, clip_low=loss.clip_low, clip_high=loss.clip_high
            )
            if loss.kl_coefficient:
                kl = kl_to_reference(logprobs, self._reference_logprobs(batch))
                per_token = per_token + loss.kl_coefficient * kl
                total.kl += float(kl.detach()[batch.loss_mask].sum())
            objective = weighted_sum(per_token, batch.weights, batch.loss_mask)
            torch.autograd.backward(objective)
            total.add(batch, logprobs.detach(), float(objective.detach()), loss)
        grad_norm = self._step(progress)
        count = max(1, total.tokens)
        return UpdateMetrics(
            loss=total.loss,
            grad_norm=grad_norm,
            kl=total.kl / count,
            mean_ratio=total.ratio / count,
            clip_share=total.clipped / count,
            max_logprob_gap=total.gap,
            trained_tokens=total.computed,
            num_rows=len(samples),
        )

    def imitation_step(self, samples: Sequence[Sample], progress: float) -> float:
        """One step of cross-entropy on demonstrations, mean over their generated tokens; returns that mean."""
        batch = collate(samples, self._pad_id)
        mean = -self.logprobs(batch)[batch.loss_mask].mean()
        torch.autograd.backward(mean)
        self._step(progress)
        return float(mean.detach())

    def micro_batches(self, samples: Sequence[Sample]) -> Iterator[TokenBatch]:
        """The batches in which `policy_step` accumulates its gradient."""
        return micro_batches(
            samples,
            self._rows,
            max_tokens=self._micro_batch_tokens,
            pad_id=self._pad_id,
            hidden_size=self.model.config.get_text_config().hidden_size,
        )

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """[B, T] log-probs of the batch's ids under the weights being trained, at the sampling temperature."""
        return _logprobs(self.model, batch)

    def _reference_logprobs(self, batch: TokenBatch) -> Tensor:
        assert self.reference is not None
        with torch.no_grad():
            return _logprobs(self.reference, batch)

    def _step(self, progress: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.num_steps, progress)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        if not torch.isfinite(norm):
            raise TrainingError(f"the gradient norm of step {self.num_steps} is {float(norm)}; lower learning_rate")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        return float(norm)


def _logprobs(model: PreTrainedModel, batch: TokenBatch) -> Tensor:
    if batch.tree is not None:
        return tree_logprobs(model, batch, batch.tree)
    logits = model(input_ids=batch.token_ids, use_cache=False).logits
    return token_logprobs(logits, batch.token_ids, batch.temperature)


class _Totals:
    """Sums over the micro-batches of one step."""

    def __init__(self) -> None:
        self.loss = self.kl = self.ratio = self.clipped = self.gap = 0.0
        self.tokens = self.computed = 0

    def add(self, batch: TokenBatch, logprobs: Tensor, loss: float, config: LossConfig) -> None:
        difference = (logprobs - batch.behavior_logprobs)[batch.loss_mask]
        ratio = difference.exp()
        self.loss += loss
        self.ratio += float(ratio.sum())
        self.clipped += float(((ratio < 1 - config.clip_low) | (ratio > 1 + config.clip_high)).sum())
        self.gap = max(self.gap, float(difference.abs().max()))
        self.tokens += difference.numel()
        self.computed += batch.num_tokens
