"""Who is to be thanked for the team's return, decision by decision: one file per answer."""

from __future__ import annotations

from selfcest_training.marl.credit.base import Assign, Batch, Credit, Credited, Start
from selfcest_training.marl.credit.broadcast import Broadcast
from selfcest_training.marl.credit.coma import Coma
from selfcest_training.marl.credit.diff_loo import DiffLoo
from selfcest_training.marl.credit.difference import Difference
from selfcest_training.marl.credit.shapley import Shapley
from selfcest_training.marl.credit.value import Value

CREDITS: dict[str, str | type] = {
    "broadcast": Broadcast,
    "value": Value,
    "coma": Coma,
    "difference": Difference,
    "diff_loo": DiffLoo,
    "shapley": Shapley,
}

__all__ = [
    "CREDITS",
    "Assign",
    "Batch",
    "Broadcast",
    "Coma",
    "Credit",
    "Credited",
    "DiffLoo",
    "Difference",
    "Shapley",
    "Start",
    "Value",
]
