"""The same game in numbers, batched in NumPy. `selfcest_env.symbolic_v0` is its PettingZoo front door."""

from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.rules import SymbolicRules, make_rules
from selfcest_env.symbolic.state import State
from selfcest_env.symbolic.tasks import TASKS, Chain, Lookup, Noisy, SymbolicTask, make_task

__all__ = [
    "TASKS",
    "BatchDelegation",
    "Chain",
    "Lookup",
    "Noisy",
    "State",
    "SymbolicRules",
    "SymbolicTask",
    "make_rules",
    "make_task",
]
