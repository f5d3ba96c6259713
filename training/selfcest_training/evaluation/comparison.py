"""Two stored studies, arm by arm, on the instances that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from selfcest_env.errors import ConfigError
from selfcest_env.plugin import only_trusted
from selfcest_training.evaluation.arms import find_arm, shown_name
from selfcest_training.evaluation.config import StudyConfig, load_study
from selfcest_training.evaluation.frontier import compare_frontiers, match
from selfcest_training.evaluation.policies import SEED
from selfcest_training.evaluation.results import TOKEN_COSTS, Place, Result, read_results
from selfcest_training.evaluation.table import Curves, curves_of
from selfcest_training.evaluation.words import matched, sentence

Coordinates = tuple[str, str, str, int, str, int]  # family, size, arm, budget, instance, seed


def compare_studies(first: Path, second: Path, console: Console, trusted: Sequence[str] = ()) -> list[str]:
    """Print, for every arm that both have, the first study against the second. Returns the lines.

    No code is run that only the studies name, save that of modules in `trusted`.

    Raises:
        ConfigError: a folder without a finished study, another grader, or nothing in common; it names what does not
            match.
        PlugInError: an arm that is neither built in nor trusted.
    """
    configs = _config(first), _config(second)
    for key in ("reward", "swept"):
        left, right = (getattr(config, key) for config in configs)
        if left != right:
            raise ConfigError(f"{first} and {second} cannot be compared: their {key} is {left} and {right}")
    left_rows, right_rows = (_rows(folder) for folder in (first, second))
    shared, apart = left_rows.keys() & right_rows.keys(), _apart(left_rows, right_rows, first, second)
    if not shared:
        raise ConfigError(f"{first} and {second} share no result: {'; '.join(apart)}")
    names, lines = _names(first, second), [f"note: {line}" for line in apart]
    cells = curves_of([*_named(left_rows, shared, names[0]), *_named(right_rows, shared, names[1])])
    with only_trusted(trusted):
        for curves in cells:
            lines += _compare_cell(curves, names, configs)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return lines


def _compare_cell(curves: Curves, names: tuple[str, str], configs: tuple[StudyConfig, StudyConfig]) -> list[str]:
    crossed = any(SEED in str(config.policy_of(arm).options) for config in configs for arm in config.arms)
    resampler = curves.resampler(crossed=crossed, resamples=configs[0].resamples, confidence=configs[0].confidence)
    lines = []
    for arm in [arm for arm in configs[0].arms if arm + names[0] in curves.arms]:
        first, second = (curves.arms[arm + name] for name in names)
        own, other = (_shown(arm, config) + name for config, name in zip(configs, names, strict=True))
        for cost in TOKEN_COSTS:
            lines.append(f"{curves.name}, {sentence(compare_frontiers(first, second, cost, resampler), own, other)}")
        for left, right in zip(first, second, strict=True):
            said = matched(match(left, right, resampler), own, other)
            lines.append(f"{curves.name}, at most {left.budget}, {own} {said}")
    return lines


def _shown(label: str, config: StudyConfig) -> str:
    spec = config.arms[label]
    return shown_name(label, find_arm(spec.name or label))


def _config(folder: Path) -> StudyConfig:
    for name in ("study.yaml", "results.jsonl"):
        if not (folder / name).is_file():
            raise ConfigError(f"{folder} holds no {name}; expected the folder of a finished study, as studies/frontier")
    return load_study(folder / "study.yaml")


def _rows(folder: Path) -> dict[Coordinates, Result]:
    found = read_results(folder / "results.jsonl")
    return {_coordinates(result.place): result for result in found}


def _coordinates(place: Place) -> Coordinates:
    return place.family, place.size, place.arm, place.budget, place.task_id, place.seed


def _names(first: Path, second: Path) -> tuple[str, str]:
    left, right = first.resolve().name, second.resolve().name
    return (f" of {left}", f" of {right}") if left != right else (f" of {first}", f" of {second}")


def _named(rows: Mapping[Coordinates, Result], shared: set[Coordinates], name: str) -> list[Result]:
    return [
        replace(result, place=replace(result.place, arm=result.place.arm + name))
        for key, result in rows.items()
        if key in shared
    ]


def _apart(
    left: Mapping[Coordinates, Result], right: Mapping[Coordinates, Result], first: Path, second: Path
) -> Sequence[str]:
    """What one study has and the other has not, by the first coordinate that tells them apart."""
    found = []
    titles = ("family", "family and size", "arm", "budget", "instance", "seed")
    for depth, title in enumerate(titles, 1):
        for rows, others, folder in ((left, right, first), (right, left, second)):
            above = {key[: depth - 1] for key in others}
            only = {key[:depth] for key in rows if key[: depth - 1] in above} - {key[:depth] for key in others}
            if only:
                shown = " ".join(map(str, min(only)))
                more = f" and {len(only) - 1} more" if len(only) > 1 else ""
                found.append(f"only {folder} has the {title} {shown}{more}")
    return found
