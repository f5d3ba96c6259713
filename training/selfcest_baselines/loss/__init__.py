"""What the policy does with its credit: one file per way."""

from __future__ import annotations

from selfcest_baselines.loss.base import Loss
from selfcest_baselines.loss.clipped import Clipped
from selfcest_baselines.loss.one_pass import OnePass
from selfcest_env.plugin import Registry

LOSSES = Registry(
    Loss,
    "loss",
    "selfcest.marl_loss",
    {
        "one_pass": "selfcest_baselines.loss.one_pass:OnePass",
        "clipped": "selfcest_baselines.loss.clipped:Clipped",
    },
)

__all__ = ["LOSSES", "Clipped", "Loss", "OnePass"]
