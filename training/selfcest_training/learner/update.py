"""The learner: forward passes, losses and optimiser steps of one policy.

`Learner.policy_step` makes exactly one optimiser step for a mini-batch, however many rows the mini-batch has and
however it is cut into micro-batches (rule 8 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from transformers import PreTrainedModel

from selfcest_agents.lora import (
    has_roles,
    load_trainable_state,
    merged_weights,
    parameters_by_role,
    use_adapter,
    without_lora,
)
from selfcest_agents.samplers import WeightSyncTarget
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
from selfcest_training.learner.metrics import ImitationMetrics, MicroBatchSums, UpdateMetrics, combine_metrics
from selfcest_training.learner.options import ForwardOptions, Importance, LossConfig, OptimizerConfig, Rows
from selfcest_training.learner.state import LearnerState
from selfcest_training.learner.tree_rows import MicroBatch, check_model, cut_into_micro_batches


def select_old_logprobs(importance: Importance, batch: TokenBatch, logprobs: Tensor) -> Tensor:
    """Return `LossInputs.old_logprobs` [B, T]: the log-probs in the denominator of the loss's ratio.

    Without importance weights these are the sampler's. With them they are the learner's before the first update of
    the rollout: those attached to the samples, or the present ones in the first mini-batch (decoupled PPO, Hilton et
    al. 2021, arXiv 2110.00641).

    Args:
        importance: options of the importance weights.
        batch: the micro-batch.
        logprobs: [B, T] of the learner now.
    """
    if not importance.on:
        return batch.behavior_logprobs
    return logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs


class ForwardOutput(StrEnum):
    """What `Learner.compute` returns as one array for a sample of T ids, M of which are trained.

    LOGPROBS: [T], see `Forward.logprobs`.
    ENTROPY: [2, T], log-probs and the entropies of the distributions that the ids were drawn from.
    HIDDEN: [M, H], hidden state of the last layer at the token before each trained id.
    """

    LOGPROBS = "logprobs"
    ENTROPY = "entropy"
    HIDDEN = "hidden"


class LearnerProtocol(Protocol):
    """The interface of a learner for trainer, warm start and job, in this process or in others; see `Learner`."""

    pad_id: int
    num_steps: int

    @property
    def exact(self) -> bool: ...

    def policy_step(self, samples: Sequence[Sample], loss: LossConfig, progress: float = 0.0) -> UpdateMetrics: ...

    def imitation_step(self, samples: Sequence[Sample], progress: float) -> ImitationMetrics: ...

    def compute(self, samples: Sequence[Sample], output: ForwardOutput) -> tuple[list[np.ndarray], int]: ...

    def sync(self, sampler: WeightSyncTarget, policy_version: int) -> None: ...

    def weights(self) -> Iterator[tuple[str, Tensor]]: ...

    def state(self) -> LearnerState: ...

    def restore(self, state: LearnerState, num_steps: int) -> None: ...

    def copy_weights_to(self, model: PreTrainedModel) -> None: ...


def attach_old_logprobs(
    learner: LearnerProtocol, minibatches: Sequence[Sequence[Sample]], loss: LossConfig
) -> list[Sequence[Sample]]:
    """Attach the learner's present log-probs to the samples of a rollout, before its first `policy_step`.

    Only importance weights need them. The first mini-batch needs none, since its step begins with these weights.

    Args:
        learner: computes the log-probs.
        minibatches: of one rollout, in the order of their steps.
        loss: options of the loss.

    Returns:
        The mini-batches in the same order.
    """
    if not loss.importance.on:
        return list(minibatches)
    prepared: list[Sequence[Sample]] = list(minibatches[:1])
    for samples in minibatches[1:]:
        logprobs, _ = learner.compute(samples, ForwardOutput.LOGPROBS)
        prepared.append([replace(sample, old_logprobs=row) for sample, row in zip(samples, logprobs, strict=True)])
    return prepared


Result = TypeVar("Result")


class Learner:
    """A model and its optimiser.

    Args:
        model: a causal language model of transformers. The sampler may share it and then sees every step at once.
            Where it has an adapter per role, each context is computed with the adapter of its agent's role.
        optimizer: options of AdamW.
        pad_id: any id; no trained token attends to a pad.
        micro_batch_tokens: largest number of ids in one forward pass, padding included.
        reference: a frozen model for loss terms that need it. With LoRA it is the model itself, computed without its
            adapter.
        rows: how samples are laid out in rows.
        forward: how the models are computed.

    Raises:
        ConfigError: the model cannot be computed in such rows or with these options.
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
        self.model = model
        self.optimizer_config = optimizer
        self.reference = reference
        self.pad_id = pad_id
        self.num_steps = 0
        self._micro_batch_tokens = micro_batch_tokens
        self._rows = rows
        # Before the optimiser: a sharded learner replaces the parameters here.
        self._forward = self._make_forward(model, forward)
        self._reference_forward: Forward | None = None
        if reference is model:
            self._reference_forward = self._forward
        elif reference is not None:
            self._reference_forward = self._make_forward(reference, forward)
        self.optimizer = torch.optim.AdamW(
            [weight for weight in model.parameters() if weight.requires_grad],
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
            # The fused version is ten times faster on a CPU.
            fused=True,
        )
        self._built_loss: tuple[LossConfig, LossSum] | None = None

    @property
    def exact(self) -> bool:
        """Whether it computes in float32, so that a float32 sampler must agree with it token for token."""
        return self._forward.options.exact and self.model.dtype == torch.float32

    def policy_step(self, samples: Sequence[Sample], loss: LossConfig, progress: float = 0.0) -> UpdateMetrics:
        """Accumulate the gradient of the loss over micro-batches and make one optimiser step.

        Args:
            samples: one mini-batch. Without a sample (every turn is excluded) no step is made and `num_rows` is 0.
            loss: options of the loss.
            progress: share of the run that is done, in [0, 1], for the learning rate.

        Raises:
            ConfigError: a loss term needs a reference model and the learner has none.
            TrainingError: the loss has the wrong shape or no gradient, or the gradient is not finite.
        """
        loss_sum = self._build_loss(loss)
        if Need.REFERENCE in loss_sum.needs and self.reference is None:
            raise ConfigError("a term of the loss needs the reference model, and the learner has none")
        if not samples:
            return combine_metrics([], loss_sum.added, 0.0, {})
        sums = self._map_micro_batches(samples, partial(self._accumulate_gradient, loss, loss_sum))
        grad_norm, role_grad_norms = self._optimizer_step(progress)
        return combine_metrics(sums, loss_sum.added, grad_norm, role_grad_norms)

    def imitation_step(self, samples: Sequence[Sample], progress: float) -> ImitationMetrics:
        """Make one step of cross-entropy on demonstrations, as a mean over their generated tokens."""
        num_trained = sum(int(sample.loss_mask.sum()) for sample in samples)

        def accumulate(batch: TokenBatch) -> tuple[float, int]:
            trained = batch.loss_mask & (batch.weights != 0)
            cross_entropy = -self.logprobs(batch)[trained].sum() / num_trained
            torch.autograd.backward(cross_entropy)
            return float(cross_entropy.detach()), batch.num_tokens

        results = [result for _, result in self._map_micro_batches(samples, accumulate)]
        self._optimizer_step(progress)
        return ImitationMetrics(
            loss=sum(loss for loss, _ in results), trained_tokens=sum(num_tokens for _, num_tokens in results)
        )

    @torch.no_grad()
    def compute(self, samples: Sequence[Sample], output: ForwardOutput) -> tuple[list[np.ndarray], int]:
        """Compute one kind of output for every sample, without a step.

        Returns:
            One array per sample, in the order of `samples`, and the number of ids that went through the model.
        """

        def compute_batch(batch: TokenBatch) -> tuple[list[np.ndarray], int]:
            if output == ForwardOutput.HIDDEN:
                num_trained = batch.loss_mask[:, 1:].sum(1).tolist()
                parts = torch.split(self.hidden(batch), num_trained)
                return [part.cpu().numpy() for part in parts], batch.num_tokens
            if output == ForwardOutput.LOGPROBS:
                values = self.logprobs(batch)
            else:
                values = torch.stack(self.logprobs_and_entropy(batch), 1)
            return batch.unpad(values), batch.num_tokens

        # By the identity of the sample, because micro-batches reorder the samples.
        array_by_id: dict[int, np.ndarray] = {}
        num_computed = 0
        for batch_samples, (arrays, num_tokens) in self._map_micro_batches(samples, compute_batch):
            for sample, array in zip(batch_samples, arrays, strict=True):
                array_by_id[id(sample)] = array
            num_computed += num_tokens
        return [array_by_id[id(sample)] for sample in samples], num_computed

    def sync(self, sampler: WeightSyncTarget, policy_version: int) -> None:
        """Give the sampler the present weights as this policy version."""
        sampler.sync(self.model, policy_version)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that a sampler loads, adapters merged in; see `merged_weights`."""
        return merged_weights(self.model)

    def state(self) -> LearnerState:
        """Return weights and moments for a checkpoint. They are not copies, so the next step changes them."""
        return LearnerState.of(self.model, self.optimizer)

    def restore(self, state: LearnerState, num_steps: int) -> None:
        """Continue from a checkpoint.

        Raises:
            RecordError: the state belongs to another model or to other `LoraOptions`.
        """
        state.load_into(self.model, self.optimizer)
        self.num_steps = num_steps

    def copy_weights_to(self, model: PreTrainedModel) -> None:
        """Copy the trained weights into a model of the same kind, unless that is the trained model itself."""
        if model is not self.model:
            load_trainable_state(model, self.state().weights)

    def micro_batches(self, samples: Sequence[Sample]) -> Iterator[TokenBatch]:
        """Yield the batches over which `policy_step` accumulates its gradient."""
        return (self._collate(micro_batch) for micro_batch in self._cut(samples))

    def _cut(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        # Attention in blocks costs nothing for what a token does not see, so rows need no estimate of their work.
        hidden_size = None if self._forward.in_blocks else self.model.config.get_text_config().hidden_size
        # One forward pass has one adapter, so a micro-batch has one role.
        parts = _split_by_role(samples) if has_roles(self.model) else [samples]
        micro_batches: list[MicroBatch] = []
        for part in parts:
            micro_batches += cut_into_micro_batches(
                part, self._rows, max_tokens=self._micro_batch_tokens, hidden_size=hidden_size
            )
        return micro_batches

    def _collate(self, micro_batch: MicroBatch) -> TokenBatch:
        return micro_batch.collate(self.pad_id).to(self.model.device)

    def _map_micro_batches(
        self, samples: Sequence[Sample], function: Callable[[TokenBatch], Result]
    ) -> list[tuple[Sequence[Sample], Result]]:
        """Return the samples of every micro-batch and the function's result on it, in order."""
        results: list[tuple[Sequence[Sample], Result]] = []
        for micro_batch in self._cut(samples):
            with use_adapter(self.model, _role_of(micro_batch.samples[0])):
                results.append((micro_batch.samples, function(self._collate(micro_batch))))
        return results

    def _make_forward(self, model: PreTrainedModel, options: ForwardOptions) -> Forward:
        return Forward(model, options)

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """Return [B, T] log-probs of the trained ids under the trained weights, at the sampling temperature."""
        return self._forward.logprobs(batch)

    @torch.no_grad()
    def logprobs_and_entropy(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return [B, T] `logprobs`, and [B, T] entropies of the distributions that the ids were drawn from."""
        return self._forward.logprobs_and_entropy(batch)

    @torch.no_grad()
    def hidden(self, batch: TokenBatch) -> Tensor:
        """Return [M, H] hidden states of the last layer at the token before each trained id, in their order."""
        return self._forward.hidden(batch)

    def _build_loss(self, config: LossConfig) -> LossSum:
        if self._built_loss is None or self._built_loss[0] != config:
            self._built_loss = config, make_loss_sum(config)
        return self._built_loss[1]

    def _accumulate_gradient(self, config: LossConfig, loss_sum: LossSum, batch: TokenBatch) -> MicroBatchSums:
        """Add the gradient of one micro-batch to the parameters' gradients."""
        outputs: tuple[Tensor, ...]
        if Need.ENTROPY in loss_sum.needs:
            outputs = self._forward.logprobs_and_entropy(batch)
        else:
            outputs = (self.logprobs(batch),)
        # The gradient at the log-probs is needed twice (here and for `clip_share`), and the hooks of a sharded model
        # may see one backward pass only. So the loss is differentiated down to detached leaves first.
        leaves = [values.detach().requires_grad_() for values in outputs]
        logprobs = leaves[0]
        depths = [[sample.agent_id.depth] for sample in batch.samples]
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=select_old_logprobs(config.importance, batch, logprobs),
            behavior_logprobs=batch.behavior_logprobs,
            advantages=batch.advantages,
            loss_mask=batch.loss_mask,
            depth=torch.tensor(depths, device=logprobs.device),
            reference_logprobs=self._reference_logprobs(batch) if Need.REFERENCE in loss_sum.needs else None,
            entropy=leaves[1] if len(leaves) > 1 else None,
        )
        per_token, clipped = self._policy_loss(config, loss_sum.policy, inputs)
        term_sums = {}
        for name, (weight, term) in loss_sum.added.items():
            value = _check_shape(name, term(inputs), inputs)
            per_token = per_token + weight * value
            term_sums[name] = float(value.detach()[batch.loss_mask].sum())
        objective = weighted_sum(per_token, batch.weights, batch.loss_mask)
        torch.autograd.backward(objective)
        # One backward pass through the model, from the gradients at the leaves that have one.
        pairs = [(values, leaf.grad) for values, leaf in zip(outputs, leaves, strict=True) if leaf.grad is not None]
        torch.autograd.backward([values for values, _ in pairs], [gradient for _, gradient in pairs])
        return MicroBatchSums.of(
            batch, float(objective.detach()), term_sums, logprobs.detach(), inputs.old_logprobs, clipped
        )

    def _policy_loss(self, config: LossConfig, term: LossTerm, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        """Return [B, T] the policy's loss with its importance weight, and where it has cut its own gradient to 0."""
        per_token = _check_shape(config.name, term(inputs), inputs)
        if not per_token.requires_grad:
            raise TrainingError(
                f"the loss '{config.name}' does not depend on inputs.logprobs, so it has no gradient; compute it from "
                "inputs.logprobs"
            )
        (gradient,) = torch.autograd.grad(per_token.sum(), inputs.logprobs, retain_graph=True)
        clipped = (gradient == 0) & (inputs.advantages != 0)
        weights = importance_weights(config.importance, inputs.old_logprobs, inputs.behavior_logprobs, inputs.loss_mask)
        return weights * per_token, clipped

    def _reference_logprobs(self, batch: TokenBatch) -> Tensor:
        assert self.reference is not None
        assert self._reference_forward is not None
        with torch.no_grad(), without_lora(self.reference):
            return self._reference_forward.logprobs(batch)

    def _clip_gradient(self, parameters: Iterable[Tensor]) -> Tensor:
        """Clip the common norm of these parameters' gradients and return the norm before clipping."""
        return torch.nn.utils.clip_grad_norm_(parameters, self.optimizer_config.max_grad_norm)

    def _optimizer_step(self, progress: float) -> tuple[float, dict[str, float]]:
        """Clip the gradient and make one step.

        Returns:
            The norm of the gradient before clipping, and the norm of each role's adapter where roles have adapters.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.optimizer_config.learning_rate_at(self.num_steps, progress)
        # Each adapter is clipped by itself: with a common norm, a large gradient of one role would shrink the steps
        # of the other role.
        role_norms: dict[str, float] = {}
        for role, parameters in parameters_by_role(self.model).items():
            role_norms[str(role)] = float(self._clip_gradient(parameters))
        if role_norms:
            norm = math.hypot(*role_norms.values())
        else:
            norm = float(self._clip_gradient(self.model.parameters()))
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient norm of step {self.num_steps} is {norm}; lower learning_rate")
        self.optimizer.step()
        # Fused AdamW does not raise the version counters by which a sampler notices that its packed copy is stale.
        increment_version(self.model.parameters())
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        return norm, role_norms


def _role_of(sample: Sample) -> Role:
    return Role.CLONE if sample.agent_id.depth else Role.ROOT


def _split_by_role(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Split the samples by role, in order, without empty parts."""
    parts: dict[Role, list[Sample]] = {role: [] for role in Role}
    for sample in samples:
        parts[_role_of(sample)].append(sample)
    return [part for part in parts.values() if part]


def _check_shape(name: str, per_token: Tensor, inputs: LossInputs) -> Tensor:
    if per_token.shape != inputs.logprobs.shape:
        raise TrainingError(
            f"the loss '{name}' returned shape {tuple(per_token.shape)} for log-probs of shape "
            f"{tuple(inputs.logprobs.shape)}; it must return one number per token"
        )
    return per_token
