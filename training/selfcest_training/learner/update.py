"""One optimiser step. However many rows a mini-batch has, and however it is cut, it makes exactly one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from transformers import PreTrainedModel

from selfcest_agents.lora import (
    acting_as,
    has_roles,
    load_trainable_state,
    merged_weights,
    parameters_by_role,
    without_lora,
)
from selfcest_agents.samplers import TakesWeights
from selfcest_env.errors import ConfigError, TrainingError
from selfcest_env.types import Role
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
from selfcest_training.learner.state import LearnerState
from selfcest_training.learner.tree_rows import MicroBatch, check_model, cut


@dataclass(frozen=True)
class UpdateMetrics:
    """Numbers of one optimiser step; means are over the tokens that train.

    Attributes:
        grad_norm: of the whole gradient, before it is clipped.
        role_grad_norms: likewise, of each role's adapter where there is one per role, which is clipped by itself.
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
    """Numbers of one step of the warm start; `trained_tokens` as in `UpdateMetrics`."""

    loss: float
    trained_tokens: int


def mean_metrics(steps: Sequence[UpdateMetrics]) -> dict[str, float]:
    """Means over the optimiser steps of one rollout, for the log.

    Gaps and mismatch are the first step's, whose learner is the one that the rollout began with; rows are summed. Steps
    without a row to train take no part; if all are, there is nothing but `rows`. Added terms are `loss/NAME`, norms of
    a role's gradient `grad_norm/ROLE`.
    """
    steps = [step for step in steps if step.num_rows]
    if not steps:
        return {"rows": 0.0}
    names = ("loss", "grad_norm", "mean_ratio", "clip_share")
    means = {name: sum(getattr(step, name) for step in steps) / len(steps) for name in names}
    terms = {f"loss/{name}": sum(step.terms[name] for step in steps) / len(steps) for name in steps[0].terms}
    terms |= {
        f"grad_norm/{role}": sum(step.role_grad_norms[role] for step in steps) / len(steps)
        for role in steps[0].role_grad_norms
    }
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


class Reading(StrEnum):
    """What `Learner.read` gives of a sample of T ids, M of which train, as one array.

    LOGPROBS: [T], see `Forward.logprobs`.
    ENTROPY: [2, T], log-probs, and in the same way entropies of the distributions that the ids were drawn from.
    HIDDEN: [M, H] hidden state of the last layer at the token before each id that trains.
    """

    LOGPROBS = "logprobs"
    ENTROPY = "entropy"
    HIDDEN = "hidden"


class AnyLearner(Protocol):
    """What trainer, warm start and job ask of a learner, in this process or elsewhere; see `Learner`."""

    pad_id: int
    num_steps: int

    @property
    def exact(self) -> bool: ...

    def freeze(self, minibatches: Sequence[Sequence[Sample]], loss: LossConfig) -> list[Sequence[Sample]]: ...

    def policy_step(self, samples: Sequence[Sample], loss: LossConfig, progress: float = 0.0) -> UpdateMetrics: ...

    def imitation_step(self, samples: Sequence[Sample], progress: float) -> ImitationMetrics: ...

    def read(self, samples: Sequence[Sample], what: Reading) -> tuple[list[np.ndarray], int]: ...

    def sync(self, sampler: TakesWeights, policy_version: int) -> None: ...

    def weights(self) -> Iterator[tuple[str, Tensor]]: ...

    def state(self) -> LearnerState: ...

    def restore(self, state: LearnerState, num_steps: int) -> None: ...

    def fill(self, model: PreTrainedModel) -> None: ...


def freeze(learner: AnyLearner, minibatches: Sequence[Sequence[Sample]], loss: LossConfig) -> list[Sequence[Sample]]:
    """The mini-batches of one rollout, ready for one `policy_step` each; to be called before the first.

    With importance weights, samples of later mini-batches get the log-probs of the weights as they are now. The first
    needs none: its step begins with these weights.
    """
    if not loss.importance.on:
        return list(minibatches)
    later = []
    for samples in minibatches[1:]:
        read, _ = learner.read(samples, Reading.LOGPROBS)
        later.append([replace(sample, old_logprobs=row) for sample, row in zip(samples, read, strict=True)])
    return [*minibatches[:1], *later]


Result = TypeVar("Result")


class Learner:
    """A model and its optimiser.

    Args:
        model: a causal language model of transformers; shared with the sampler, which sees every step at once. Where it
            has an adapter per role, every context is computed with that of its agent's role.
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
        self._forward = self._forward_of(model, forward)
        self._reference_forward: Forward | None = None
        if reference is not None:
            own = reference is model
            self._reference_forward = self._forward if own else self._forward_of(reference, forward)
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
        """See `freeze`."""
        return freeze(self, minibatches, loss)

    def policy_step(self, samples: Sequence[Sample], loss: LossConfig, progress: float = 0.0) -> UpdateMetrics:
        """Accumulate the loss's gradient over micro-batches and make one step.

        A mini-batch without a single row to train (every turn excluded) makes no step and says so: `num_rows` is 0.
        """
        built = self._built(loss)
        if Need.REFERENCE in built.needs and self.reference is None:
            raise ConfigError("a term of the loss needs the reference model, and there is none")
        if not samples:
            return _metrics([], built.added, 0.0, {})
        sums = self._each(samples, partial(self._accumulate, loss, built))
        return _metrics(sums, built.added, *self._step(progress))

    def imitation_step(self, samples: Sequence[Sample], progress: float) -> ImitationMetrics:
        """One step of cross-entropy on demonstrations, mean over their generated tokens."""
        count = sum(int(sample.loss_mask.sum()) for sample in samples)

        def accumulate(batch: TokenBatch) -> tuple[float, int]:
            mean = -self.logprobs(batch)[batch.loss_mask & (batch.weights != 0)].sum() / count
            torch.autograd.backward(mean)
            return float(mean.detach()), batch.num_tokens

        found = [result for _, result in self._each(samples, accumulate)]
        self._step(progress)
        return ImitationMetrics(sum(loss for loss, _ in found), sum(computed for _, computed in found))

    @torch.no_grad()
    def read(self, samples: Sequence[Sample], what: Reading) -> tuple[list[np.ndarray], int]:
        """Per sample, in order, what is asked for, and how many ids were computed; no step is made."""

        def look(batch: TokenBatch) -> tuple[list[np.ndarray], int]:
            if what == Reading.HIDDEN:
                counts = batch.loss_mask[:, 1:].sum(1).tolist()
                parts = torch.split(self.hidden(batch), counts)
                return [part.cpu().numpy() for part in parts], batch.num_tokens
            if what == Reading.LOGPROBS:
                found = self.logprobs(batch)[:, None]
            else:
                found = torch.stack(self.logprobs_and_entropy(batch), 1)
            rows = zip(batch.samples, found.cpu().numpy(), strict=True)
            cut_off = [row[:, : len(sample)].copy() for sample, row in rows]
            return [row[0] if what == Reading.LOGPROBS else row for row in cut_off], batch.num_tokens

        rows, computed = dict[int, np.ndarray](), 0
        for held, (found, ids) in self._each(samples, look):
            rows.update(zip(map(id, held), found, strict=True))
            computed += ids
        return [rows[id(sample)] for sample in samples], computed

    def sync(self, sampler: TakesWeights, policy_version: int) -> None:
        """Tell the sampler that the weights are now these."""
        sampler.sync(self.model, policy_version)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What a sampler is given; see `merged_weights`. Without an adapter these are the model's own."""
        return merged_weights(self.model)

    def state(self) -> LearnerState:
        """For a checkpoint; the tensors themselves, which the next step changes."""
        return LearnerState.of(self.model, self.optimizer)

    def restore(self, state: LearnerState, num_steps: int) -> None:
        """Go on from there. Raises `RecordError` where it is of another model, or of other `LoraOptions`."""
        state.put(self.model, self.optimizer)
        self.num_steps = num_steps

    def fill(self, model: PreTrainedModel) -> None:
        """Put what it has trained into a whole model of the same kind; nothing if that is the one it trains."""
        if model is not self.model:
            load_trainable_state(model, self.state().weights)

    def micro_batches(self, samples: Sequence[Sample]) -> Iterator[TokenBatch]:
        """The batches in which `policy_step` accumulates its gradient."""
        return (self._collated(micro) for micro in self._cut(samples))

    def _cut(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        hidden_size = None if self._forward.in_blocks else self.model.config.get_text_config().hidden_size
        alike = _by_role(samples) if has_roles(self.model) else [samples]
        parts = [cut(some, self._rows, max_tokens=self._micro_batch_tokens, hidden_size=hidden_size) for some in alike]
        return [micro for part in parts for micro in part]

    def _collated(self, micro: MicroBatch) -> TokenBatch:
        return micro.collate(self.pad_id).to(self.model.device)

    def _each(
        self, samples: Sequence[Sample], work: Callable[[TokenBatch], Result]
    ) -> list[tuple[Sequence[Sample], Result]]:
        """What `work` gives for every micro-batch, and the samples that each holds, in order."""
        found: list[tuple[Sequence[Sample], Result]] = []
        for micro in self._cut(samples):
            with acting_as(self.model, _role(micro.samples[0])):
                found.append((micro.samples, work(self._collated(micro))))
        return found

    def _forward_of(self, model: PreTrainedModel, options: ForwardOptions) -> Forward:
        """How a model is computed; called before the optimiser is given its weights."""
        return Forward(model, options)

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
        if self._loss is None or self._loss[0] != config:
            self._loss = config, make_loss_sum(config)
        return self._loss[1]

    def _accumulate(self, loss: LossConfig, built: LossSum, batch: TokenBatch) -> _Sums:
        """Add the gradient of one micro-batch."""
        computed: tuple[Tensor, ...]
        if Need.ENTROPY in built.needs:
            computed = self._forward.logprobs_and_entropy(batch)
        else:
            computed = (self.logprobs(batch),)
        # The slope at the log-probs is asked for twice, and hooks of a model in parts may see one backward pass alone.
        logprobs, *entropy = leaves = [values.detach().requires_grad_() for values in computed]
        depths = [[sample.agent_id.depth] for sample in batch.samples]
        inputs = LossInputs(
            logprobs,
            reference_point(loss.importance, batch, logprobs),
            batch.behavior_logprobs,
            batch.advantages,
            batch.loss_mask,
            torch.tensor(depths, device=logprobs.device),
            self._reference_logprobs(batch) if Need.REFERENCE in built.needs else None,
            entropy[0] if entropy else None,
        )
        per_token, clipped = self._surrogate(loss, built.policy, inputs)
        terms = {}
        for name, (weight, term) in built.added.items():
            value = _checked(name, term(inputs), inputs)
            per_token = per_token + weight * value
            terms[name] = float(value.detach()[batch.loss_mask].sum())
        objective = weighted_sum(per_token, batch.weights, batch.loss_mask)
        torch.autograd.backward(objective)
        sloping = [(values, leaf.grad) for values, leaf in zip(computed, leaves, strict=True) if leaf.grad is not None]
        torch.autograd.backward([values for values, _ in sloping], [slope for _, slope in sloping])
        return _Sums.of(batch, float(objective.detach()), terms, logprobs.detach(), inputs.old_logprobs, clipped)

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

    def _clip(self, parameters: Iterable[Tensor]) -> Tensor:
        """Bound the gradient of these together; its norm before that."""
        return torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)

    def _step(self, progress: float) -> tuple[float, dict[str, float]]:
        """The norm of the gradient before it was clipped, and those of each role's adapter where it has its own."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.num_steps, progress)
        # One norm for both adapters would let a large gradient of one role make the other's steps smaller.
        by_role = {str(role): float(self._clip(own)) for role, own in parameters_by_role(self.model).items()}
        norm = math.hypot(*by_role.values()) if by_role else float(self._clip(self.model.parameters()))
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient norm of step {self.num_steps} is {norm}; lower learning_rate")
        self.optimizer.step()
        increment_version(self.model.parameters())  # fused AdamW does not, and a sampler packs what has changed
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        return norm, by_role


def _role(sample: Sample) -> Role:
    return Role.CLONE if sample.agent_id.depth else Role.ROOT


def _by_role(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of each role that there are any of, in order."""
    parts = [[sample for sample in samples if _role(sample) is role] for role in Role]
    return [part for part in parts if part]


def _checked(name: str, per_token: Tensor, inputs: LossInputs) -> Tensor:
    if per_token.shape != inputs.logprobs.shape:
        raise TrainingError(
            f"the loss '{name}' returned shape {tuple(per_token.shape)} for log-probs of shape "
            f"{tuple(inputs.logprobs.shape)}; it must return one number per token"
        )
    return per_token


@dataclass(frozen=True)
class _Sums:
    """Of one micro-batch, over its tokens that train. Small: it may travel between processes.

    Attributes:
        old_logprobs: per sample, for the mismatch; `None` where the samples have their own.
    """

    loss: float
    terms: Mapping[str, float]
    ratio: float
    clipped: float
    gap: float
    max_gap: float
    temperature: float
    tokens: int
    computed: int
    old_logprobs: list[np.ndarray] | None

    @classmethod
    def of(
        cls, batch: TokenBatch, loss: float, terms: Mapping[str, float], logprobs: Tensor, old: Tensor, clipped: Tensor
    ) -> _Sums:
        trained = batch.loss_mask
        gap = (logprobs - batch.behavior_logprobs)[trained].abs()
        measured = [row for sample in batch.measured(logprobs) if (row := sample.old_logprobs) is not None]
        return cls(
            loss=loss,
            terms=terms,
            ratio=float((logprobs - old)[trained].exp().sum()),
            clipped=float(clipped[trained].sum()),
            gap=float(gap.sum()),
            max_gap=float(gap.max()),
            temperature=float(batch.temperature[trained].min()),
            tokens=gap.numel(),
            computed=batch.num_tokens,
            old_logprobs=measured if batch.old_logprobs is None else None,
        )


def _metrics(
    found: Sequence[tuple[Sequence[Sample], _Sums]],
    terms: Iterable[str],
    grad_norm: float,
    role_grad_norms: Mapping[str, float],
) -> UpdateMetrics:
    sums = [of for _, of in found]
    tokens = sum(of.tokens for of in sums)
    count = max(1, tokens)
    measured = [
        sample if of.old_logprobs is None else replace(sample, old_logprobs=of.old_logprobs[i])
        for samples, of in found
        for i, sample in enumerate(samples)
    ]
    return UpdateMetrics(
        loss=sum((of.loss for of in sums), 0.0),
        grad_norm=grad_norm,
        role_grad_norms=role_grad_norms,
        terms={name: sum((of.terms[name] for of in sums), 0.0) / count for name in terms},
        mean_ratio=sum(of.ratio for of in sums) / count if tokens else 1.0,
        clip_share=sum((of.clipped for of in sums), 0.0) / count,
        max_logprob_gap=max((of.max_gap for of in sums), default=0.0),
        mean_logprob_gap=sum((of.gap for of in sums), 0.0) / count,
        temperature=min((of.temperature for of in sums), default=math.inf),
        mismatch=measure(measured),
        trained_tokens=sum(of.computed for of in sums),
        num_rows=len(measured),
    )
