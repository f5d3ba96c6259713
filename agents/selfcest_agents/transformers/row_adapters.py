"""LoRA adapters of several roles in one forward pass, in which each row has the adapter of its agent's role.

A layer multiplies all rows with its weight once, and adds the low-rank products of all roles at once: the matrices of
the roles are stacked, and between A and B a mask sets the numbers of other roles to zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from selfcest_agents.lora import find_role_layers
from selfcest_env.types import Role

if TYPE_CHECKING:
    from peft.tuners.lora import Linear as LoraLinear

ROLES = tuple(Role)


class _Stack(NamedTuple):
    """Matrices of all roles, in the order of `ROLES`: a [roles * rank, in], b [out, roles * rank] with the scaling."""

    a: Tensor
    b: Tensor


class RowAdapters:
    """The stacked adapters of a model with an adapter per role, which are renewed when the weights have changed.

    Args:
        model: model that changes only outside `use`. A model without an adapter per role never changes.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._stacks: dict[LoraLinear, _Stack] = {}
        self._state: list[tuple[int, int]] = []
        self._mask = torch.zeros(0)

    def clear(self) -> None:
        """Drop the stacks. This is needed after changes that torch does not count: by `.data` or a fused optimiser."""
        self._stacks = {}
        self._state = []

    def get_role(self, role: Role) -> Role:
        """Return the role whose adapter an agent's rows have within `use`: the root's unless each role has its own."""
        return role if self._stacks else Role.ROOT

    @contextmanager
    def use(self) -> Iterator[None]:
        """Compute the layers with the adapters of the selected roles within the block, without gradients."""
        layers = find_role_layers(self._model)
        parameters = [
            parameter for layer in layers for parameter in (*layer.lora_A.parameters(), *layer.lora_B.parameters())
        ]
        state = [(parameter.data_ptr(), parameter._version) for parameter in parameters]
        if state != self._state:
            self._stacks = {layer: _stack(layer) for layer in layers}
            self._state = state
        for layer, stack in self._stacks.items():
            layer.forward = partial(self._add_adapters, layer.get_base_layer(), stack)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for layer in self._stacks:
                del layer.forward

    def select(self, roles: Sequence[Role], counts: Sequence[int] | None = None) -> None:
        """Set the roles of the next forward pass.

        Args:
            roles: role of each row.
            counts: number of ids of each row, if the pass has all ids in one row; `None` if it has padded rows.
        """
        if not self._stacks:
            return
        stack = next(iter(self._stacks.values()))
        is_role = torch.tensor([[role is other for other in ROLES] for role in roles], dtype=stack.a.dtype)
        if counts is None:
            mask = is_role[:, None]
        else:
            mask = is_role.repeat_interleave(torch.tensor(counts), dim=0)[None]
        self._mask = mask[..., None].to(stack.a.device)

    def _add_adapters(self, base: torch.nn.Module, stack: _Stack, inputs: Tensor) -> Tensor:
        """Return W x + (alpha / rank) B A x [rows, ids, out] for inputs [rows, ids, in]."""
        outputs: Tensor = base(inputs)
        stacked = linear(inputs.to(stack.a.dtype), stack.a)
        # [rows, ids, roles, rank], of which the mask [rows, 1 or ids, roles, 1] keeps one role.
        low_rank = stacked.view(*stacked.shape[:-1], len(ROLES), -1) * self._mask
        return (outputs + linear(low_rank.flatten(-2), stack.b)).to(outputs.dtype)


@torch.no_grad()
def _stack(layer: LoraLinear) -> _Stack:
    a: list[Any] = [layer.lora_A[role].weight for role in ROLES]
    b: list[Any] = [layer.lora_B[role].weight * layer.scaling[role] for role in ROLES]
    return _Stack(torch.cat(a), torch.cat(b, dim=1))
