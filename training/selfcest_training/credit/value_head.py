"""A value head: a linear map from the policy's hidden states to the return, fitted by ridge regression.

    w = argmin sum_i decay^(age of i) (R_i - w x_i)^2 + ridge * mean_j(sum x_j^2) * |w|^2

Age counts calls of `fit`, so that the head follows hidden states that move with the weights. Solved in closed form:
there is no learning rate, no order of examples and no second optimiser, and the policy's own weights get no gradient
from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from selfcest_env.errors import CreditError
from selfcest_env.record import AgentRecord, EpisodeRecord
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import Internals

Floats = npt.NDArray[np.float64]


@dataclass
class ValueHead:
    """Sums of products, all that a ridge regression needs: [D, D] of features and [D] of features with returns."""

    decay: float
    ridge: float
    _gram: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    _moment: Floats = field(default_factory=lambda: np.zeros(0))
    _weights: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def fitted(self) -> bool:
        return bool(self._weights.size)

    def __call__(self, features: Floats) -> Floats:
        """[N] values of [N, D] features; 0 before the first fit."""
        if not self.fitted:
            return np.zeros(len(features))
        if features.shape[1] != len(self._weights):
            raise CreditError(
                f"the critic was fitted on {len(self._weights)} features and is given {features.shape[1]}; go on with "
                "the model that it was fitted on"
            )
        return np.asarray(features @ self._weights)

    def fit(self, features: Floats, returns: Floats) -> None:
        """Learn from [N, D] features and their [N] returns; without any it forgets nothing."""
        if not len(features):
            return
        size = features.shape[1]
        if not self.fitted:
            self._gram, self._moment = np.zeros((size, size)), np.zeros(size)
        self._gram = self.decay * self._gram + features.T @ features
        self._moment = self.decay * self._moment + features.T @ returns
        self._solve()

    def _solve(self) -> None:
        size = len(self._moment)
        penalty = self.ridge * np.trace(self._gram) / size * np.eye(size)
        self._weights = np.linalg.solve(self._gram + penalty, self._moment)

    def state_dict(self) -> Mapping[str, Any]:
        return {"gram": torch.from_numpy(self._gram), "moment": torch.from_numpy(self._moment)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._gram, self._moment = (state[name].numpy().astype(np.float64) for name in ("gram", "moment"))
        if len(self._moment):
            self._solve()


def features(
    episode: EpisodeRecord, agents: Sequence[AgentRecord], internals: Internals, *, after: bool = False
) -> Floats:
    """[N, 2H + 1] of every turn of these agents: what the agent has seen, what its parent had when it called, and 1.

    Of the agent it is the state before the turn, or `after` it; of the parent that at the end of the call. A root's
    parent is 0.
    """
    rows = []
    for agent in agents:
        above = None
        if agent.parent_id is not None and agent.born_at is not None:
            above = TurnKey(episode.episode_id, agent.parent_id, agent.born_at)
        for turn in range(len(agent.turns)):
            found = internals[TurnKey(episode.episode_id, agent.agent_id, turn)]
            own = found.after if after else found.before
            parent = np.zeros_like(own) if above is None else internals[above].after
            rows.append(np.concatenate([own, parent, np.ones(1)]))
    return np.array(rows, dtype=np.float64)
