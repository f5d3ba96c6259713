"""`one_pass`: the policy gradient, one step per batch.

    gain = A log pi(u | o)

Source: REINFORCE, Williams 1992; as COMA and most published work on credit. On policy, so that with an unbiased credit
the loss's gradient is unbiased, before the learner adds entropy, cuts its norm and hands it to Adam. Settings: none.
Degenerate cases: a batch without decisions makes no step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from selfcest_env.stored import stored_as


@stored_as("OnePass")
@dataclass(frozen=True)
class OnePass:
    """No settings."""

    def minibatches(self, rows: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        if len(rows):
            yield rows

    def gain(self, log_probs: Tensor, behavior: Tensor, advantages: Tensor) -> Tensor:
        return advantages * log_probs
