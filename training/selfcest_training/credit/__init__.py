"""Credit schemes by name. A scheme of your own is named `package.module:Class` in the config."""

from selfcest_training.credit.base import Credit, CreditAssigner, checked_credit, group_advantages
from selfcest_training.credit.gated import Gated
from selfcest_training.credit.grpo import Grpo

SCHEMES: dict[str, type] = {"grpo": Grpo, "gated": Gated}

__all__ = ["SCHEMES", "Credit", "CreditAssigner", "Gated", "Grpo", "checked_credit", "group_advantages"]
