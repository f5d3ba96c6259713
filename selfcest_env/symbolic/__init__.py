"""The game in numbers, batched in NumPy. Its PettingZoo environments are in `selfcest_env.symbolic_v0`."""

from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.optimum import Optimum, Plan, optimal_plan, optimal_return
from selfcest_env.symbolic.reference import BatchPolicy, OptimalPolicy, PolicyEvaluation, RandomPolicy, evaluate_policy
from selfcest_env.symbolic.rules import SymbolicRules, make_rules
from selfcest_env.symbolic.state import State
from selfcest_env.symbolic.tasks import (
    TASKS,
    CallKind,
    Cells,
    Chain,
    Deep,
    ForcedJoinTask,
    Lookup,
    Noisy,
    ProblemBatch,
    SymbolicTask,
    make_task,
)
from selfcest_env.symbolic.twin import episode_record, replay
from selfcest_env.symbolic.vectors import observation_names

__all__ = [
    "TASKS",
    "BatchDelegation",
    "BatchPolicy",
    "CallKind",
    "Cells",
    "Chain",
    "Deep",
    "ProblemBatch",
    "ForcedJoinTask",
    "Lookup",
    "Noisy",
    "OptimalPolicy",
    "Optimum",
    "Plan",
    "PolicyEvaluation",
    "RandomPolicy",
    "State",
    "SymbolicRules",
    "SymbolicTask",
    "episode_record",
    "make_rules",
    "make_task",
    "observation_names",
    "optimal_plan",
    "optimal_return",
    "evaluate_policy",
    "replay",
]
