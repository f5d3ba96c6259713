"""`train`: run one learner within a budget and return its learning curve."""

from __future__ import annotations

from typing import Any

from selfcest_baselines.learner import LEARNERS, MarlLearner
from selfcest_baselines.progress import Examiner, LearningCurve
from selfcest_env.symbolic.rules import SymbolicRules


def train(learner: str | MarlLearner, rules: SymbolicRules, seed: int = 0, **budget: Any) -> LearningCurve:
    """Train a learner until its budget is spent, and evaluate the greedy policy at intervals.

    Args:
        learner: a key of `LEARNERS` or `package.module:Class`, with default options; or an instance.
        rules: rules of the games.
        seed: seed of the problems, the initial weights and the sampling.
        budget: `decisions`, `seconds`, `until`, `every` and `report` of `Examiner`. Decisions that replays sample again
            count too.

    Raises:
        ConfigError: the name is unknown, options do not fit the games, or there is no budget.
    """
    if isinstance(learner, str):
        learner = LEARNERS.make(learner, {}, where="")
    learner.load()
    examiner = Examiner(rules, **budget)
    learner.learn(rules, seed, examiner)
    return LearningCurve(tuple(examiner.points))
