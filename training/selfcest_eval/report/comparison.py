"""Two stored studies, strategy by strategy, on the instances that they share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import only_trusted
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.report.findings import compare_pair
from selfcest_eval.report.sources import Source, load_folder_config, read_study
from selfcest_eval.report.words import describe_comparison
from selfcest_eval.stats.frontier import Point
from selfcest_eval.stats.table import Curves
from selfcest_training.printing import print_text

Coordinates = tuple[str, str, str, int | None, str, int]  # family, size, strategy, budget, instance, seed


def compare_studies(first: Path, second: Path, console: Console, trusted: Sequence[str] = ()) -> list[str]:
    """Print, for every strategy that both studies have, the first study against the second. Returns the lines.

    No code is run that only the studies name, save that of modules in `trusted`.

    Raises:
        ConfigError: a folder has no finished study, the graders differ, or the studies share no result; it names what
            does not match.
        PlugInError: a strategy or a cost is neither built in nor trusted.
    """
    with only_trusted(trusted):
        left = _read_study(first)
        right = _read_study(second)
    for key in ("reward", "swept", "costs", "price"):
        left_value = getattr(left.study, key)
        right_value = getattr(right.study, key)
        if left_value != right_value:
            raise ConfigError(f"{first} and {second} cannot be compared: their {key} is {left_value} and {right_value}")
    left_coordinates = set(_coordinates(left))
    right_coordinates = set(_coordinates(right))
    differences = _differences(left_coordinates, right_coordinates, first, second)
    if not left_coordinates & right_coordinates:
        raise ConfigError(f"{first} and {second} share no result: {'; '.join(differences)}")
    lines = [f"note: {line}" for line in differences]
    endings = _endings(first, second)
    cells = {(curves.family, curves.size): curves for curves in right.cells}
    for curves in left.cells:
        other = cells.get((curves.family, curves.size))
        if other is not None:
            lines += _compare_cell(curves, other, left, right, endings)
    for line in lines:
        print_text(console, line)
    return lines


def _read_study(folder: Path) -> Source:
    config = load_folder_config(folder)
    if not isinstance(config, StudyConfig):
        raise ConfigError(f"{folder} holds a training run; expected the folder of a finished study")
    return read_study(config, for_page=False)


def _coordinates(source: Source) -> Iterator[Coordinates]:
    for curves in source.cells:
        for strategy, points in curves.strategies.items():
            budgets = [point.budget for point in points]
            for budget, task_id, seed in product(budgets, curves.task_ids, curves.seeds):
                yield curves.family, curves.size, strategy, budget, task_id, seed


def _endings(first: Path, second: Path) -> tuple[str, str]:
    """Return what follows the name of a strategy in either study."""
    left = first.resolve().name
    right = second.resolve().name
    return (f" of {left}", f" of {right}") if left != right else (f" of {first}", f" of {second}")


def _compare_cell(
    left: Curves, right: Curves, left_source: Source, right_source: Source, endings: tuple[str, str]
) -> list[str]:
    """Compare both studies on the tasks, the seeds and the budgets of a cell that both have."""
    task_ids = [task_id for task_id in left.task_ids if task_id in right.task_ids]
    seeds = [seed for seed in left.seeds if seed in right.seeds]
    if not task_ids or not seeds:
        return []
    right_costs = right_source.settings.compared
    settings = replace(
        left_source.settings,
        crossed=left_source.settings.crossed or right_source.settings.crossed,
        compared=[cost for cost in left_source.settings.compared if cost in right_costs],
    )
    lines = []
    for strategy in settings.labels:
        budgets = _budgets(left, strategy) & _budgets(right, strategy)
        if budgets:
            first = left_source.settings.names[strategy] + endings[0]
            second = right_source.settings.names[strategy] + endings[1]
            points = {
                first: _select(left, strategy, budgets, task_ids, seeds),
                second: _select(right, strategy, budgets, task_ids, seeds),
            }
            shared = Curves(left.family, left.size, left.shift, tuple(task_ids), tuple(seeds), points)
            comparison = compare_pair(shared, first, second, settings)
            names = {first: first, second: second}
            for line in describe_comparison(comparison, names, settings.min_difference):
                lines.append(f"{shared.name}, {line}")
    return lines


def _budgets(curves: Curves, strategy: str) -> set[int | None]:
    return {point.budget for point in curves.strategies.get(strategy, ())}


def _select(
    curves: Curves, strategy: str, budgets: Collection[int | None], task_ids: Sequence[str], seeds: Sequence[int]
) -> list[Point]:
    """Return the points of a strategy at these budgets, with the accuracies and costs of these tasks and seeds."""
    rows = [curves.task_ids.index(task_id) for task_id in task_ids]
    columns = [curves.seeds.index(seed) for seed in seeds]
    index = np.ix_(rows, columns)
    points = []
    for point in curves.strategies[strategy]:
        if point.budget in budgets:
            costs = {name: values[index] for name, values in point.costs.items()}
            points.append(Point(point.budget, point.correct[index], costs))
    return points


def _differences(left: set[Coordinates], right: set[Coordinates], first: Path, second: Path) -> list[str]:
    """Return the results of only one study, each by the first coordinate that the other study lacks."""
    lines = []
    for depth, title in enumerate(("family", "family and size", "strategy", "budget", "instance", "seed"), 1):
        for coordinates, other_coordinates, folder in ((left, right, first), (right, left, second)):
            shared = {key[: depth - 1] for key in other_coordinates}
            missing = {key[:depth] for key in coordinates if key[: depth - 1] in shared}
            missing -= {key[:depth] for key in other_coordinates}
            if missing:
                example = " ".join(map(str, min(missing, key=str)))
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                lines.append(f"only {folder} has the {title} {example}{more}")
    return lines
