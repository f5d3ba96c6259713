"""Credit schemes: the plug-in's types, where schemes are found, and the checks around every call of one."""

from selfcest_training.credit.base import (
    Advantage,
    Credit,
    CreditAssigner,
    Internal,
    Internals,
    Promise,
    Replayed,
    Shapes,
    TurnInternals,
    against_others,
    broadcast,
    leave_one_out,
    overrides,
    succeeded,
)
from selfcest_training.credit.chance import coin, draw
from selfcest_training.credit.checks import (
    NotInRecordsError,
    ask,
    ask_more,
    assign,
    assign_step,
    checked_credit,
    checked_replays,
    fit,
)
from selfcest_training.credit.coma import Coma
from selfcest_training.credit.diff_loo import DiffLoo
from selfcest_training.credit.difference import Difference
from selfcest_training.credit.gated import Gated
from selfcest_training.credit.gated_paper import GatedPaper
from selfcest_training.credit.grpo import Grpo
from selfcest_training.credit.parts import Parts
from selfcest_training.credit.per_role import PerRole
from selfcest_training.credit.registry import SCHEMES, find_scheme, make_assigner
from selfcest_training.credit.rloo import Rloo
from selfcest_training.credit.shapley import Shapley
from selfcest_training.credit.to_go import ToGo

__all__ = [
    "Advantage",
    "SCHEMES",
    "Coma",
    "Credit",
    "CreditAssigner",
    "DiffLoo",
    "Difference",
    "Gated",
    "GatedPaper",
    "Grpo",
    "Internal",
    "Internals",
    "NotInRecordsError",
    "Parts",
    "PerRole",
    "Promise",
    "Replayed",
    "Rloo",
    "Shapes",
    "Shapley",
    "ToGo",
    "TurnInternals",
    "against_others",
    "ask",
    "ask_more",
    "assign",
    "assign_step",
    "broadcast",
    "checked_credit",
    "checked_replays",
    "coin",
    "draw",
    "find_scheme",
    "fit",
    "leave_one_out",
    "make_assigner",
    "overrides",
    "succeeded",
]
