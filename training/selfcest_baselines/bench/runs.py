"""Runs of the benchmark: they are played in separate processes and stored in one file per scenario.

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
from selfcest_env.symbolic.scenarios import SCENARIOS, Scenario, get_scenario
from selfcest_training.faults import report_killed_worker
from selfcest_training.files import write_text
from selfcest_training.lock import lock_folder
from selfcest_training.yaml_text import read_option

POINTS = 30  # evaluations of a run


@dataclass(frozen=True, order=True)
class BenchmarkCell:
    """The key of one run.

    Attributes:
        scenario: name of the scenario.
        entry: name of the learner, as `find_entry` takes it.
        seed: random seed.
    """

    scenario: str
    entry: str
    seed: int


@stored_as(budget="budget", settings="settings", version="version", points="points")
@dataclass(frozen=True)
class Run:
    """The result of one run.

    Attributes:
        budget: CPU seconds of learning, evaluations excluded.
        settings: settings of the learner as text.
        version: version of this project that played it.
        points: per evaluation the decisions so far, the CPU seconds so far, and the mean team return of the greedy
            policy on the frozen problems of the scenario.
    """

    budget: float
    settings: str
    version: str
    points: tuple[tuple[int, float, float], ...]

    @property
    def last(self) -> float:
        """The team return at the end."""
        return self.points[-1][2]


Results = dict[BenchmarkCell, Run]


def find_entry(name: str) -> MarlLearner:
    """Return the learner of an entry.

    Args:
        name: a key of `ENTRIES`, or `package.module:Class` with options: "my_package.learner:Mine steps=512".

    Raises:
        ConfigError: the name or an option is unknown, or a built-in learner is given options.
        PlugInError: the reference is no `MarlLearner`.
    """
    if name in ENTRIES:
        return ENTRIES[name]
    reference, *words = shlex.split(name) or [""]
    if reference in ENTRIES:
        raise ConfigError(
            f"learner {name!r} has options; expected {reference!r} alone, because the benchmark fixes the settings of "
            f"built-in learners: train other settings with `python -m selfcest_baselines {reference}`"
        )
    return LEARNERS.make(reference, dict(map(read_option, words)), where="")


def play(cell: BenchmarkCell, seconds: float) -> Run:
    """Play one run in this process.

    Args:
        cell: scenario, learner and seed.
        seconds: budget of CPU seconds.

    Raises:
        ConfigError: the scenario or the learner is unknown.
        PlugInError: the learner never called its examiner.
    """
    torch.set_num_threads(1)  # CPU seconds are compared, and threads would use several at once
    entry = find_entry(cell.entry)
    rules = get_scenario(cell.scenario).rules
    entry.load()
    examiner = Examiner(rules, seconds=seconds, every=seconds / POINTS)
    entry.learn(rules, cell.seed, examiner)
    if not examiner.points:
        raise PlugInError(f"learner {cell.entry!r} never called its examiner; expected a call after every update")
    points = tuple((point.decisions, round(point.seconds, 3), round(point.team_return, 5)) for point in examiner.points)
    return Run(seconds, settings_text(entry, cell.entry), __version__, points)


def settings_text(entry: MarlLearner, name: str) -> str:
    """Return the settings of a learner as text, with which stored results are matched."""
    if isinstance(entry, PolicyGradientLearner):
        return entry.settings_text()
    if hasattr(type(entry), "__dataclass_fields__"):
        return stored_text(entry)
    # The options of any other class cannot be read back, so its reference stands for them.
    reference, *_ = shlex.split(name) or [""]
    return reference


def play_all(
    cells: Iterable[BenchmarkCell],
    seconds: float,
    folder: Path,
    workers: int,
    report: Callable[[BenchmarkCell, Run], object],
) -> None:
    """Play the runs that a folder lacks, and store each one when it ends.

    Args:
        cells: the runs.
        seconds: budget of CPU seconds per run.
        folder: folder of results.
        workers: number of processes.
        report: called with every new run.

    Raises:
        ConfigError: a name is unknown, or the folder holds a run with another budget or with other settings.
    """
    cells = list(cells)
    # Names are checked before anything is played.
    for cell in cells:
        find_entry(cell.entry)
        get_scenario(cell.scenario)
    with lock_folder(folder):
        _play_missing(cells, seconds, folder, workers, report)


def _play_missing(
    cells: Sequence[BenchmarkCell],
    seconds: float,
    folder: Path,
    workers: int,
    report: Callable[[BenchmarkCell, Run], object],
) -> None:
    results = load(folder)
    entries = {cell.entry for cell in cells}
    for cell, run in results.items():
        file = f"{folder / cell.scenario}.json"
        if run.budget != seconds:
            raise ConfigError(
                f"{file} holds {cell.entry} seed {cell.seed} with a budget of {run.budget:g} CPU seconds; expected "
                f"{seconds:g}: pass --seconds {run.budget:g}, or another --out"
            )
        if cell.entry in entries and run.settings != settings_text(find_entry(cell.entry), cell.entry):
            raise ConfigError(
                f"{file} holds {cell.entry} seed {cell.seed} with other settings, {run.settings}; expected the current "
                "settings: pass another --out"
            )
    missing = [cell for cell in cells if cell not in results]
    # Processes read these variables when they start.
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        cell_of = {pool.submit(play, cell, seconds): cell for cell in missing}
        advice = f"the same command plays the runs that {folder} lacks"
        try:
            with report_killed_worker(pool, advice):
                for future in as_completed(cell_of):
                    cell = cell_of[future]
                    results[cell] = future.result()
                    store(results, folder, cell.scenario)
                    report(cell, results[cell])
        except BaseException:
            # Without this the pool would play all other runs before the error is seen.
            pool.shutdown(cancel_futures=True)
            raise


def load(folder: Path) -> Results:
    """Return all runs of a folder, none if the folder does not exist.

    Raises:
        ConfigError: a file holds something else.
    """
    results: Results = {}
    for file in sorted(folder.glob("*-v*.json")):
        try:
            for entry, seeds in json.loads(file.read_text(encoding="utf-8")).items():
                for seed, run in seeds.items():
                    points = tuple((int(n), float(s), float(r)) for n, s, r in run.pop("points"))
                    stored = by_field(Run, {**run, "points": points})
                    results[BenchmarkCell(file.stem, entry, int(seed.removeprefix("seed_")))] = Run(**stored)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{file} cannot be read as runs of the benchmark ({error}); expected a file of `selfcest bench`: move "
                "it to another folder"
            ) from None
    return dict(sorted(results.items(), key=lambda pair: _sort_key(pair[0])))


def _sort_key(cell: BenchmarkCell) -> tuple[int, int, str, int]:
    """Order scenarios and entries as they are defined, and unknown ones after them."""
    scenarios = list(SCENARIOS)
    entries = list(ENTRIES)
    scenario_rank = scenarios.index(cell.scenario) if cell.scenario in SCENARIOS else len(scenarios)
    entry_rank = entries.index(cell.entry) if cell.entry in ENTRIES else len(entries)
    return scenario_rank, entry_rank, cell.entry, cell.seed


def store(results: Results, folder: Path, name: str) -> None:
    """Write the file of one scenario atomically."""
    entries: dict[str, dict[str, Any]] = {}
    for cell, run in sorted(results.items()):
        if cell.scenario == name:
            entries.setdefault(cell.entry, {})[f"seed_{cell.seed}"] = to_stored(run)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.json", json.dumps(entries) + "\n")


def export(results: Results, file: Path) -> None:
    """Write all runs in the layout that marl-eval reads (Gorsane et al. 2022, arXiv 2209.10485, appendix).

    The levels are environment, task, algorithm and run, then `step_k` with `step_count`, `elapsed_time` and metrics as
    lists, and `absolute_metrics`. The metrics are `return`, and `score` with 0 for random and 1 for optimal play.
    """
    tasks: dict[str, dict[str, dict[str, Any]]] = {}
    for cell, run in results.items():
        scenario = get_scenario(cell.scenario)
        steps: dict[str, Any] = {}
        # marl-eval needs the same steps in every run. So a step is a share of the budget of CPU time, counted in
        # milliseconds, and its metric is the last one measured by then.
        for number in range(POINTS + 1):
            elapsed = run.budget * number / POINTS
            returns = [team_return for _, seconds, team_return in run.points if seconds <= elapsed]
            latest = returns[-1] if returns else run.points[0][2]
            times = {"step_count": round(1000 * elapsed), "elapsed_time": elapsed}
            steps[f"step_{number}"] = times | _metrics(scenario, latest)
        steps["absolute_metrics"] = _metrics(scenario, run.last)
        tasks.setdefault(cell.scenario, {}).setdefault(cell.entry, {})[f"seed_{cell.seed}"] = steps
    write_text(file, json.dumps({"selfcest": tasks}) + "\n")


def _metrics(scenario: Scenario, team_return: float) -> dict[str, list[float]]:
    return {"return": [team_return], "score": [scenario.normalize_return(team_return)]}
