"""`kl`: an estimate of KL(policy || warm start) from the sampled tokens.

    with d = reference log-prob - log-prob:    k1 = -d,    k2 = d^2 / 2,    k3 = exp(d) - d - 1

Source: Schulman 2020, "Approximating KL divergence". k1 is unbiased as a number, but on policy its gradient is zero in
expectation, so as a loss it has no effect. On policy k2 has the gradient of KL(policy || warm start), and k3, the
default, which is never negative, that of KL(warm start || policy).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from selfcest_training.learner.losses.base import LossInputs, Need


@dataclass(frozen=True)
class Kl:
    """Estimate of the KL divergence to the warm start.

    Attributes:
        estimator: estimator of the divergence. With d = reference log-prob - log-prob, `k1` is -d, `k2` is d^2 / 2, and
            `k3` is exp(d) - d - 1.
    """

    estimator: Literal["k1", "k2", "k3"] = "k3"

    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE})

    def __call__(self, inputs: LossInputs) -> Tensor:
        assert inputs.reference_logprobs is not None
        difference = inputs.reference_logprobs - inputs.logprobs
        match self.estimator:
            case "k1":
                return -difference
            case "k2":
                return difference.square() / 2
            case "k3":
                return torch.exp(difference) - difference - 1
