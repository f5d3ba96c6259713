"""A value head: a linear map from the policy's hidden states to the return, fitted by ridge regression.

    V(x) = mean R + w (x - mean x) / std x,   w = argmin mean (R - V(x))^2 + ridge |w|^2

All means are over the turns of all fits. Each call of `fit` multiplies the weight of earlier turns by `decay`, because
hidden states move with the weights of the policy. The head is solved in closed form, so it has no learning rate and no
optimiser, and the policy gets no gradient from it. It keeps D x D numbers for D = 2H features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np

from selfcest_env.errors import CreditError
from selfcest_env.plugin import HasState, Stateful
from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Above, Checked, Share
from selfcest_env.types import TurnKey
from selfcest_methods.buckets import Floats
from selfcest_training.credit.base import (
    Credit,
    CreditAssigner,
    Internal,
    Internals,
    Promise,
    ReplayRecords,
    broadcast,
    leave_one_out,
)

S = TypeVar("S", bound=HasState)


@dataclass
class ValueHead:
    """A ridge regression that keeps sums and no examples.

    Attributes:
        decay: weight of a step's turns at the next step.
        ridge: penalty of the standardised weights.
    """

    decay: float
    ridge: float
    # The keys are in checkpoints: count, and the sums x [D] of features, r of returns, xx [D, D] and xr [D] of
    # products.
    _sums: dict[str, Floats] = field(default_factory=dict)
    _weights: Floats | None = None
    _intercept: float = 0.0

    @property
    def is_fitted(self) -> bool:
        return self._weights is not None

    def __call__(self, features: Floats) -> Floats:
        """Return the values, [N], of features, [N, D]; 0 before the first fit.

        Raises:
            CreditError: the features are of another model than those of the fit.
        """
        if self._weights is None:
            return np.zeros(len(features))
        if features.shape[1] != len(self._weights):
            raise CreditError(
                f"the critic was fitted on {len(self._weights)} features and is given {features.shape[1]}; resume with "
                "the model that it was fitted on"
            )
        return np.asarray(features @ self._weights + self._intercept)

    def fit(self, features: Floats, returns: Floats) -> None:
        """Learn from features, [N, D], and their returns, [N]; without any rows nothing changes."""
        if not len(features):
            return
        new_sums = {
            "count": np.array([float(len(features))]),
            "x": features.sum(0),
            "r": np.array([returns.sum()]),
            "xx": features.T @ features,
            "xr": features.T @ returns,
        }
        if self._sums:
            new_sums = {name: self.decay * self._sums[name] + value for name, value in new_sums.items()}
        self._sums = new_sums
        self._solve()

    def _solve(self) -> None:
        count = self._sums["count"]
        mean = self._sums["x"] / count
        mean_return = float(self._sums["r"][0] / count[0])
        second_moment = self._sums["xx"] / count
        covariance = second_moment - np.outer(mean, mean)
        # A constant feature has variance 0 up to rounding, which must not be divided by.
        least_variance = 1e-12 * np.maximum(np.diag(second_moment), 1e-12)
        std = np.sqrt(np.maximum(np.diag(covariance), least_variance))
        matrix = covariance / np.outer(std, std) + self.ridge * np.eye(len(mean))
        target = (self._sums["xr"] / count - mean * mean_return) / std
        self._weights = np.linalg.solve(matrix, target) / std
        self._intercept = mean_return - float(mean @ self._weights)

    def state_dict(self) -> Mapping[str, Any]:
        # torch is slow to import, and only checkpoints hold tensors.
        import torch

        return {name: torch.from_numpy(value) for name, value in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums = {name: value.numpy().astype(np.float64) for name, value in state.items()}
        self._weights = None
        if self._sums:
            self._solve()


@dataclass(frozen=True)
class FittedValuesOptions(Checked):
    """Options of `FittedValues`.

    Attributes:
        decay: weight of a step's returns at the next step.
        ridge: penalty of the value heads.
    """

    decay: Share = 0.95
    ridge: Annotated[float, Above(0)] = 0.01


class FittedValues(Stateful[S], CreditAssigner):
    """Base of the schemes with value heads."""

    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False
    internals: ClassVar[frozenset[Internal]] = frozenset({Internal.HIDDEN})

    Options: ClassVar[type[Any]] = FittedValuesOptions
    options: FittedValuesOptions

    def new_head(self) -> ValueHead:
        return ValueHead(self.options.decay, self.options.ridge)

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        """Return the credit before the first fit, which is that of `rloo`."""
        return Credit(broadcast(group, leave_one_out(group)))


def build_features(
    episode: EpisodeRecord, agents: Sequence[AgentRecord], internals: Internals, *, after: bool = False
) -> Floats:
    """Return the features of every turn of these agents, [N, 2H].

    The first half is the hidden state of the agent before the turn, or after it with `after`. The second half is the
    state of its parent at the end of the call; it is 0 for a root.
    """
    rows = []
    for agent in agents:
        call_key = None
        if agent.parent_id is not None and agent.born_at is not None:
            call_key = TurnKey(episode.episode_id, agent.parent_id, agent.born_at)
        for turn in range(len(agent.turns)):
            turn_internals = internals[TurnKey(episode.episode_id, agent.agent_id, turn)]
            agent_state = turn_internals.after if after else turn_internals.before
            parent_state = np.zeros_like(agent_state) if call_key is None else internals[call_key].after
            rows.append(np.concatenate([agent_state, parent_state]))
    return np.array(rows, dtype=np.float64)
