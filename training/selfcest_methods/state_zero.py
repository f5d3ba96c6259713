"""`state_zero` takes the predicted return of a task as the baseline, after V_0 (arXiv 2602.03584). If it works, groups
of one learn, with a variance near that of `rloo`.

    A_k = R_k - V(task, budget);   V: ridge regression of returns on what is known of a task, fitted on earlier steps

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from selfcest_env.plugin import Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Above, Checked, Share
from selfcest_env.types import Limits, Task
from selfcest_training.credit.base import Credit, CreditAssigner, Internals, Promise, Replayed, broadcast, leave_one_out
from selfcest_training.families import Bucket

Floats = npt.NDArray[np.float64]
# Family (with a size that is no number), size, documents, and budget in tokens: `None` where it is unlimited.
Cell = tuple[str, float, int, int | None]
FORGOTTEN = 1e-3  # rollouts that a cell, or a bucket, still counts for when it is dropped


def cell_of(task: Task, limits: Limits) -> Cell:
    """What the model sees of a task at state zero."""
    bucket = Bucket.of(task)
    family = bucket.family if bucket.number is not None or bucket.size is None else f"{bucket.family}/{bucket.size}"
    return family, bucket.number or 0.0, len(task.context), limits.total_tokens


@dataclass
class TaskValue:
    """A regression on features of cells: 1, log(1 + documents), log(1 + budget), whether there is none, and per family
    1 and log(1 + size) less its mean over the family's rollouts.

    Ridge regression (`identity`) or, for targets from 0 to 1, logistic regression (`logit`), on means of cells weighed
    by their rollouts, of which each step counts `decay` of the next. Solved anew at each fit: no learning rate, no
    order of examples. A family that was not seen has no features of its own: its value is the mean of
    families, each at its own mean size.

    Attributes:
        cells: rollouts and sum of their targets.
    """

    decay: float
    ridge: float
    link: Literal["identity", "logit"]
    cells: dict[Cell, tuple[float, float]] = field(default_factory=dict)
    _middles: dict[str, float] = field(default_factory=dict)
    _weights: Floats | None = None

    @property
    def fitted(self) -> bool:
        return self._weights is not None

    def __call__(self, cell: Cell) -> float:
        """The prediction; not a number before the first fit."""
        if self._weights is None:
            return float("nan")
        found = float(self._features([cell])[0] @ self._weights)
        return found if self.link == "identity" else float(_sigmoid(np.array(found)))

    def fit(self, found: Sequence[tuple[Cell, float]]) -> None:
        """Learn from a step's rollouts, each with its target."""
        cells = {cell: (self.decay * count, self.decay * total) for cell, (count, total) in self.cells.items()}
        for cell, target in found:
            count, total = cells.get(cell, (0.0, 0.0))
            cells[cell] = count + 1, total + target
        self.cells = {cell: sums for cell, sums in cells.items() if sums[0] > FORGOTTEN}
        self._solve()

    def _solve(self) -> None:
        self._weights, self._middles = None, {}
        if not self.cells:
            return
        for family in sorted({family for family, *_ in self.cells}):
            found = [(np.log1p(size), n) for (of, size, *_), (n, _) in self.cells.items() if of == family]
            sizes, counts = np.array(found).T
            self._middles[family] = float(np.average(sizes, weights=counts))
        features = self._features(list(self.cells))
        counts, totals = np.array(list(self.cells.values())).T
        penalty = self.ridge * np.diag([1e-6, *[1.0] * (features.shape[1] - 1)])  # the mean is free
        if self.link == "identity":
            weighted = features.T * counts
            self._weights = np.linalg.solve(weighted @ features + penalty, features.T @ totals)
            return
        weights = np.zeros(features.shape[1])
        for _ in range(50):  # Newton's method; no step moves a logit by more than 2
            p = _sigmoid(features @ weights)
            slope = features.T @ (counts * p - totals) + penalty @ weights
            curvature = (features.T * (counts * p * (1 - p))) @ features + penalty
            move = np.linalg.solve(curvature, slope)
            far = float(np.abs(features @ move).max())
            weights = weights - move * min(1.0, 2.0 / max(far, 1e-12))
            if far < 1e-9:
                break
        self._weights = weights

    def _features(self, cells: Sequence[Cell]) -> Floats:
        places = {family: 4 + 2 * i for i, family in enumerate(self._middles)}
        rows = np.zeros((len(cells), 4 + 2 * len(places)))
        for row, (family, size, documents, budget) in zip(rows, cells, strict=True):
            row[:4] = 1.0, np.log1p(documents), 0.0 if budget is None else np.log1p(budget), budget is None
            if family in places:
                row[places[family] :][:2] = 1.0, np.log1p(size) - self._middles[family]
        return rows

    def state_dict(self) -> Mapping[str, Any]:
        return {"cells": [[*cell, *sums] for cell, sums in self.cells.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.cells = {(f, float(s), d, b): (n, total) for f, s, d, b, n, total in state["cells"]}
        self._solve()


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -30, 30))))


@dataclass(frozen=True)
class StateZeroOptions(Checked):
    decay: Share = 0.9
    ridge: Annotated[float, Above(0)] = 0.1


class StateZero(Stateful[TaskValue], CreditAssigner):
    """Options: `decay` (default 0.9), the weight of a step's returns against the next's; `ridge` (default 0.1), in
    rollouts."""

    name: ClassVar[str] = "state_zero"
    formula: ClassVar[str] = "A = R - V(task, budget), V learned from earlier steps, every turn"
    source: ClassVar[str] = "V_0, arXiv 2602.03584"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = False

    Options = StateZeroOptions
    options: StateZeroOptions

    def assign(self, group: EpisodeGroup, replayed: Replayed) -> Credit:
        returns = [episode.team_return for episode in group.episodes]
        if not self.state.fitted:
            return Credit(broadcast(group, leave_one_out(group) if len(returns) > 1 else returns))
        errors = [r - self.state(cell_of(e.task, e.limits)) for r, e in zip(returns, group.episodes, strict=True)]
        missed = {"state_zero_error": float(np.mean(np.square(errors)))}
        return Credit(broadcast(group, errors), diagnostics=missed)

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        episodes = [episode for group in groups for episode in group.episodes]
        self.state.fit([(cell_of(episode.task, episode.limits), episode.team_return) for episode in episodes])

    def initial_state(self) -> TaskValue:
        return TaskValue(self.options.decay, self.options.ridge, "identity")
