"""The loss: its terms as pure functions, the registry of terms, importance weights, and the weighted sum."""

from selfcest_training.learner.losses.base import LossInputs, LossTerm, Need
from selfcest_training.learner.losses.cispo import Cispo
from selfcest_training.learner.losses.clipped import Clipped
from selfcest_training.learner.losses.entropy import Entropy
from selfcest_training.learner.losses.functions import (
    chosen_logprobs,
    entropies,
    token_logprobs,
    weighted_sum,
)
from selfcest_training.learner.losses.importance import importance_weights
from selfcest_training.learner.losses.kl import Kl
from selfcest_training.learner.losses.registry import (
    LOSSES,
    LossSum,
    make_loss,
    make_loss_sum,
)
from selfcest_training.learner.options import Importance, ImportanceLevel

__all__ = [
    "LOSSES",
    "Cispo",
    "Clipped",
    "Entropy",
    "Importance",
    "ImportanceLevel",
    "Kl",
    "LossInputs",
    "LossSum",
    "LossTerm",
    "Need",
    "chosen_logprobs",
    "entropies",
    "importance_weights",
    "make_loss",
    "make_loss_sum",
    "token_logprobs",
    "weighted_sum",
]
