"""How a game ended, for the infos that trainers log."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from selfcest_env.symbolic.batch import BatchDelegation


def solved(kernel: BatchDelegation) -> NDArray[np.bool_]:
    """Whether the root has given the right answer, shape (num_envs,).

    A team return is that, as 0 or 1, less the price of the tokens.
    """
    spent = kernel.rules.token_cost * kernel.total_tokens()
    right: NDArray[np.bool_] = kernel.state.terminated & (kernel.state.team_return + spent > 0.5)
    return right
