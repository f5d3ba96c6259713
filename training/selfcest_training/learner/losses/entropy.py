"""`entropy`: entropy in nats of the distribution that each token was drawn from, at the sampling temperature.

With a negative weight it is a bonus that delays premature convergence of the policy (Williams and Peng 1991).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from selfcest_training.learner.losses.base import LossInputs, Need


@dataclass(frozen=True)
class Entropy:
    """Entropy in nats of the distribution that each token was drawn from."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})

    def __call__(self, inputs: LossInputs) -> Tensor:
        assert inputs.entropy is not None
        return inputs.entropy
