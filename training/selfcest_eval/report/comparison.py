"""Two stored studies, strategy by strategy, on the instances that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import only_trusted
from selfcest_eval.play.config import StudyConfig, load_stored_study
from selfcest_eval.play.costs import at_most
from selfcest_eval.play.results import Result, ResultKey, read_results, read_unplayable
from selfcest_eval.play.unplayable import leave_out
from selfcest_eval.report.reading import Reading, reading_of
from selfcest_eval.report.words import at_equal_accuracy, matched, sentence
from selfcest_eval.stats.frontier import compare_frontiers, match
from selfcest_eval.stats.table import Curves, curves_of

Coordinates = tuple[str, str, str, int | None, str, int]  # family, size, strategy, budget, instance, seed


def compare_studies(first: Path, second: Path, console: Console, trusted: Sequence[str] = ()) -> list[str]:
    """Print, for every strategy that both have, the first study against the second. Returns the lines.

    No code is run that only the studies name, save that of modules in `trusted`.

    Raises:
        ConfigError: a folder without a finished study, another grader, or nothing in common; it names what does not
            match.
        PlugInError: a strategy or a cost that is neither built in nor trusted.
    """
    with only_trusted(trusted):
        configs = _config(first), _config(second)
        readings = reading_of(configs[0]), reading_of(configs[1])
    for key in ("reward", "swept", "costs", "price"):
        left, right = (getattr(config, key) for config in configs)
        if left != right:
            raise ConfigError(f"{first} and {second} cannot be compared: their {key} is {left} and {right}")
    left_rows, right_rows = (_rows(folder) for folder in (first, second))
    shared, apart = left_rows.keys() & right_rows.keys(), _apart(left_rows, right_rows, first, second)
    if not shared:
        raise ConfigError(f"{first} and {second} share no result: {'; '.join(apart)}")
    names, lines = _names(first, second), [f"note: {line}" for line in apart]
    cells = curves_of([*_named(left_rows, shared, names[0]), *_named(right_rows, shared, names[1])])
    for curves in cells:
        lines += _compare_cell(curves, names, readings)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return lines


def _compare_cell(curves: Curves, names: tuple[str, str], readings: tuple[Reading, Reading]) -> list[str]:
    reading = replace(readings[0], crossed=any(reading.crossed for reading in readings))
    resampler, least, lines = reading.resampler(curves), reading.min_difference, []
    costs = [cost for cost in reading.compared if cost in readings[1].compared]
    for strategy in [strategy for strategy in reading.labels if strategy + names[0] in curves.strategies]:
        first, second = (curves.strategies[strategy + name] for name in names)
        own, other = (reading.labels[strategy] + name for reading, name in zip(readings, names, strict=True))
        for cost in costs:
            found = compare_frontiers(first, second, cost, resampler, least)
            lines.append(f"{curves.name}, {sentence(found, own, other)}")
        for left, right in zip(first, second, strict=True):
            said = matched(match(left, right, resampler, costs, least), own, other)
            lines.append(f"{curves.name}, {at_most(left.budget)}, {own} {said}")
        equal = at_equal_accuracy(match(first[-1], second[-1], resampler, costs, least), own, other, least)
        lines.append(f"{curves.name}, {at_most(first[-1].budget)}, {equal}")
    return lines


def _config(folder: Path) -> StudyConfig:
    for name in ("study.yaml", "results.jsonl"):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder} holds no {name}; expected the folder of a finished study, as studies/frontier")
    return load_stored_study(folder / "study.yaml")


def _rows(folder: Path) -> dict[Coordinates, Result]:
    file = folder / "results.jsonl"
    return {_coordinates(result.place): result for result in leave_out(read_results(file), read_unplayable(file))}


def _coordinates(place: ResultKey) -> Coordinates:
    return place.family, place.size, place.strategy, place.budget, place.task_id, place.seed


def _names(first: Path, second: Path) -> tuple[str, str]:
    left, right = first.resolve().name, second.resolve().name
    return (f" of {left}", f" of {right}") if left != right else (f" of {first}", f" of {second}")


def _named(rows: Mapping[Coordinates, Result], shared: set[Coordinates], name: str) -> list[Result]:
    return [
        replace(result, place=replace(result.place, strategy=result.place.strategy + name))
        for key, result in rows.items()
        if key in shared
    ]


def _apart(
    left: Mapping[Coordinates, Result], right: Mapping[Coordinates, Result], first: Path, second: Path
) -> Sequence[str]:
    """What one study has and the other has not, by the first coordinate that tells them apart."""
    found = []
    titles = ("family", "family and size", "strategy", "budget", "instance", "seed")
    for depth, title in enumerate(titles, 1):
        for rows, others, folder in ((left, right, first), (right, left, second)):
            above = {key[: depth - 1] for key in others}
            only = {key[:depth] for key in rows if key[: depth - 1] in above} - {key[:depth] for key in others}
            if only:
                shown = " ".join(map(str, min(only, key=str)))
                more = f" and {len(only) - 1} more" if len(only) > 1 else ""
                found.append(f"only {folder} has the {title} {shown}{more}")
    return found
