"""The entries of the benchmark: each learner with the settings that it has on every scenario."""

from __future__ import annotations

from selfcest_baselines.bench.maskable_ppo import MaskablePPO
from selfcest_baselines.broadcast import BroadcastLearner
from selfcest_baselines.coma import ComaLearner
from selfcest_baselines.diff_loo import DiffLooLearner
from selfcest_baselines.difference import DifferenceLearner
from selfcest_baselines.learner import MarlLearner
from selfcest_baselines.shapley import ShapleyLearner
from selfcest_baselines.value import ValueLearner

# All networks have the same widths. Each learning rate of a policy is the better of two on a seed of `chain` modulo 2.
# The loss, exploration, gradient norm and small batches of COMA are those of its paper, and `value` takes the mean over
# decisions as most PPO code does.
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
