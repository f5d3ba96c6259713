"""Points from stored results: accuracy and costs by eval set, strategy and budget, instance by instance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from selfcest_env.errors import RecordError
from selfcest_env.tasks import Style
from selfcest_eval.play.results import EPISODE_SCORES, REPORT_SCORES, Result
from selfcest_eval.stats.frontier import PerfectExecution, Point
from selfcest_eval.stats.statistics import Estimate, Resampler, Values


@dataclass(frozen=True)
class Curves:
    """The results of all strategies on one eval set.

    Attributes:
        family, size, shift: of the eval set.
        task_ids: tasks of the rows of every point.
        seeds: seeds of the columns of every point.
        strategies: points by strategy, in the order of budgets.
    """

    family: str
    size: str
    shift: str
    task_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    strategies: Mapping[str, Sequence[Point]]

    @property
    def size_name(self) -> str:
        return self.size + (" (out of distribution)" if self.shift == "out" else "")

    @property
    def name(self) -> str:
        return f"{self.family} {self.size_name}"


def make_curves(results: Iterable[Result]) -> list[Curves]:
    """Return the curves of each eval set.

    Raises:
        RecordError: a strategy lacks results that others have; the message names the first.
    """
    policies: dict[tuple[str, str], list[Result]] = {}
    experts: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_eval_set = policies if result.place.style is None else experts
        by_eval_set.setdefault(result.place.eval_set, []).append(result)
    return [_make_curves_of_set(of_set, experts.get(eval_set, ())) for eval_set, of_set in policies.items()]


def _make_curves_of_set(results: Sequence[Result], experts: Sequence[Result]) -> Curves:
    place = results[0].place
    result_at = {(r.place.strategy, r.place.budget, r.place.task_id, r.place.seed): r for r in results}
    tasks = tuple(dict.fromkeys(r.place.task_id for r in results))
    seeds = tuple(dict.fromkeys(r.place.seed for r in results))
    costs: dict[str, None] = {}  # an ordered set: the order in which results name their costs
    for result in results:
        costs |= dict.fromkeys(result.costs or ())
    measured = _find_measured_scores(results)
    curves: dict[str, list[Point]] = {}
    for strategy, budget in dict.fromkeys((r.place.strategy, r.place.budget) for r in results):
        missing = [(t, s) for t, s in product(tasks, seeds) if (strategy, budget, t, s) not in result_at]
        if missing:
            raise RecordError(
                f"{place.family} {place.size}: {strategy} at budget {budget} has no result for {len(missing)} "
                f"instances that others have, as {missing[0][0]} with seed {missing[0][1]}; play the study to its end "
                "with --resume"
            )
        played = [result_at[strategy, budget, task, seed] for task, seed in product(tasks, seeds)]
        of_experts = [r for r in experts if (r.place.strategy, r.place.budget) == (strategy, budget)]
        point = _make_point(budget, played, len(tasks), list(costs), measured)
        point = replace(point, perfect_execution=_make_perfect_executions(of_experts, tasks))
        curves.setdefault(strategy, []).append(point)
    for points in curves.values():
        points.sort(key=lambda point: point.order)
    return Curves(place.family, place.size, place.shift, tasks, seeds, curves)


def _make_point(
    budget: int | None, results: Sequence[Result], num_tasks: int, costs: Sequence[str], scores: Sequence[str]
) -> Point:
    """Return the point of results that are ordered by task and then by seed."""

    def to_array(values: Iterable[float]) -> Values:
        return np.array(list(values), dtype=float).reshape(num_tasks, -1)

    executed = None
    if any(result.executed is not None for result in results):
        executed = to_array(math.nan if r.executed is None else r.executed for r in results)
    costs_by_name = {}
    for cost in costs:
        costs_by_name[cost] = to_array(math.nan if r.costs is None else r.costs[cost] for r in results)
    scores_by_name = {}
    for name in (*scores, *REPORT_SCORES):
        if any(name in result.scores for result in results):
            scores_by_name[name] = to_array(r.scores.get(name, math.nan) for r in results)
    return Point(
        budget,
        to_array(r.grade.correct for r in results),
        costs_by_name,
        notes=Counter(r.grade.note for r in results if r.grade.note),
        scores=scores_by_name,
        endings=Counter(r.ending for r in results),
        executed=executed,
    )


def _make_perfect_executions(results: Sequence[Result], tasks: Sequence[str]) -> dict[Style, PerfectExecution]:
    """Return the costs of each style's expert, which plays an instance the same whatever the policy's seed."""
    result_by_task: dict[Style, dict[str, Result]] = {}
    for result in results:
        if result.place.style is not None:
            result_by_task.setdefault(result.place.style, {})[result.place.task_id] = result
    executions = {}
    for style, played in result_by_task.items():
        # The costs of a play with a mistake are stored as None.
        costs_by_task = {task: r.costs for task, r in played.items() if r.costs is not None}
        names: dict[str, None] = {}
        for task_costs in costs_by_task.values():
            names |= dict.fromkeys(task_costs)
        costs = {}
        for name in names:
            values = [costs_by_task[task][name] if task in costs_by_task else math.nan for task in tasks]
            costs[name] = np.array(values)
        lifted = Counter(r.lifted for r in played.values() if r.costs is not None and r.lifted)
        executions[style] = PerfectExecution(costs, lifted)
    return executions


def _find_measured_scores(results: Sequence[Result]) -> list[str]:
    """Return the scores worth a column: those that some results have, and the grader's if some credit is partial."""
    is_partial = any(result.grade.score != result.grade.correct for result in results)
    names = []
    for name in EPISODE_SCORES:
        if (is_partial or name != "score") and any(name in result.scores for result in results):
            names.append(name)
    return names


@dataclass(frozen=True)
class TableRow:
    """One line of the table: a strategy at a budget on an eval set, with estimates from its `point`."""

    curves: Curves
    strategy: str
    point: Point
    accuracy: Estimate
    costs: Mapping[str, Estimate]
    scores: Mapping[str, Estimate]
    executed: Estimate | None


def make_rows(curves: Curves, resampler: Resampler) -> list[TableRow]:
    """Return the rows of an eval set, by budget and then by strategy."""
    rows = []
    for strategy, points in curves.strategies.items():
        for point in points:
            accuracy = resampler.share(point.correct)
            costs = {cost: resampler.estimate(values) for cost, values in point.costs.items()}
            scores = {name: resampler.estimate(values) for name, values in point.scores.items()}
            executed = None if point.executed is None else resampler.share(point.executed)
            rows.append(TableRow(curves, strategy, point, accuracy, costs, scores, executed))
    return sorted(rows, key=lambda row: row.point.order)


def pool_families(curves_of_sets: Sequence[Curves]) -> list[Curves]:
    """Return the curves of each family, with the instances of all its sizes together."""
    families: dict[str, list[Curves]] = {}
    for curves in curves_of_sets:
        families.setdefault(curves.family, []).append(curves)
    return [_pool_sizes(of_family) for of_family in families.values()]


def _pool_sizes(curves_of_sets: Sequence[Curves]) -> Curves:
    """Return the curves of several eval sets of one family as those of one."""
    first = curves_of_sets[0]
    pooled_points = {}
    for strategy in first.strategies:
        points_of_sets = [curves.strategies[strategy] for curves in curves_of_sets]
        # Point i of every eval set is of the same budget.
        pooled_points[strategy] = [_concatenate_points(points) for points in zip(*points_of_sets, strict=True)]
    task_ids: list[str] = []
    for curves in curves_of_sets:
        # Two sizes may have a task of the same id.
        task_ids += [f"{curves.size} {task_id}" for task_id in curves.task_ids]
    size = "all sizes" if len(curves_of_sets) > 1 else first.size
    return Curves(first.family, size, "in", tuple(task_ids), first.seeds, pooled_points)


def _concatenate_points(points: Sequence[Point]) -> Point:
    """Return the points of several eval sets at one budget as one point."""
    correct = np.concatenate([point.correct for point in points])
    costs: dict[str, Values] = {}
    for point in points:
        for name in point.costs:
            if name not in costs:
                costs[name] = np.concatenate([point.cost(name) for point in points])
    return Point(points[0].budget, correct, costs)
