"""Policy losses: pure functions of log-probs and advantages, by name, and what is added and multiplied around them."""

from selfcest_training.learner.losses.base import Loss
from selfcest_training.learner.losses.cispo import Cispo
from selfcest_training.learner.losses.clipped import Clipped
from selfcest_training.learner.losses.functions import chosen_logprobs, kl_to_reference, token_logprobs, weighted_sum
from selfcest_training.learner.losses.importance import importance_weights
from selfcest_training.learner.losses.registry import BUILTINS, ENTRY_POINTS, find_loss, make_loss
from selfcest_training.learner.options import Importance, ImportanceLevel

__all__ = [
    "BUILTINS",
    "ENTRY_POINTS",
    "Cispo",
    "Clipped",
    "Importance",
    "ImportanceLevel",
    "Loss",
    "chosen_logprobs",
    "find_loss",
    "importance_weights",
    "kl_to_reference",
    "make_loss",
    "token_logprobs",
    "weighted_sum",
]
