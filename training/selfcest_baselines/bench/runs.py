"""Runs of the benchmark: made in processes of their own, stored one file per scenario, read back, written for others.

FOLDER/chain-8m5-v1.json    {"coma": {"seed_0": {"points": [[decisions, seconds, return], ...], ...}, ...}, ...}
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from selfcest_baselines.bench.entries import ENTRIES
from selfcest_baselines.learner import LEARNERS, MarlLearner, PolicyGradientLearner
from selfcest_baselines.progress import Examiner
from selfcest_env import __version__
from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.stored import by_field, stored_as, stored_text, to_stored
from selfcest_env.symbolic.scenarios import SCENARIOS, Scenario, scenario
from selfcest_training.files import write_text
from selfcest_training.lock import locked
from selfcest_training.yaml_text import read_option

POINTS = 30  # of a curve


@dataclass(frozen=True, order=True)
class Cell:
    """One run to be made: a scenario by name, an entry as `entry_of` takes it, a seed."""

    scenario: str
    entry: str
    seed: int


@stored_as(budget="budget", settings="settings", version="version", points="points")
@dataclass(frozen=True)
class Run:
    """One run that was made.

    Attributes:
        budget: CPU seconds of learning that it had; evaluations are off the clock.
        settings: of the entry, as text.
        version: of this project.
        points: decisions, CPU seconds and mean team return of the greedy policy on the scenario's frozen problems.
    """

    budget: float
    settings: str
    version: str
    points: tuple[tuple[int, float, float], ...]

    @property
    def last(self) -> float:
        """Team return at the end."""
        return self.points[-1][2]


Results = dict[Cell, Run]


def entry_of(name: str) -> MarlLearner:
    """A key of `ENTRIES`; or `package.module:Class` with its options after it, as in "mine:Own steps=512 decay=true".

    Raises:
        ConfigError: an unknown name or option, or options of a built-in learner, whose settings are those of the table.
            `PlugInError`: the reference leads to no `MarlLearner`.
    """
    if name in ENTRIES:
        return ENTRIES[name]
    reference, *words = shlex.split(name) or [""]
    if reference in ENTRIES:
        raise ConfigError(f"learner {name!r}: {reference} plays with the settings of the table; expected no options")
    return LEARNERS.make(reference, dict(map(read_option, words)), where="")


def play(cell: Cell, seconds: float) -> Run:
    """Make a run in this process."""
    torch.set_num_threads(1)
    entry, rules = entry_of(cell.entry), scenario(cell.scenario).rules
    entry.load()
    examiner = Examiner(rules, seconds=seconds, every=seconds / POINTS)
    entry.learn(rules, cell.seed, examiner)
    points = tuple((point.decisions, round(point.seconds, 3), round(point.team_return, 5)) for point in examiner.points)
    if not points:
        raise PlugInError(f"learner {cell.entry!r} never called its examiner; expected a call after every update")
    return Run(seconds, settings_of(entry, cell.entry), __version__, points)


def settings_of(entry: MarlLearner, name: str) -> str:
    """As text. Those of a class that is no dataclass are not known, and the class stands for them, as `name` has it."""
    if isinstance(entry, PolicyGradientLearner):
        return entry.settings_text()
    return stored_text(entry) if hasattr(type(entry), "__dataclass_fields__") else (shlex.split(name) or [""])[0]


def play_all(
    cells: Iterable[Cell], seconds: float, folder: Path, workers: int, report: Callable[[Cell, Run], object]
) -> None:
    """Make what the folder lacks. A run is stored when it ends.

    Raises:
        ConfigError: an unknown name; or a stored run of another budget, or by other settings of the same learner.
    """
    wanted = list(cells)
    for cell in wanted:
        entry_of(cell.entry), scenario(cell.scenario)
    with locked(folder):
        _play_all(wanted, seconds, folder, workers, report)


def _play_all(
    wanted: Sequence[Cell], seconds: float, folder: Path, workers: int, report: Callable[[Cell, Run], object]
) -> None:
    there, entries = load(folder), {cell.entry for cell in wanted}
    for cell, run in there.items():
        if run.budget != seconds:
            raise ConfigError(
                f"{folder / cell.scenario}.json holds {cell.entry} seed {cell.seed} with {run.budget:g} CPU-s; "
                f"expected {seconds:g}: give --seconds {run.budget:g}, or another --out"
            )
        if cell.entry in entries and run.settings != settings_of(entry_of(cell.entry), cell.entry):
            raise ConfigError(
                f"{folder / cell.scenario}.json holds {cell.entry} seed {cell.seed} by other settings, {run.settings}; "
                "expected those of today: give another --out"
            )
    waiting = [cell for cell in wanted if cell not in there]
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # of the processes to come
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        made = {pool.submit(play, cell, seconds): cell for cell in waiting}
        try:
            for future in as_completed(made):
                there[made[future]] = future.result()
                store(there, folder, made[future].scenario)
                report(made[future], there[made[future]])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def load(folder: Path) -> Results:
    """All runs of a folder; none if there is no such folder. Raises `ConfigError` for a file that is none of these."""
    results: Results = {}
    for file in sorted(folder.glob("*-v*.json")):
        try:
            for entry, seeds in json.loads(file.read_text(encoding="utf-8")).items():
                for seed, run in seeds.items():
                    points = tuple((int(n), float(s), float(r)) for n, s, r in run.pop("points"))
                    stored = by_field(Run, {**run, "points": points})
                    results[Cell(file.stem, entry, int(seed.removeprefix("seed_")))] = Run(**stored)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{file} holds no runs of the benchmark ({error}); move it away") from None
    return dict(sorted(results.items(), key=lambda pair: _place(pair[0])))


def _place(cell: Cell) -> tuple[int, int, str, int]:
    """Scenarios and entries in the order in which they are defined, others after them."""
    scenarios, entries = ({name: place for place, name in enumerate(known)} for known in (SCENARIOS, ENTRIES))
    place = scenarios.get(cell.scenario, len(scenarios)), entries.get(cell.entry, len(entries))
    return (*place, cell.entry, cell.seed)


def store(results: Results, folder: Path, name: str) -> None:
    """Write the file of a scenario, whole or not at all."""
    entries: dict[str, dict[str, Any]] = {}
    for cell, run in sorted(results.items()):
        if cell.scenario == name:
            entries.setdefault(cell.entry, {})[f"seed_{cell.seed}"] = to_stored(run)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.json", json.dumps(entries) + "\n")


def export(results: Results, file: Path) -> None:
    """Write all runs in the layout that marl-eval reads (Gorsane et al. 2022, arXiv 2209.10485, appendix).

    Environment, task, algorithm, run, then `step_k` with `step_count`, `elapsed_time` and metrics as lists, and
    `absolute_metrics`. That reader wants the same steps of every run, so a step is a share of the budget of CPU time:
    `step_count` is in milliseconds, and a metric the last one known by then. Metrics are `return` and, 0 for random and
    1 for optimal play, `score`.
    """
    tasks: dict[str, dict[str, dict[str, Any]]] = {}
    for cell, run in results.items():
        named = scenario(cell.scenario)
        steps: dict[str, Any] = {}
        for number in range(POINTS + 1):
            now = run.budget * number / POINTS
            found = [value for _, seconds, value in run.points if seconds <= now] or [run.points[0][2]]
            when = {"step_count": round(1000 * now), "elapsed_time": now}
            steps[f"step_{number}"] = when | _metrics(named, found[-1])
        steps["absolute_metrics"] = _metrics(named, run.last)
        tasks.setdefault(cell.scenario, {}).setdefault(cell.entry, {})[f"seed_{cell.seed}"] = steps
    write_text(file, json.dumps({"selfcest": tasks}) + "\n")


def _metrics(named: Scenario, found: float) -> dict[str, list[float]]:
    return {"return": [found], "score": [named.normalised(found)]}
