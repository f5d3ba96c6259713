"""What a loss is: which decisions make a step of the policy, and what is to grow there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor


class Loss(Protocol):
    """Settings of a loss. It remembers nothing from batch to batch."""

    def minibatches(self, rows: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Rows of every gradient step that a batch is good for, out of those to learn from; none of them empty."""
        ...

    def gain(self, log_probs: Tensor, behavior: Tensor, advantages: Tensor) -> Tensor:
        """What every decision should raise, all [b].

        Args:
            log_probs: of the actions taken, by the policy as it is now; the gradient goes through these.
            behavior: of the same, by the policy that played.
            advantages: what the credit says.
        """
        ...
