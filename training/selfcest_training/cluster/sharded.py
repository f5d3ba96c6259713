"""The learner over several ranks: FSDP2 (`fully_shard`), each rank with a part of every weight, gradient and moment.

Every rank calls the same methods with the same arguments and gets the same results, those of `Learner` up to rounding.
It computes its share of the micro-batches; weights are gathered layer by layer as a pass needs them, and gradients
summed into the parts.
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
from selfcest_agents.samplers import TakesWeights
from selfcest_env.errors import ConfigError
from selfcest_training.cluster.deal import check_ranks, deal, dummy
from selfcest_training.learner.batch import Sample, TokenBatch, collate
from selfcest_training.learner.forward import Forward, check_output_layer
from selfcest_training.learner.options import ForwardOptions, LossConfig, OptimizerConfig, Rows
from selfcest_training.learner.state import LearnerState
from selfcest_training.learner.update import Learner, UpdateMetrics

Result = TypeVar("Result")
Passed = TypeVar("Passed", Tensor, tuple[Tensor, Tensor], None)


class Whole(nn.Module):
    """One module around a model, whose `forward` is whatever is computed with it.

    The learner calls decoder and output layer apart, and so would pass by the hooks that gather the model's weights.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Any]) -> Any:
        return compute()


def shard(whole: Whole, mesh: DeviceMesh) -> None:
    """Spread the model's weights over the ranks of a mesh, in place, layer by layer.

    Gradients are summed over ranks, not averaged: samples carry the denominator of the whole mini-batch.
    """
    layers = [module for module in whole.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, whole):
        fully_shard(module, mesh=mesh)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum that scales first


class ShardedForward(Forward):
    """`Forward` of a model that it shards and takes to the mesh's device, layer by layer, before it computes."""

    def __init__(self, model: PreTrainedModel, options: ForwardOptions, mesh: DeviceMesh) -> None:
        super().__init__(model, options, check_head=False)
        self._whole = Whole(model)
        shard(self._whole, mesh)
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
        found: Passed = self._whole(compute)
        if not torch.is_grad_enabled():  # no backward pass will come that lets go of the outermost weights
            self._whole.reshard()  # type: ignore[operator]
        return found


class ShardedLearner(Learner):
    """A `Learner` on the ranks of a mesh.

    Args:
        model: whole, and the same on every rank; it is sharded in place.
        mesh: of one dimension.
        optimizer, pad_id, micro_batch_tokens, reference, rows, forward: as `Learner` takes them. A reference that is
            not the model itself is sharded too.

    Raises:
        ConfigError: what `Learner` refuses, `forward.compile`, which has not been tried on a sharded model, and an
            adapter per role, whose micro-batches cannot be dealt out side by side.
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
        self._mesh, self._first = mesh, True
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
            ConfigError: the first mini-batch has fewer micro-batches than there are ranks. A later one may: a filter
                that dropped most of a step is no reason to lose a run.
        """
        if samples and self._first:
            check_ranks(self._mesh.size(), len(self._cut(samples)), "the first mini-batch")
            self._first = False
        return super().policy_step(samples, loss, progress)

    def sync(self, sampler: TakesWeights, policy_version: int) -> None:
        """Give every rank's own sampler whole weights."""
        sampler.push(self.weights(), policy_version)

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Whole, one after another, in a sampler's dtype, or the model's own. All ranks must go through all of them."""
        for name, tensor in merged_weights(self.model):
            yield name, _gathered(tensor if dtype is None else tensor.to(dtype))

    def state(self) -> LearnerState:
        """Whole, on the first rank's CPU; other ranks, which must call it too, get tensors without numbers."""
        first = self._mesh.get_local_rank() == 0

        def whole(tensor: Tensor) -> Tensor:
            found = _gathered(tensor)
            return found.to("cpu", copy=True) if first else found.new_empty(0)

        return super().state().mapped(lambda _, tensor: whole(tensor))

    def restore(self, state: LearnerState, num_steps: int) -> None:
        """Go on from the whole state that any number of ranks has written; every rank is given all of it."""
        own = trainable_state(self.model)
        places = {str(index): tensor for index, tensor in enumerate(own.values())}

        def part(name: str, tensor: Tensor) -> Tensor:
            index, _, kind = name.rpartition("/")
            like = own.get(name) if not index else places.get(index) if kind != "step" else None
            if not isinstance(like, DTensor) or like.shape != tensor.shape:
                return tensor.clone()
            return distribute_tensor(
                tensor.to(like.device, copy=True), like.device_mesh, like.placements, src_data_rank=None
            )

        super().restore(state.mapped(part), num_steps)
        self._first = num_steps == 0  # a run that goes on may begin with a step that a group filter has thinned

    def _forward_of(self, model: PreTrainedModel, options: ForwardOptions) -> Forward:
        return ShardedForward(model, options, self._mesh)

    def _each(
        self, samples: Sequence[Sample], work: Callable[[TokenBatch], Result]
    ) -> list[tuple[Sequence[Sample], Result]]:
        micros = self._cut(samples)
        own = []
        for index in deal([micro.size for micro in micros], self._mesh.size())[self._mesh.get_local_rank()]:
            if index is None:
                work(collate([dummy()], self.pad_id).to(self.model.device))
            else:
                own.append((index, work(self._collated(micros[index]))))
        everybody: list[list[tuple[int, Result]]] = [[] for _ in range(self._mesh.size())]
        dist.all_gather_object(everybody, own, group=self._mesh.get_group())
        found = dict(pair for one in everybody for pair in one)
        return [(micro.samples, found[index]) for index, micro in enumerate(micros)]

    def _clip(self, parameters: Iterable[Tensor]) -> Tensor:
        return _gathered(super()._clip(parameters))


@torch.no_grad()
def _gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor; a collective if ranks have parts of it."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    whole: Tensor = tensor.full_tensor()
    return whole
