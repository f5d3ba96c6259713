"""Stored results to points: accuracy and costs by cell, strategy and budget, instance by instance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfcest_env.errors import RecordError
from selfcest_training.evaluation.frontier import Point
from selfcest_training.evaluation.results import COSTS, SCORES, Result
from selfcest_training.evaluation.statistics import Estimate, Resampler

Cell = tuple[str, str]  # family and size


@dataclass(frozen=True)
class Curves:
    """Everything that was measured on one cell.

    Attributes:
        family, size, shift: the cell.
        task_ids, seeds: what the rows and columns of every point are.
        strategies: points by strategy, in the order of budgets.
    """

    family: str
    size: str
    shift: str
    task_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    strategies: Mapping[str, Sequence[Point]]

    @property
    def name(self) -> str:
        return f"{self.family} {self.size}" + (" (out of distribution)" if self.shift == "out" else "")

    def resampler(self, *, crossed: bool, resamples: int, confidence: float) -> Resampler:
        sizes = len(self.task_ids), len(self.seeds)
        return Resampler(*sizes, crossed=crossed, resamples=resamples, confidence=confidence)


def curves_of(results: Iterable[Result]) -> list[Curves]:
    """Curves by cell. Raises `RecordError` that names what a strategy lacks that another has."""
    cells: dict[Cell, list[Result]] = {}
    for result in results:
        cells.setdefault(result.place.cell, []).append(result)
    return [_curves(found) for found in cells.values()]


def _curves(results: Sequence[Result]) -> Curves:
    place = results[0].place
    found = {(r.place.strategy, r.place.budget, r.place.task_id, r.place.seed): r for r in results}
    tasks = tuple(dict.fromkeys(r.place.task_id for r in results))
    seeds = tuple(dict.fromkeys(r.place.seed for r in results))
    measured = _measured(results)
    curves: dict[str, list[Point]] = {}
    for strategy, budget in dict.fromkeys((r.place.strategy, r.place.budget) for r in results):
        missing = [(t, s) for t in tasks for s in seeds if (strategy, budget, t, s) not in found]
        if missing:
            raise RecordError(
                f"{place.family} {place.size}: {strategy} at budget {budget} has no result for {len(missing)} "
                f"instances that others have, as {missing[0][0]} with seed {missing[0][1]}"
            )
        rows = [[found[strategy, budget, task, seed] for seed in seeds] for task in tasks]
        correct = np.array([[float(r.grade.correct) for r in row] for row in rows])
        costs = {cost: np.array([[float(getattr(r.costs, cost)) for r in row] for row in rows]) for cost in COSTS}
        notes = Counter(r.grade.note for row in rows for r in row if r.grade.note)
        scores = {name: np.array([[r.scores[name] for r in row] for row in rows]) for name in measured}
        curves.setdefault(strategy, []).append(Point(budget, correct, costs, notes, scores))
    for points in curves.values():
        points.sort(key=lambda point: point.budget)
    return Curves(place.family, place.size, place.shift, tasks, seeds, curves)


def _measured(results: Sequence[Result]) -> list[str]:
    """The scores that say something of a cell: the grader's if some credit is partial, support if all tasks say it."""
    partial = any(result.grade.score != result.grade.correct for result in results)
    shared = [name for name in SCORES if all(name in result.scores for result in results)]
    return [name for name in shared if partial or name != "score"]


@dataclass(frozen=True)
class Row:
    """One line of the table: a strategy at a budget on a cell. `notes` counts the grader's, over all instances."""

    family: str
    size: str
    shift: str
    strategy: str
    budget: int
    instances: int
    accuracy: Estimate
    costs: Mapping[str, Estimate]
    notes: Mapping[str, int]
    scores: Mapping[str, Estimate]


def rows_of(curves: Curves, resampler: Resampler) -> list[Row]:
    """Rows by budget, then strategy."""
    rows = [
        Row(
            *(curves.family, curves.size, curves.shift, strategy, point.budget, len(curves.task_ids)),
            resampler.estimate(point.correct),
            {cost: resampler.estimate(values) for cost, values in point.costs.items()},
            point.notes,
            {name: resampler.estimate(values) for name, values in point.scores.items()},
        )
        for strategy, points in curves.strategies.items()
        for point in points
    ]
    return sorted(rows, key=lambda row: row.budget)
