"""Credit schemes: the plug-in's types, where schemes are found, and the checks around every call of one."""

from selfcest_training.credit.base import (
    Advantage,
    Credit,
    CreditAssigner,
    NoReplays,
    Promise,
    Replayed,
    broadcast,
    leave_one_out,
)
from selfcest_training.credit.checks import ask, assign, checked_credit, checked_replays
from selfcest_training.credit.coma import Coma
from selfcest_training.credit.difference import Difference
from selfcest_training.credit.gated import Gated
from selfcest_training.credit.gated_paper import GatedPaper
from selfcest_training.credit.grpo import Grpo
from selfcest_training.credit.per_role import PerRole
from selfcest_training.credit.registry import BUILTINS, find_scheme, make_assigner, schemes
from selfcest_training.credit.rloo import Rloo
from selfcest_training.credit.shapley import Shapley

__all__ = [
    "Advantage",
    "BUILTINS",
    "Coma",
    "Credit",
    "CreditAssigner",
    "Difference",
    "Gated",
    "GatedPaper",
    "Grpo",
    "NoReplays",
    "PerRole",
    "Promise",
    "Replayed",
    "Rloo",
    "Shapley",
    "ask",
    "assign",
    "broadcast",
    "checked_credit",
    "checked_replays",
    "find_scheme",
    "leave_one_out",
    "make_assigner",
    "schemes",
]
