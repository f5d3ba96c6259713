"""The metrics of an optimiser step: sums over micro-batches, their combination, and a check that they allow.

Ranks send the sums of their micro-batches to each other, so that every rank has the metrics of the whole step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from selfcest_env.errors import TrainingError
from selfcest_training.learner.batch import Sample, TokenBatch
from selfcest_training.learner.mismatch import Mismatch, flatten_mismatch, measure_mismatch


@dataclass(frozen=True)
class UpdateMetrics:
    """Metrics of one optimiser step. Means are taken over the trained tokens.

    Attributes:
        loss: value of the whole loss, after weights and denominator.
        grad_norm: norm of the whole gradient before clipping.
        role_grad_norms: norm per role before clipping, where each role has an adapter of its own; else empty.
        terms: mean of each added loss term by name, before its weight.
        mean_ratio: mean of the loss's ratio exp(log-prob now - old log-prob); see `update.select_old_logprobs`.
        clip_share: share of tokens with an advantage whose gradient the loss has cut to 0.
        max_logprob_gap, mean_logprob_gap: of |log-prob now - behaviour log-prob|. Before the first update on fresh
            samples this is the difference between sampler and learner.
        temperature: the lowest sampling temperature. The error of a log-prob is the error of the logits divided by it.
        mismatch: between the sampler and the learner before the update, by role and depth; see `measure_mismatch`.
        trained_tokens: ids that went through forward and backward, prompts included, padding excluded. Ids that
            samples share in a tree row count once.
        num_rows: trained samples.
    """

    loss: float
    grad_norm: float
    role_grad_norms: Mapping[str, float]
    terms: Mapping[str, float]
    mean_ratio: float
    clip_share: float
    max_logprob_gap: float
    mean_logprob_gap: float
    temperature: float
    mismatch: Mapping[str, Mismatch]
    trained_tokens: int
    num_rows: int


@dataclass(frozen=True)
class ImitationMetrics:
    """Metrics of one step of the warm start; `trained_tokens` as in `UpdateMetrics`."""

    loss: float
    trained_tokens: int


def average_metrics(steps: Sequence[UpdateMetrics]) -> dict[str, float]:
    """Average the metrics of a rollout's optimiser steps for the log.

    Log-prob gaps and mismatch are those of the first step, since its learner is the one that sampled. Row counts are
    summed. Steps without a trained row are left out; if there is no other, the result has `rows` only.

    Returns:
        Metrics by name; added loss terms are `loss/NAME`, gradient norms of a role `grad_norm/ROLE`.
    """
    steps = [step for step in steps if step.num_rows]
    if not steps:
        return {"rows": 0.0}
    first = steps[0]
    means: dict[str, float] = {}
    for name in ("loss", "grad_norm", "mean_ratio", "clip_share"):
        means[name] = sum(getattr(step, name) for step in steps) / len(steps)
    for name in first.terms:
        means[f"loss/{name}"] = sum(step.terms[name] for step in steps) / len(steps)
    for role in first.role_grad_norms:
        means[f"grad_norm/{role}"] = sum(step.role_grad_norms[role] for step in steps) / len(steps)
    means["logprob_gap"] = first.max_logprob_gap
    means["mean_logprob_gap"] = first.mean_logprob_gap
    means.update(flatten_mismatch(first.mismatch))
    means["rows"] = float(sum(step.num_rows for step in steps))
    return means


# On fresh samples in float32 sampler and learner differ by rounding, a few 1e-6 of the largest logit: 1e-6 for
# small models, 2e-4 for logits of 30. A gap near this bound is a bug.
MAX_LOGPROB_GAP = 1e-2
# With bfloat16 on either side single tokens differ by up to 0.6, and the mean by up to 0.05 (vLLM on a CPU).
MEAN_LOGPROB_GAP = 0.25


def check_agreement(metrics: UpdateMetrics, exact: bool = True) -> None:
    """Raise `TrainingError` if the learner's log-probs of fresh samples are not the sampler's.

    Args:
        metrics: of the first optimiser step after a rollout.
        exact: sampler and learner both compute in float32, so every token must agree; else the mean must.
    """
    if exact:
        bound = MAX_LOGPROB_GAP / min(1.0, metrics.temperature)
        gap = metrics.max_logprob_gap
        measure = "in the log-prob of a token"
    else:
        bound = MEAN_LOGPROB_GAP
        gap = metrics.mean_logprob_gap
        measure = "in log-prob on average over the tokens"
    # `not <=` instead of `>`: a gap that is NaN must fail too.
    if not gap <= bound:
        raise TrainingError(
            f"sampler and learner disagree by {gap:.3g} {measure}, more than {bound:.3g}: the learner does not train "
            "on the ids, weights or temperature that the sampler used"
        )


@dataclass(frozen=True)
class MicroBatchSums:
    """Sums over the trained tokens of one micro-batch, from which `UpdateMetrics` are computed.

    Attributes:
        loss: the micro-batch's part of the objective.
        terms: sum of each added term by name.
        ratio, clipped, gap: sums of the ratio, of clipped tokens, and of |log-prob - behaviour log-prob|.
        max_gap: the largest |log-prob - behaviour log-prob|.
        temperature: the lowest.
        num_trained: trained tokens.
        num_tokens: ids that the model computed, padding excluded.
        learner_logprobs: per sample, the learner's log-probs, for the mismatch; `None` where the samples have
            `old_logprobs`.
    """

    loss: float
    terms: Mapping[str, float]
    ratio: float
    clipped: float
    gap: float
    max_gap: float
    temperature: float
    num_trained: int
    num_tokens: int
    learner_logprobs: list[np.ndarray] | None

    @classmethod
    def of(
        cls,
        batch: TokenBatch,
        loss: float,
        terms: Mapping[str, float],
        logprobs: Tensor,
        old_logprobs: Tensor,
        clipped: Tensor,
    ) -> MicroBatchSums:
        """Sum over the batch; `logprobs`, `old_logprobs` of the loss and `clipped` are [B, T]."""
        trained = batch.loss_mask
        gap = (logprobs - batch.behavior_logprobs)[trained].abs()
        return cls(
            loss=loss,
            terms=terms,
            ratio=float((logprobs - old_logprobs)[trained].exp().sum()),
            clipped=float(clipped[trained].sum()),
            gap=float(gap.sum()),
            max_gap=float(gap.max()),
            temperature=float(batch.temperature[trained].min()),
            num_trained=gap.numel(),
            num_tokens=batch.num_tokens,
            learner_logprobs=batch.unpad(logprobs) if batch.old_logprobs is None else None,
        )


def combine_metrics(
    results: Sequence[tuple[Sequence[Sample], MicroBatchSums]],
    terms: Iterable[str],
    grad_norm: float,
    role_grad_norms: Mapping[str, float],
) -> UpdateMetrics:
    """Combine the sums of a step's micro-batches into its metrics."""
    all_sums = [sums for _, sums in results]
    num_trained = sum(sums.num_trained for sums in all_sums)
    divisor = max(1, num_trained)
    samples_with_old: list[Sample] = []
    for samples, sums in results:
        for i, sample in enumerate(samples):
            if sums.learner_logprobs is not None:
                sample = replace(sample, old_logprobs=sums.learner_logprobs[i])
            samples_with_old.append(sample)
    mean_terms: dict[str, float] = {}
    for name in terms:
        mean_terms[name] = sum((sums.terms[name] for sums in all_sums), 0.0) / divisor
    return UpdateMetrics(
        loss=sum((sums.loss for sums in all_sums), 0.0),
        grad_norm=grad_norm,
        role_grad_norms=role_grad_norms,
        terms=mean_terms,
        mean_ratio=sum(sums.ratio for sums in all_sums) / divisor if num_trained else 1.0,
        clip_share=sum((sums.clipped for sums in all_sums), 0.0) / divisor,
        max_logprob_gap=max((sums.max_gap for sums in all_sums), default=0.0),
        mean_logprob_gap=sum((sums.gap for sums in all_sums), 0.0) / divisor,
        temperature=min((sums.temperature for sums in all_sums), default=math.inf),
        mismatch=measure_mismatch(samples_with_old),
        trained_tokens=sum(sums.num_tokens for sums in all_sums),
        num_rows=len(samples_with_old),
    )
