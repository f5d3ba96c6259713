"""What the policy does with its credit: one file per way."""

from __future__ import annotations

from selfcest_baselines.loss.base import Loss
from selfcest_baselines.loss.clipped import Clipped
from selfcest_baselines.loss.one_pass import OnePass

LOSSES: dict[str, str | type] = {"one_pass": OnePass, "clipped": Clipped}

__all__ = ["LOSSES", "Clipped", "Loss", "OnePass"]
