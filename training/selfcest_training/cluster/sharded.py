"""The learner over several ranks with FSDP2 (`fully_shard`): a rank holds a shard of every weight, gradient and moment.

Every rank calls the same methods with the same arguments and gets the same results, those of `Learner` up to rounding.
A rank computes its share of the micro-batches. Weights are gathered layer by layer during a pass, and gradients are
summed into the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from selfcest_agents.lora import has_roles, merged_weights, trainable_state
from selfcest_agents.samplers import WeightSyncTarget
from selfcest_env.errors import ConfigError
from selfcest_training.cluster.partition import check_ranks, make_zero_weight_sample, partition
from selfcest_training.learner.batch import Sample, TokenBatch, collate
from selfcest_training.learner.forward import Forward, check_output_layer
from selfcest_training.learner.metrics import UpdateMetrics
from selfcest_training.learner.options import ForwardOptions, LossConfig, OptimizerConfig, Rows
from selfcest_training.learner.state import LearnerState
from selfcest_training.learner.update import Learner

Result = TypeVar("Result")
Passed = TypeVar("Passed", Tensor, tuple[Tensor, Tensor], None)


class ModelWrapper(nn.Module):
    """A module around a model whose `forward` runs any computation with that model.

    FSDP gathers weights in hooks of `forward`. The learner calls decoder and output layer separately, so without this
    wrapper the hooks of the outermost module would not run.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Any]) -> Any:
        return compute()


def shard(wrapper: ModelWrapper, mesh: DeviceMesh) -> None:
    """Shard the model's weights over the ranks of a mesh, in place, layer by layer.

    Gradients are summed over ranks, not averaged: samples carry the denominator of the whole mini-batch.
    """
    layers = [module for module in wrapper.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, wrapper):
        fully_shard(module, mesh=mesh)
    for module in wrapper.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo has no reduction that scales before the sum.
            module.set_force_sum_reduction_for_comms(True)


class ShardedForward(Forward):
    """A `Forward` that shards its model and moves it to the mesh's device, layer by layer."""

    def __init__(self, model: PreTrainedModel, options: ForwardOptions, mesh: DeviceMesh) -> None:
        super().__init__(model, options, check_head=False)
        self._wrapper = ModelWrapper(model)
        shard(self._wrapper, mesh)
        if options.logit_chunk:
            with torch.no_grad():
                self._pass(partial(check_output_layer, model, options))

    def logprobs(self, batch: TokenBatch) -> Tensor:
        return self._pass(partial(super().logprobs, batch))

    def logprobs_and_entropy(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        return self._pass(partial(super().logprobs_and_entropy, batch))

    def hidden(self, batch: TokenBatch) -> Tensor:
        return self._pass(partial(super().hidden, batch))

    def _pass(self, compute: Callable[[], Passed]) -> Passed:
        result: Passed = self._wrapper(compute)
        # Without gradients no backward pass follows, which would free the gathered weights of the outermost module.
        if not torch.is_grad_enabled():
            self._wrapper.reshard()  # type: ignore[operator]
        return result


class ShardedLearner(Learner):
    """A `Learner` on the ranks of a mesh.

    Args:
        model: whole, and the same on every rank; it is sharded in place.
        mesh: of one dimension.
        optimizer, pad_id, micro_batch_tokens, reference, rows, forward: as `Learner` takes them. A reference that is
            not the model itself is sharded too.

    Raises:
        ConfigError: what `Learner` refuses, `forward.compile`, which has not been tried on a sharded model, and an
            adapter per role, since ranks compute micro-batches of both roles at the same time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerConfig,
        *,
        mesh: DeviceMesh,
        pad_id: int,
        micro_batch_tokens: int,
        reference: PreTrainedModel | None = None,
        rows: Rows = Rows.BUCKETED,
        forward: ForwardOptions = ForwardOptions(),
    ) -> None:
        if forward.compile:
            raise ConfigError(
                f"forward.compile is true and cluster.learner_ranks is {mesh.size()}; a compiled model has not been "
                "tried on several ranks, so set forward.compile to false"
            )
        if has_roles(model):
            raise ConfigError(
                f"lora.per_role is true and cluster.learner_ranks is {mesh.size()}; ranks would compute roots and "
                "clones at the same time with one adapter, so set lora.per_role to false"
            )
        self._mesh = mesh
        self._is_first_step = True
        super().__init__(
            model,
            optimizer,
            pad_id=pad_id,
            micro_batch_tokens=micro_batch_tokens,
            reference=reference,
            rows=rows,
            forward=forward,
        )

    def policy_step(self, samples: Sequence[Sample], loss: LossConfig, progress: float = 0.0) -> UpdateMetrics:
        """As `Learner.policy_step`.

        Raises:
            ConfigError: the first mini-batch has fewer micro-batches than there are ranks. A later one may have fewer,
                because a group filter that drops most of a step must not end a run.
        """
        if samples and self._is_first_step:
            check_ranks(self._mesh.size(), len(self._cut(samples)), "the first mini-batch")
            self._is_first_step = False
        return super().policy_step(samples, loss, progress)

    def sync(self, sampler: WeightSyncTarget, policy_version: int) -> None:
        """Give every rank's own sampler the full weights."""
        sampler.push(self.weights(), policy_version)

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield full weights in this dtype or the model's own. A collective: every rank must consume all of them."""
        for name, tensor in merged_weights(self.model):
            yield name, _gather(tensor if dtype is None else tensor.to(dtype))

    def state(self) -> LearnerState:
        """Return the full state on the first rank's CPU. Other ranks must call it too and get empty tensors."""
        is_first_rank = self._mesh.get_local_rank() == 0

        def gather_to_cpu(name: str, tensor: Tensor) -> Tensor:
            full = _gather(tensor)
            return full.to("cpu", copy=True) if is_first_rank else full.new_empty(0)

        return super().state().map_tensors(gather_to_cpu)

    def restore(self, state: LearnerState, num_steps: int) -> None:
        """Continue from the full state, which any number of ranks may have written; every rank gets all of it."""
        sharded_weights = trainable_state(self.model)
        weight_by_index = {str(index): tensor for index, tensor in enumerate(sharded_weights.values())}

        def shard_tensor(name: str, tensor: Tensor) -> Tensor:
            # `NAME` is a weight, `INDEX/KIND` a moment of the weight at this index; `step` is a scalar of AdamW.
            index, _, kind = name.rpartition("/")
            if not index:
                target = sharded_weights.get(name)
            elif kind == "step":
                target = None
            else:
                target = weight_by_index.get(index)
            if not isinstance(target, DTensor) or target.shape != tensor.shape:
                return tensor.clone()
            return distribute_tensor(
                tensor.to(target.device, copy=True), target.device_mesh, target.placements, src_data_rank=None
            )

        super().restore(state.map_tensors(shard_tensor), num_steps)
        # A resumed run may continue with a step that a group filter has made small.
        self._is_first_step = num_steps == 0

    def _make_forward(self, model: PreTrainedModel, options: ForwardOptions) -> Forward:
        return ShardedForward(model, options, self._mesh)

    def _map_micro_batches(
        self, samples: Sequence[Sample], function: Callable[[TokenBatch], Result]
    ) -> list[tuple[Sequence[Sample], Result]]:
        micro_batches = self._cut(samples)
        assignment = partition([micro_batch.size for micro_batch in micro_batches], self._mesh.size())
        local_results: list[tuple[int, Result]] = []
        for index in assignment[self._mesh.get_local_rank()]:
            if index is None:
                # Every rank makes the same number of passes, since each pass gathers layers from all ranks.
                function(collate([make_zero_weight_sample()], self.pad_id).to(self.model.device))
            else:
                local_results.append((index, function(self._collate(micro_batches[index]))))
        gathered: list[list[tuple[int, Result]]] = [[] for _ in range(self._mesh.size())]
        dist.all_gather_object(gathered, local_results, group=self._mesh.get_group())
        result_by_index: dict[int, Result] = {}
        for results in gathered:
            result_by_index.update(results)
        return [(micro_batch.samples, result_by_index[index]) for index, micro_batch in enumerate(micro_batches)]

    def _clip_gradient(self, parameters: Iterable[Tensor]) -> Tensor:
        return _gather(super()._clip_gradient(parameters))


@torch.no_grad()
def _gather(tensor: Tensor) -> Tensor:
    """Return the full tensor; a collective if the ranks hold shards of it."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    full: Tensor = tensor.full_tensor()
    return full
