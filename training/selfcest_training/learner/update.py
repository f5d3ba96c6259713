"""One optimiser step. However many rows a mini-batch has, and however it is cut, it makes exactly one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from transformers import PreTrainedModel

from selfcest_agents.lora import without_lora
from selfcest_env.errors import ConfigError, TrainingError
from selfcest_training.learner.batch import Sample, TokenBatch
from selfcest_training.learner.forward import Forward
from selfcest_training.learner.losses import (
    LossInputs,
    LossSum,
    LossTerm,
    Need,
    importance_weights,
    make_loss_sum,
    weighted_sum,
)
from selfcest_training.learner.mismatch import Mismatch, flattened, measure
from selfcest_training.learner.options import ForwardOptions, Importance, LossConfig, OptimizerConfig, Rows
from selfcest_training.learner.tree_rows import check_model, micro_batches


@dataclass(frozen=True)
class UpdateMetrics:
    """Numbers of one optimiser step; means are over the tokens that train.

    Attributes:
        terms: of what is added to the policy's loss, by name, before its weight.
        mean_ratio: of exp(log-prob now - that of the reference point, see `reference_point`).
        clip_share: share of tokens with an advantage whose gradient the loss has cut to 0.
        max_logprob_gap, mean_logprob_gap: of |log-prob now - behaviour log-prob|; before the first step on fresh
            samples this is the difference between sampler and learner.
        temperature: the lowest that was sampled at; log-probs are off by what logits are, divided by it.
        mismatch: of the sampler and the learner as it was before the update, by role and depth; see `measure`.
        trained_tokens: ids that went through forward and backward, prompts included, padding not; those that
            samples share in a tree row count once.
    """

    loss: float
    grad_norm: float
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
    """Numbers of one step of the warm start; `trained_tokens` as in `UpdateMetrics`."""

    loss: float
    trained_tokens: int


def mean_metrics(steps: Sequence[UpdateMetrics]) -> dict[str, float]:
    """Means over the optimiser steps of one rollout, for the log.

    Gaps and mismatch are the first step's, whose learner is the one that the rollout began with; rows are summed. Steps
    without a row to train take no part; if all are, there is nothing but `rows`. Added terms are `loss/NAME`.
    """
    steps = [step for step in steps if step.num_rows]
    if not steps:
        return {"rows": 0.0}
    names = ("loss", "grad_norm", "mean_ratio", "clip_share")
    means = {name: sum(getattr(step, name) for step in steps) / len(steps) for name in names}
    terms = {f"loss/{name}": sum(step.terms[name] for step in steps) / len(steps) for name in steps[0].terms}
    first = steps[0]
    gaps = {"logprob_gap": first.max_logprob_gap, "mean_logprob_gap": first.mean_logprob_gap}
    return {**means, **terms, **gaps, **flattened(first.mismatch), "rows": float(sum(step.num_rows for step in steps))}


# On fresh samples in float32 sampler and learner differ by rounding alone, a few 1e-6 of the largest logit: 1e-6 for
# small models, 2e-4 for logits of 30; anything near this is a bug.
MAX_LOGPROB_GAP = 1e-2
# With bfloat16 on either side single tokens differ by up to 0.6, and the mean by up to 0.05 (vLLM on a CPU).
MEAN_LOGPROB_GAP = 0.25


def check_agreement(metrics: UpdateMetrics, exact: bool = True) -> None:
    """Raise `TrainingError` if the learner's log-probs of fresh samples are not the sampler's.

    `exact`: sampler and learner both compute in float32, so every token must agree; else their mean.
    """
    if exact:
        bound = MAX_LOGPROB_GAP / min(1.0, metrics.temperature)
        gap, where = metrics.max_logprob_gap, "in the log-prob of a token"
    else:
        gap, bound, where = metrics.mean_logprob_gap, MEAN_LOGPROB_GAP, "in log-prob on average over the tokens"
    if not gap <= bound:  # as every comparison with NaN
        raise TrainingError(
            f"sampler and learner disagree by {gap:.3g} {where}, more than {bound:.3g}: the learner does not train on "
            "the ids, weights or temperature sampled with"
        )


def reference_point(importance: Importance, batch: TokenBatch, logprobs: Tensor) -> Tensor:
    """[B, T] log-probs that the loss takes the ratio against; `logprobs` are the learner's now.

    The sampler's, or with importance weights the learner's own from before the rollout's first update: those of the
    samples if they were frozen, else those of now.
    """
    if not importance.on:
        return batch.behavior_logprobs
    return logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs


class Learner:
    """A model and its optimiser.

    Args:
        model: a causal language model of transformers; shared with the sampler, which sees every step at once.
        optimizer: AdamW settings.
        pad_id: any id; pads are never seen.
        micro_batch_tokens: padded ids in one forward pass.
        reference: a frozen model, for terms that need it; with LoRA the model itself, whose adapter is then left out.
        rows: how samples are laid out.
        forward: how the models are computed.

    Raises:
        ConfigError: a model that cannot be computed in such rows or with these options.
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
        forward: ForwardOptions = ForwardOptions(),
    ) -> None:
        check_model(model, rows)
        self.model, self.config, self.reference = model, optimizer, reference
        self._forward = Forward(model, forward)
        self._reference_forward = None if reference is None else Forward(reference, forward)
        self.pad_id, self._micro_batch_tokens, self._rows = pad_id, micro_batch_tokens, rows
        self.optimizer = torch.optim.AdamW(
            [weight for weight in model.parameters() if weight.requires_grad],
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
            fused=True,  # a tenth of the time on a CPU
        )
        self.num_steps = 0
        self._loss: tuple[LossConfig, LossSum] | None = None

    @property
    def exact(self) -> bool:
        """Whether it computes in float32, so that a float32 sampler must agree with it token for token."""
        return self._forward.options.exact and self.model.dtype == torch.float32

    def freeze(self, minibatches: Sequence[Sequence[Sample]], loss: LossConfig) -> list[Sequence[Sample]]:
        """The mini-batches of one rollout, ready for one `policy_step` each; to be called before the first.

        With importance weights, samples of later mini-batches get the log-probs of the weights as they are now. The
        first needs none: its step begins with these weights.
        """
        if not loss.importance.on:
            return list(minibatches)
        with torch.no_grad():
            later = [
                [sample for batch in self.micro_batches(samples) for sample in batch.measured(self.logprobs(batch))]
                for samples in minibatches[1:]
            ]
        return [*minibatches[:1], *later]

    def policy_step(self, samples: Sequence[Sample], loss: LossConfig, progress: float = 0.0) -> UpdateMetrics:
        """Accumulate the loss's gradient over micro-batches and make one step.

        A mini-batch without a single row to train (every turn excluded) makes no step and says so: `num_rows` is 0.
        """
        built = self._built(loss)
        if Need.REFERENCE in built.needs and self.reference is None:
            raise ConfigError("a term of the loss needs the reference model, and there is none")
        total = _Totals(built.added)
        if not samples:
            return total.metrics(grad_norm=0.0)
        for batch in self.micro_batches(samples):
            inputs = self._inputs(batch, loss.importance, built.needs)
            per_token, cut = self._surrogate(loss, built.policy, inputs)
            for name, (weight, term) in built.added.items():
                value = _checked(name, term(inputs), inputs)
                per_token = per_token + weight * value
                total.terms[name] += float(value.detach()[batch.loss_mask].sum())
            objective = weighted_sum(per_token, batch.weights, batch.loss_mask)
            torch.autograd.backward(objective)
            total.loss += float(objective.detach())
            total.add(batch, inputs.logprobs.detach(), inputs.old_logprobs, cut)
        return total.metrics(grad_norm=self._step(progress))

    def imitation_step(self, samples: Sequence[Sample], progress: float) -> ImitationMetrics:
        """One step of cross-entropy on demonstrations, mean over their generated tokens."""
        count = sum(int(sample.loss_mask.sum()) for sample in samples)
        loss, computed = 0.0, 0
        for batch in self.micro_batches(samples):
            mean = -self.logprobs(batch)[batch.loss_mask].sum() / count
            torch.autograd.backward(mean)
            loss += float(mean.detach())
            computed += batch.num_tokens
        self._step(progress)
        return ImitationMetrics(loss, computed)

    def micro_batches(self, samples: Sequence[Sample]) -> Iterator[TokenBatch]:
        """The batches in which `policy_step` accumulates its gradient."""
        batches = micro_batches(
            samples,
            self._rows,
            max_tokens=self._micro_batch_tokens,
            pad_id=self.pad_id,
            hidden_size=None if self._forward.in_blocks else self.model.config.get_text_config().hidden_size,
        )
        return (batch.to(self.model.device) for batch in batches)

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """[B, T] log-probs of the ids that train under the weights being trained, at the sampling temperature."""
        return self._forward.logprobs(batch)

    @torch.no_grad()
    def logprobs_and_entropy(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """[B, T] each, as `logprobs`, and of the distributions that the ids were drawn from."""
        return self._forward.logprobs_and_entropy(batch)

    @torch.no_grad()
    def hidden(self, batch: TokenBatch) -> Tensor:
        """[M, H] hidden state of the last layer at the token before each id that trains, in their order."""
        return self._forward.hidden(batch)

    def _built(self, config: LossConfig) -> LossSum:
        if self._loss is None or self._loss[0] is not config:
            self._loss = config, make_loss_sum(config)
        return self._loss[1]

    def _inputs(self, batch: TokenBatch, importance: Importance, needs: Collection[Need]) -> LossInputs:
        entropy = None
        if Need.ENTROPY in needs:
            logprobs, entropy = self._forward.logprobs_and_entropy(batch)
        else:
            logprobs = self.logprobs(batch)
        depths = [[sample.agent_id.depth] for sample in batch.samples]
        return LossInputs(
            logprobs,
            reference_point(importance, batch, logprobs),
            batch.behavior_logprobs,
            batch.advantages,
            batch.loss_mask,
            torch.tensor(depths, device=logprobs.device),
            self._reference_logprobs(batch) if Need.REFERENCE in needs else None,
            entropy,
        )

    def _surrogate(self, config: LossConfig, term: LossTerm, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        """[B, T] the policy's term with its importance weight, and where it has cut its own gradient to 0."""
        per_token = _checked(config.name, term(inputs), inputs)
        if not per_token.requires_grad:
            raise TrainingError(f"the loss '{config.name}' does not depend on inputs.logprobs; it has nothing to teach")
        (slope,) = torch.autograd.grad(per_token.sum(), inputs.logprobs, retain_graph=True)
        cut = (slope == 0) & (inputs.advantages != 0)
        weights = importance_weights(config.importance, inputs.old_logprobs, inputs.behavior_logprobs, inputs.loss_mask)
        return weights * per_token, cut

    def _reference_logprobs(self, batch: TokenBatch) -> Tensor:
        assert self.reference is not None
        assert self._reference_forward is not None
        with torch.no_grad(), without_lora(self.reference):
            return self._reference_forward.logprobs(batch)

    def _step(self, progress: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.num_steps, progress)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        if not torch.isfinite(norm):
            raise TrainingError(f"the gradient norm of step {self.num_steps} is {float(norm)}; lower learning_rate")
        self.optimizer.step()
        increment_version(self.model.parameters())  # fused AdamW does not, and a sampler packs what has changed
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        return float(norm)


def _checked(name: str, per_token: Tensor, inputs: LossInputs) -> Tensor:
    if per_token.shape != inputs.logprobs.shape:
        raise TrainingError(
            f"the loss '{name}' returned shape {tuple(per_token.shape)} for log-probs of shape "
            f"{tuple(inputs.logprobs.shape)}; it must return one number per token"
        )
    return per_token


class _Totals:
    """Sums over the micro-batches of one step."""

    def __init__(self, terms: Iterable[str]) -> None:
        self.terms = dict.fromkeys(terms, 0.0)
        self.loss = self.ratio = self.cut = self.gap = self.max_gap = 0.0
        self.temperature = math.inf
        self.tokens = self.computed = 0
        self.measured: list[Sample] = []

    def add(self, batch: TokenBatch, logprobs: Tensor, old: Tensor, cut: Tensor) -> None:
        gap = (logprobs - batch.behavior_logprobs)[batch.loss_mask].abs()
        self.ratio += float((logprobs - old)[batch.loss_mask].exp().sum())
        self.cut += float(cut[batch.loss_mask].sum())
        self.gap += float(gap.sum())
        self.max_gap = max(self.max_gap, float(gap.max()))
        self.temperature = min(self.temperature, float(batch.temperature[batch.loss_mask].min()))
        self.tokens += gap.numel()
        self.computed += batch.num_tokens
        self.measured += batch.measured(logprobs) if batch.old_logprobs is None else batch.samples

    def metrics(self, grad_norm: float) -> UpdateMetrics:
        count = max(1, self.tokens)
        return UpdateMetrics(
            loss=self.loss,
            grad_norm=grad_norm,
            terms={name: value / count for name, value in self.terms.items()},
            mean_ratio=self.ratio / count if self.tokens else 1.0,
            clip_share=self.cut / count,
            max_logprob_gap=self.max_gap,
            mean_logprob_gap=self.gap / count,
            temperature=self.temperature,
            mismatch=measure(self.measured),
            trained_tokens=self.computed,
            num_rows=len(self.measured),
        )
