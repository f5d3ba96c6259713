"""The terms of the loss: pure functions from a micro-batch to one number per token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from torch import Tensor


class Need(StrEnum):
    """An input that is computed only for a term that needs it."""

    REFERENCE = "reference"
    ENTROPY = "entropy"


@dataclass(frozen=True)
class LossInputs:
    """The inputs of a term. All are [B, T] except `depth`; a row is one sample, which is one agent's context.

    Only positions where `loss_mask` is True count. The others hold finite numbers.

    Attributes:
        logprobs: under the trained weights. Only `logprobs` and `entropy` have a gradient.
        old_logprobs: the fixed denominator of the ratio exp(logprobs - old_logprobs): the sampler's log-probs, or with
            importance weights the learner's before the first update.
        behavior_logprobs: the sampler's log-probs.
        advantages: of every token.
        loss_mask: True where a token is trained.
        depth: [B, 1] depth of the agent; 0 is the root.
        reference_logprobs: under the warm-started model; `None` unless a term needs them.
        entropy: of the distribution that each id was drawn from, in nats, at the sampling temperature; `None` unless a
            term needs it.
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
        """[B, 1] True for a clone's context."""
        return self.depth > 0


class LossTerm(Protocol):
    """A term of the loss; its options are its constructor's arguments.

    A class that needs optional inputs declares them in an attribute `needs`, a collection of `Need`.
    """

    def __call__(self, inputs: LossInputs) -> Tensor:
        """Return [B, T] the term, before importance weights, the term's own weight and the denominator.

        Values outside of the mask must be finite. Rows must not influence each other, because memory decides which rows
        share a batch.
        """
        ...


def needs_of(term: LossTerm | type[LossTerm]) -> frozenset[Need]:
    """Return the optional inputs that a term or its class needs. Raises `ValueError` for an unknown name."""
    needs: Collection[str] = getattr(term, "needs", ())
    return frozenset(map(Need, needs))
