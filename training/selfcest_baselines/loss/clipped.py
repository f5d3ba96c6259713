"""`clipped`: several passes over a batch in minibatches, each policy held near the one that played.

    gain = min(ρ A, clip(ρ, 1 ± clip) A),   ρ = pi(u | o) / pi_played(u | o)

Source: PPO, Schulman et al. 2017 (arXiv 1707.06347). More steps out of the same decisions; from the second step on the
policy is no longer the one that played, and the gradient is biased.
Degenerate cases: one pass of one step is `one_pass`, to the gradient; fewer decisions than steps make as many steps as
there are decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count, Positive


@stored_as("Clipped", passes="passes", steps="steps", clip="clip")
@dataclass(frozen=True)
class Clipped(Checked):
    """Settings: `passes` over the batch, each in so many `steps`; `clip`, how far a ratio may leave 1."""

    passes: Count = 4
    steps: Count = 4
    clip: Positive = 0.2

    def minibatches(self, rows: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        for _ in range(self.passes):
            order = rows[torch.randperm(len(rows), generator=generator)]
            yield from filter(len, order.tensor_split(self.steps))

    def gain(self, log_probs: Tensor, behavior: Tensor, advantages: Tensor) -> Tensor:
        ratio = (log_probs - behavior).exp()
        return torch.minimum(ratio * advantages, ratio.clamp(1 - self.clip, 1 + self.clip) * advantages)
