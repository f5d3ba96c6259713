"""A value head: a linear map from the policy's hidden states to the return, fitted by ridge regression.

    V(x) = mean R + w (x - mean x) / std x,   w = argmin mean (R - V(x))^2 + ridge |w|^2

All means are over what it was fitted on, of which each call of `fit` counts `decay` of the next: the head follows
hidden states that move with the weights. Solved in closed form: there is no learning rate, no order of examples and no
second optimiser, and the policy's own weights get no gradient from it. It keeps D x D numbers for D features, D = 2H.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from selfcest_env.errors import CreditError
from selfcest_env.plugin import HasState, Stateful
from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord
from selfcest_env.structure import Above, Checked, Share
from selfcest_env.types import TurnKey
from selfcest_training.credit.base import (
    Credit,
    CreditAssigner,
    Internal,
    Internals,
    Promise,
    Replayed,
    broadcast,
    leave_one_out,
)

Floats = npt.NDArray[np.float64]
S = TypeVar("S", bound=HasState)


@dataclass
class ValueHead:
    """Weighted sums, all that a ridge regression needs: of 1, x, R, [D, D] products of features and x R."""

    decay: float
    ridge: float
    _sums: dict[str, Floats] = field(default_factory=dict)
    _fit: tuple[Floats, float] | None = None  # weights and intercept

    @property
    def fitted(self) -> bool:
        return self._fit is not None

    def __call__(self, features: Floats) -> Floats:
        """[N] values of [N, D] features; 0 before the first fit."""
        if self._fit is None:
            return np.zeros(len(features))
        weights, intercept = self._fit
        if features.shape[1] != len(weights):
            raise CreditError(
                f"the critic was fitted on {len(weights)} features and is given {features.shape[1]}; go on with the "
                "model that it was fitted on"
            )
        return np.asarray(features @ weights + intercept)

    def fit(self, features: Floats, returns: Floats) -> None:
        """Learn from [N, D] features and their [N] returns; without any it forgets nothing."""
        if not len(features):
            return
        new = {
            "count": np.array([float(len(features))]),
            "x": features.sum(0),
            "r": np.array([returns.sum()]),
            "xx": features.T @ features,
            "xr": features.T @ returns,
        }
        self._sums = {
            name: self.decay * self._sums[name] + value if self._sums else value for name, value in new.items()
        }
        self._solve()

    def _solve(self) -> None:
        count, x, r, xx, xr = (self._sums[name] for name in ("count", "x", "r", "xx", "xr"))
        mean, mean_return = x / count, float(r[0] / count[0])
        covariance = xx / count - np.outer(mean, mean)
        scale = np.sqrt(np.maximum(np.diag(covariance), 1e-12 * np.maximum(np.diag(xx) / count, 1e-12)))
        matrix = covariance / np.outer(scale, scale) + self.ridge * np.eye(len(x))
        weights = np.linalg.solve(matrix, (xr / count - mean * mean_return) / scale) / scale
        self._fit = weights, mean_return - float(mean @ weights)

    def state_dict(self) -> Mapping[str, Any]:
        import torch  # slow to import, and only checkpoints hold tensors

        return {name: torch.from_numpy(value) for name, value in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums, self._fit = {name: value.numpy().astype(np.float64) for name, value in state.items()}, None
        if self._sums:
            self._solve()


@dataclass(frozen=True)
class FittedValuesOptions(Checked):
    decay: Share = 0.95
    ridge: Annotated[float, Above(0)] = 0.01


class FittedValues(Stateful[S], CreditAssigner):
    """Base of the schemes with value heads. Options: `decay` (default 0.95), the weight of a step's returns against the
    next's; `ridge` (default 0.01)."""

    promise: ClassVar[Promise] = Promise.BIASED
    null_player: ClassVar[bool] = False
    internals: ClassVar[frozenset[Internal]] = frozenset({Internal.HIDDEN})

    Options: ClassVar[type[Any]] = FittedValuesOptions
    options: FittedValuesOptions

    def new_head(self) -> ValueHead:
        return ValueHead(self.options.decay, self.options.ridge)

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        """What it is without having learned: `rloo`."""
        return Credit(broadcast(group, leave_one_out(group)))


def features(
    episode: EpisodeRecord, agents: Sequence[AgentRecord], internals: Internals, *, after: bool = False
) -> Floats:
    """[N, 2H] of every turn of these agents: what the agent has seen, and what its parent had when it called.

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
            rows.append(np.concatenate([own, parent]))
    return np.array(rows, dtype=np.float64)
