"""`cispo`: REINFORCE weighted by a ratio that is capped and has no gradient, so that every token keeps its own.

    loss = -sg(min(rho, 1 + epsilon_high)) A logprobs

Source: MiniMax-M1 (arXiv 2506.13585), eq. 4 and 5, without a lower bound as there. `epsilon_high` is theirs: the cap is
1 + epsilon_high. Some implementations call the cap itself epsilon_high: their 5 is 4 here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from selfcest_env.errors import ConfigError


@dataclass(frozen=True)
class Cispo:
    """Options.

    Attributes:
        epsilon_high: the ratio is capped at 1 + epsilon_high.
    """

    epsilon_high: float = 4.0

    def __post_init__(self) -> None:
        if not (self.epsilon_high > -1 and math.isfinite(self.epsilon_high)):
            raise ConfigError(
                f"epsilon_high is {self.epsilon_high!r}; expected a finite number > -1: the cap is 1 + epsilon_high"
            )

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
        ratio = torch.exp(logprobs.detach() - old_logprobs)
        return -ratio.clamp(max=1 + self.epsilon_high) * advantages * logprobs
