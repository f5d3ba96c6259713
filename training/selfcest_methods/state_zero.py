"""`state_zero` takes the predicted return of a task as the baseline of every turn.

Source: V_0 (arXiv 2602.03584), a value at state zero in place of a group's mean. In the paper a large model is trained
once and told of the policy by examples. Here a small regression is fitted again after every step. Details:
docs/methods.md.

    A_k = R_k - V(task, budget);   V: ridge regression of returns on the features of a task, fitted on earlier steps

Expected effect: groups of two learn with a variance near that of `rloo` in large ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from selfcest_env.plugin import Stateful
from selfcest_env.record import EpisodeGroup
from selfcest_env.structure import Above, Checked, Share
from selfcest_env.types import Limits, Task
from selfcest_methods.buckets import FORGOTTEN, Floats
from selfcest_training.credit.base import (
    Credit,
    CreditAssigner,
    Internals,
    Promise,
    ReplayRecords,
    broadcast,
    leave_one_out,
)
from selfcest_training.families import Bucket


class TaskFeatures(NamedTuple):
    """Features of a task that are known before its first turn.

    Attributes:
        family: name of the family, or `family/size` if the size is not a number.
        size: size of the task; 0 if it is not a number.
        documents: number of documents.
        budget: limit of total tokens; `None` if there is none.
    """

    family: str
    size: float
    documents: int
    budget: int | None


def get_task_features(task: Task, limits: Limits) -> TaskFeatures:
    """Return the features of a task that is played under these limits."""
    bucket = Bucket.of(task)
    family = bucket.family
    if bucket.number is None and bucket.size is not None:
        family = f"{bucket.family}/{bucket.size}"
    # Of a strategy's episode, which may have some of the documents, the metadata has the number of the whole task.
    documents = task.metadata.get("documents")
    if isinstance(documents, bool) or not isinstance(documents, int):
        documents = len(task.context)
    return TaskFeatures(family, bucket.number or 0.0, documents, limits.total_tokens)


@dataclass
class TaskValue:
    """A regression of a target, such as the return, on the features of tasks.

    The columns are 1, log(1 + documents), log(1 + budget), whether the budget is unlimited, and two for each family: 1,
    and log(1 + size) less its mean over the rollouts of the family. The prediction for an unseen family is therefore
    that of an average family at its mean size.

    The regression is fitted on the means of tasks with equal features, weighted by their rollouts. It is solved in full
    at each fit, so there is no learning rate, and the order of examples does not matter.

    Attributes:
        decay: weight of a step's rollouts at the next step.
        ridge: penalty, in rollouts.
        link: `identity` for ridge regression; `logit` for logistic regression on targets from 0 to 1.
        sums: weighted number of rollouts and weighted sum of targets, by features.
    """

    decay: float
    ridge: float
    link: Literal["identity", "logit"]
    sums: dict[TaskFeatures, tuple[float, float]] = field(default_factory=dict)
    _mean_log_sizes: dict[str, float] = field(default_factory=dict)
    _weights: Floats | None = None

    @property
    def is_fitted(self) -> bool:
        return self._weights is not None

    def __call__(self, features: TaskFeatures) -> float:
        """Return the predicted target; `nan` before the first fit."""
        if self._weights is None:
            return float("nan")
        prediction = float(self._build_rows([features])[0] @ self._weights)
        return prediction if self.link == "identity" else float(_sigmoid(np.array(prediction)))

    def fit(self, targets: Sequence[tuple[TaskFeatures, float]]) -> None:
        """Learn from a step's rollouts, each with the features of its task and its target."""
        sums = {features: (self.decay * count, self.decay * total) for features, (count, total) in self.sums.items()}
        for features, target in targets:
            count, total = sums.get(features, (0.0, 0.0))
            sums[features] = (count + 1, total + target)
        self.sums = {features: (count, total) for features, (count, total) in sums.items() if count > FORGOTTEN}
        self._solve()

    def _solve(self) -> None:
        self._weights = None
        self._mean_log_sizes = {}
        if not self.sums:
            return
        for family in sorted({features.family for features in self.sums}):
            weighted_sizes = [(np.log1p(f.size), count) for f, (count, _) in self.sums.items() if f.family == family]
            log_sizes, counts = np.array(weighted_sizes).T
            self._mean_log_sizes[family] = float(np.average(log_sizes, weights=counts))
        rows = self._build_rows(list(self.sums))
        counts, totals = np.array(list(self.sums.values())).T
        # The intercept is almost free of the penalty, which pulls everything else towards 0.
        penalty = self.ridge * np.diag([1e-6, *[1.0] * (rows.shape[1] - 1)])
        if self.link == "identity":
            self._weights = np.linalg.solve((rows.T * counts) @ rows + penalty, rows.T @ totals)
        else:
            self._weights = _solve_logistic(rows, counts, totals, penalty)

    def _build_rows(self, tasks: Sequence[TaskFeatures]) -> Floats:
        """Return the design matrix, [tasks, columns]."""
        column_by_family = {family: 4 + 2 * i for i, family in enumerate(self._mean_log_sizes)}
        rows = np.zeros((len(tasks), 4 + 2 * len(column_by_family)))
        for row, (family, size, documents, budget) in zip(rows, tasks, strict=True):
            log_budget = 0.0 if budget is None else np.log1p(budget)
            row[:4] = [1.0, np.log1p(documents), log_budget, budget is None]
            if family in column_by_family:
                column = column_by_family[family]
                row[column : column + 2] = [1.0, np.log1p(size) - self._mean_log_sizes[family]]
        return rows

    def state_dict(self) -> Mapping[str, Any]:
        return {"cells": [[*features, *sums] for features, sums in self.sums.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sums = {}
        for family, size, documents, budget, count, total in state["cells"]:
            self.sums[TaskFeatures(family, float(size), documents, budget)] = (count, total)
        self._solve()


def _solve_logistic(rows: Floats, counts: Floats, totals: Floats, penalty: Floats) -> Floats:
    """Return the weights of a penalised logistic regression by Newton's method.

    Args:
        rows: design matrix, [N, D].
        counts: rollouts of each row, [N].
        totals: sum of the targets of each row, [N].
        penalty: [D, D].
    """
    weights = np.zeros(rows.shape[1])
    for _ in range(50):
        p = _sigmoid(rows @ weights)
        gradient = rows.T @ (counts * p - totals) + penalty @ weights
        hessian = (rows.T * (counts * p * (1 - p))) @ rows + penalty
        step = np.linalg.solve(hessian, gradient)
        # A full step can overshoot where almost all targets are 0 or 1, so no logit moves by more than 2.
        largest_move = float(np.abs(rows @ step).max())
        weights = weights - step * min(1.0, 2.0 / max(largest_move, 1e-12))
        if largest_move < 1e-9:
            break
    return weights


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -30, 30))))


@dataclass(frozen=True)
class StateZeroOptions(Checked):
    """Options of `StateZero`.

    Attributes:
        decay: weight of a step's returns at the next step.
        ridge: penalty of the regression, in rollouts.
    """

    decay: Share = 0.9
    ridge: Annotated[float, Above(0)] = 0.1


class StateZero(Stateful[TaskValue], CreditAssigner):
    """Credits every turn by the return less the predicted return of the task."""

    name: ClassVar[str] = "state_zero"
    formula: ClassVar[str] = "A = R - V(task, budget), V learned from earlier steps, every turn"
    source: ClassVar[str] = "V_0, arXiv 2602.03584"
    promise: ClassVar[Promise] = Promise.UNBIASED
    null_player: ClassVar[bool] = False

    Options = StateZeroOptions
    options: StateZeroOptions

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        returns = [episode.team_return for episode in group.episodes]
        if not self.state.is_fitted:
            # A group of one has no other returns, and any fixed baseline is unbiased: here 0.
            return Credit(broadcast(group, leave_one_out(group) if len(returns) > 1 else returns))
        values = [self.state(get_task_features(episode.task, episode.limits)) for episode in group.episodes]
        errors = [team_return - value for team_return, value in zip(returns, values, strict=True)]
        diagnostics = {"state_zero_error": float(np.mean(np.square(errors)))}
        return Credit(broadcast(group, errors), diagnostics=diagnostics)

    def fit(self, groups: Sequence[EpisodeGroup], internals: Internals) -> None:
        targets = []
        for group in groups:
            for episode in group.episodes:
                targets.append((get_task_features(episode.task, episode.limits), episode.team_return))
        self.state.fit(targets)

    def initial_state(self) -> TaskValue:
        return TaskValue(self.options.decay, self.options.ridge, "identity")
