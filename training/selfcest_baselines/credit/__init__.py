"""Who is to be thanked for the team's return, decision by decision: one file per answer."""

from __future__ import annotations

from selfcest_baselines.credit.base import Assign, Batch, Credit, Credited, Start
from selfcest_baselines.credit.broadcast import Broadcast
from selfcest_baselines.credit.coma import Coma
from selfcest_baselines.credit.diff_loo import DiffLoo
from selfcest_baselines.credit.difference import Difference
from selfcest_baselines.credit.shapley import Shapley
from selfcest_baselines.credit.value import Value
from selfcest_env.plugin import Registry

CREDITS = Registry(
    Credit,
    "credit",
    "selfcest.marl_credit",
    {
        "broadcast": "selfcest_baselines.credit.broadcast:Broadcast",
        "value": "selfcest_baselines.credit.value:Value",
        "coma": "selfcest_baselines.credit.coma:Coma",
        "difference": "selfcest_baselines.credit.difference:Difference",
        "diff_loo": "selfcest_baselines.credit.diff_loo:DiffLoo",
        "shapley": "selfcest_baselines.credit.shapley:Shapley",
    },
)

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
