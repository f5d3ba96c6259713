"""Stored results to points: accuracy and costs by cell, strategy and budget, instance by instance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfcest_env.errors import RecordError
from selfcest_env.tasks import Style
from selfcest_eval.play.results import SCORES, Result
from selfcest_eval.stats.frontier import PerfectExecution, Point
from selfcest_eval.stats.statistics import Estimate, Resampler, Values


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
    cells: dict[tuple[str, str], list[Result]] = {}
    experts: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        (cells if result.place.style is None else experts).setdefault(result.place.eval_set, []).append(result)
    return [_curves(found, experts.get(cell, ())) for cell, found in cells.items()]


def _curves(results: Sequence[Result], experts: Sequence[Result]) -> Curves:
    place = results[0].place
    found = {(r.place.strategy, r.place.budget, r.place.task_id, r.place.seed): r for r in results}
    tasks = tuple(dict.fromkeys(r.place.task_id for r in results))
    seeds = tuple(dict.fromkeys(r.place.seed for r in results))
    costs = list(dict.fromkeys(cost for r in results for cost in r.costs or ()))
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
        here = [r for r in experts if (r.place.strategy, r.place.budget) == (strategy, budget)]
        point = replace(_point(budget, rows, costs, measured), perfect_execution=_perfect_execution(here, tasks))
        curves.setdefault(strategy, []).append(point)
    for points in curves.values():
        points.sort(key=lambda point: point.order)
    return Curves(place.family, place.size, place.shift, tasks, seeds, curves)


def _point(budget: int | None, rows: Sequence[Sequence[Result]], costs: Sequence[str], scores: Sequence[str]) -> Point:
    results = [result for row in rows for result in row]

    def values(found: Iterable[float]) -> Values:
        return np.array(list(found), dtype=float).reshape(len(rows), -1)

    return Point(
        budget,
        values(r.grade.correct for r in results),
        {cost: values(math.nan if r.costs is None else r.costs[cost] for r in results) for cost in costs},
        Counter(r.grade.note for r in results if r.grade.note),
        {name: values(r.scores[name] for r in results) for name in scores},
        Counter(r.ending for r in results),
        None
        if all(r.executed is None for r in results)
        else values(math.nan if r.executed is None else r.executed for r in results),
    )


def _perfect_execution(results: Sequence[Result], tasks: Sequence[str]) -> dict[Style, PerfectExecution]:
    """By style; an expert plays an instance the same whatever the seed of the policy."""
    found: dict[Style, dict[str, Result]] = {}
    for result in results:
        if result.place.style is not None:
            found.setdefault(result.place.style, {})[result.place.task_id] = result
    points = {}
    for style, played in found.items():
        right = {task: r for task, r in played.items() if r.costs is not None}
        names = dict.fromkeys(name for r in right.values() for name in r.costs or ())
        costs = {
            name: np.array([(right[task].costs or {})[name] if task in right else math.nan for task in tasks])
            for name in names
        }
        points[style] = PerfectExecution(costs, Counter(r.lifted for r in right.values() if r.lifted))
    return points


def _measured(results: Sequence[Result]) -> list[str]:
    """The scores that say something of a cell: the grader's if some credit is partial, support if all tasks say it."""
    partial = any(result.grade.score != result.grade.correct for result in results)
    shared = [name for name in SCORES if all(name in result.scores for result in results)]
    return [name for name in shared if partial or name != "score"]


@dataclass(frozen=True)
class TableRow:
    """One line of the table: a strategy at a budget on a cell. `point` has its counts."""

    curves: Curves
    strategy: str
    point: Point
    accuracy: Estimate
    costs: Mapping[str, Estimate]
    scores: Mapping[str, Estimate]
    executed: Estimate | None


def rows_of(curves: Curves, resampler: Resampler) -> list[TableRow]:
    """Rows by budget, then strategy."""
    rows = [
        TableRow(
            curves,
            strategy,
            point,
            resampler.share(point.correct),
            {cost: resampler.estimate(values) for cost, values in point.costs.items()},
            {name: resampler.estimate(values) for name, values in point.scores.items()},
            None if point.executed is None else resampler.share(point.executed),
        )
        for strategy, points in curves.strategies.items()
        for point in points
    ]
    return sorted(rows, key=lambda row: row.point.order)


def by_family(cells: Sequence[Curves]) -> list[Curves]:
    """Curves by family, the instances of all its sizes together."""
    families: dict[str, list[Curves]] = {}
    for curves in cells:
        families.setdefault(curves.family, []).append(curves)
    return [_pooled(found) for found in families.values()]


def _pooled(cells: Sequence[Curves]) -> Curves:
    first = cells[0]
    points = {
        strategy: [_stacked([curves.strategies[strategy][i] for curves in cells]) for i in range(len(points))]
        for strategy, points in first.strategies.items()
    }
    ids = tuple(f"{curves.size} {task_id}" for curves in cells for task_id in curves.task_ids)
    return Curves(first.family, "all sizes" if len(cells) > 1 else first.size, "in", ids, first.seeds, points)


def _stacked(points: Sequence[Point]) -> Point:
    names = dict.fromkeys(name for point in points for name in point.costs)
    costs = {name: np.concatenate([point.cost(name) for point in points]) for name in names}
    return Point(points[0].budget, np.concatenate([point.correct for point in points]), costs)
