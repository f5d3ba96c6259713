"""The rows of the benchmark: each learner with its settings, which are the same for every scenario."""

from __future__ import annotations

from selfcest_baselines.bench.maskable_ppo import MaskablePPO
from selfcest_baselines.broadcast import BroadcastLearner
from selfcest_baselines.coma import ComaLearner
from selfcest_baselines.diff_loo import DiffLooLearner
from selfcest_baselines.difference import DifferenceLearner
from selfcest_baselines.learner import MarlLearner
from selfcest_baselines.shapley import ShapleyLearner
from selfcest_baselines.value import ValueLearner

# Networks have equal widths. The learning rates of the policies were the better of two on one seed of `chain` modulo 2.
# COMA's loss, floor, gradient norm and small batches are as published, and the division of `value` by decisions is that
# of most PPO code.
ENTRIES: dict[str, MarlLearner] = {
    "broadcast": BroadcastLearner(learning_rate=3e-3),
    "value": ValueLearner(learning_rate=1e-3, group_size=1, per="decision"),
    "coma": ComaLearner(
        loss="one_pass",
        learning_rate=3e-3,
        critic_learning_rate=3e-3,
        episodes=64,
        group_size=1,
        max_gradient=10.0,
        floor=(0.1, 0.0),
    ),
    "difference": DifferenceLearner(learning_rate=3e-3),
    "diff_loo": DiffLooLearner(learning_rate=3e-3),
    "shapley": ShapleyLearner(learning_rate=1e-3),
    "maskable_ppo": MaskablePPO(),
}
