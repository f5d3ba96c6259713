"""What the loss is made of: pure functions from what a micro-batch holds to one number per token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from torch import Tensor


class Need(StrEnum):
    """What is computed for a term that asks for it alone."""

    REFERENCE = "reference"
    ENTROPY = "entropy"


@dataclass(frozen=True)
class LossInputs:
    """What a term may look at. All are [B, T] but the last two; a row is one sample, that is one agent's context.

    Only positions where `loss_mask` is True count. The others hold finite numbers.

    Attributes:
        logprobs: under the weights being trained; with `entropy` all that has a gradient.
        old_logprobs: the fixed reference point of the ratio exp(logprobs - old_logprobs): those of the sampler, or with
            importance weights those of the learner before the first update.
        behavior_logprobs: those that the sampler drew with.
        advantages: of every token.
        loss_mask: True where a token trains.
        depth: [B, 1] of the agent whose context it is; 0 is the root.
        reference_logprobs: under the warm-started model; only for a term that needs them.
        entropy: of the distribution that each id was drawn from, in nats, at the sampling temperature; only for a term
            that needs it.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    behavior_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    depth: Tensor
    reference_logprobs: Tensor | None = None
    entropy: Tensor | None = None

    @property
    def is_clone(self) -> Tensor:
        """[B, 1] the agent's role."""
        return self.depth > 0


class LossTerm(Protocol):
    """A summand of the loss; its options are its constructor's arguments.

    A class that needs more than every micro-batch has says so by an attribute `needs`, a collection of `Need`.
    """

    def __call__(self, inputs: LossInputs) -> Tensor:
        """[B, T], before importance weights, the term's own weight and the denominator.

        What is returned outside of the mask must be finite. Rows must not influence each other, because which rows
        share a batch is a matter of memory.
        """
        ...


def needs_of(term: LossTerm | type[LossTerm]) -> frozenset[Need]:
    """What a term, or its class, asks for. Raises `ValueError` for what is no `Need`."""
    needs: Collection[str] = getattr(term, "needs", ())
    return frozenset(map(Need, needs))
