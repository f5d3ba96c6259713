"""Credit schemes: their interface and registry, the built-in schemes, and checked calls of their methods."""

from selfcest_training.credit.base import (
    Advantage,
    Credit,
    CreditAssigner,
    Internal,
    Internals,
    Promise,
    ReplayRecords,
    TurnCounts,
    TurnInternals,
    broadcast,
    leave_one_out,
    overrides,
    subtract_mean_of_others,
    succeeded,
)
from selfcest_training.credit.chance import draw_index, flip_coin
from selfcest_training.credit.checks import (
    NotInRecordsError,
    assign,
    assign_step,
    check_credit,
    check_replays,
    fit,
    request_more_replays,
    request_replays,
)
from selfcest_training.credit.coma import Coma
from selfcest_training.credit.decision import Decision
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
    "Decision",
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
    "ReplayRecords",
    "Rloo",
    "TurnCounts",
    "Shapley",
    "ToGo",
    "TurnInternals",
    "subtract_mean_of_others",
    "request_replays",
    "request_more_replays",
    "assign",
    "assign_step",
    "broadcast",
    "check_credit",
    "check_replays",
    "flip_coin",
    "draw_index",
    "find_scheme",
    "fit",
    "leave_one_out",
    "make_assigner",
    "overrides",
    "succeeded",
]
