"""`clipped`: PPO's pessimistic surrogate, by token or by sequence, with an optional cap on the other side.

    loss = -min(min(rho, delta) A, clip(rho, 1 - clip_low, 1 + clip_high) A)

Sources: Schulman et al. 2017 (arXiv 1707.06347), eq. 7; unequal bounds, DAPO (arXiv 2503.14476); `delta`, two-sided
clipping of INTELLECT-2 (arXiv 2505.07291); `level: sequence`, GSPO (arXiv 2507.18071), where rho of every token is
the geometric mean over the sample. On policy rho is 1 and the gradient is that of REINFORCE, -A grad logprobs (by
sequence with the mean of the sample's advantages for A). With both bounds infinite nothing is clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from selfcest_env.errors import ConfigError
from selfcest_env.structure import AtLeast, Checked
from selfcest_training.learner.losses.base import LossInputs
from selfcest_training.learner.losses.functions import trained_sum

_Clip = Annotated[float, AtLeast(0), ".inf: no clipping"]


@dataclass(frozen=True)
class Clipped(Checked):
    """PPO's clipped surrogate, by token or by sequence.

    Attributes:
        clip_low: a token with A < 0 has no gradient where rho is below 1 - clip_low.
        clip_high: a token with A > 0 has no gradient where rho is above 1 + clip_high.
        delta: a cap on rho where A < 0, which the clip does not bound from above; null for none.
        level: the unit of rho, a `token` or the whole `sequence` (a sample: one agent's context).
    """

    clip_low: _Clip = 0.2
    clip_high: _Clip = 0.2
    delta: float | None = None
    level: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta is not None and not self.delta > 1 + self.clip_high:
            raise ConfigError(
                f"delta is {self.delta!r}; expected a number > 1 + clip_high = {1 + self.clip_high}, or null for no cap"
            )

    def __call__(self, inputs: LossInputs) -> Tensor:
        advantages = inputs.advantages
        log_ratio = inputs.logprobs - inputs.old_logprobs
        if self.level == "sequence":
            count = inputs.loss_mask.sum(-1, keepdim=True).clamp(min=1)
            log_ratio = (trained_sum(log_ratio, inputs.loss_mask) / count).expand_as(log_ratio)
        ratio = torch.exp(log_ratio)
        capped = ratio if self.delta is None else ratio.clamp(max=self.delta)
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -torch.minimum(capped * advantages, clipped * advantages)
