"""`cispo`: REINFORCE weighted by a ratio that is capped and has no gradient, so that every token keeps its own.

    loss = -sg(min(rho, 1 + epsilon_high)) A logprobs

Source: MiniMax-M1 (arXiv 2506.13585), eq. 4 and 5, without a lower bound as there. `epsilon_high` is theirs: the cap is
1 + epsilon_high. Some implementations call the cap itself epsilon_high: their 5 is 4 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from selfcest_env.structure import Above, Checked, Finite
from selfcest_training.learner.losses.base import LossInputs


@dataclass(frozen=True)
class Cispo(Checked):
    """REINFORCE with a capped ratio that has no gradient.

    Attributes:
        epsilon_high: the ratio is capped at 1 + epsilon_high.
    """

    epsilon_high: Annotated[float, Above(-1), Finite(), "the cap is 1 + epsilon_high"] = 4.0

    def __call__(self, inputs: LossInputs) -> Tensor:
        ratio = torch.exp(inputs.logprobs.detach() - inputs.old_logprobs)
        return -ratio.clamp(max=1 + self.epsilon_high) * inputs.advantages * inputs.logprobs
