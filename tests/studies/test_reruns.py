"""Every study's `--rerun` stores results: real work made small, or a stored run where hours of training would be."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from rich.console import Console
from typer.main import get_group

from selfcest_cli.calibrate import Calibration, CalibrationOptions
from selfcest_cli.main import app
from selfcest_eval.play.model_costs import read_shape
from selfcest_training.config import RunConfig
from selfcest_training.config_file import read_config
from selfcest_training.planning.crossing import LinearCount, TextLengths
from selfcest_training.planning.engine_timing import BatchShape, BatchTiming, EngineTimings
from studies import trained
from studies.__main__ import NAMES
from studies.runner import CONFIGS, Study, read_json, run_study

pytestmark = pytest.mark.usefixtures("one_thread")

CELLS = {
    "cells": ["cells/deciding/seed0"],
    "credit_map": ["additive-4/broadcast"],
    "gallery": ["episodes", "example"],
    "league": ["influence", "quartet/rloo"],
    "methods": ["methods_when/deciding/seed0", "sweep/seed0", "effort/seed0", "play"],
    "novels": ["deciding/seed0", "seconds"],
    "scaling": ["episodes", "curve", "results"],
    "stopping": ["stopping/deciding/seed0"],
    "when": ["when/deciding/seed0"],
    "where": ["where/deciding/seed0"],
}
# The reruns that need seconds.
SLOW = ("gallery", "league", "methods", "scaling", "stopping", "when")
TRAINED = [cell.partition("/")[0] for cells in CELLS.values() for cell in cells if cell.endswith("/deciding/seed0")]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that comes with the gallery: of `quick.yaml`, with 40 episodes in each test."""
    gallery = importlib.import_module("studies.gallery.study")
    folder = tmp_path_factory.mktemp("unpacked")
    gallery.unpack(gallery.RUN, folder)
    return folder / "example"


class InThread(ThreadPoolExecutor):
    """Runs jobs in this process, where the patches below hold."""

    _processes: ClassVar[dict[int, object]] = {}

    def __init__(self, workers: int, mp_context: object) -> None:
        super().__init__(workers)


class FormulaTimer:
    """Every batch takes a millisecond a prompt token and a tenth of a second a step."""

    max_positions = 20000

    def time_batch(self, shape: BatchShape, round_number: int) -> BatchTiming:
        seconds = 1e-3 * shape.requests * shape.prompt_tokens + 0.1 * shape.new_tokens
        return BatchTiming(shape, round_number, (shape.new_tokens,) * shape.requests, seconds)


@contextmanager
def stand_in_calibration(config: RunConfig, options: CalibrationOptions, console: Console) -> Iterator[Calibration]:
    shapes = [BatchShape(requests, prompt, new) for requests in (1, 16) for prompt in (64, 256) for new in (1, 17)]
    timer: Any = FormulaTimer()
    subject = {"model": "a", "sampler": "b", "threads": 2, "machine": "c"}
    timed = tuple(timer.time_batch(shape, number) for shape in shapes for number in (1, 2))
    options.file.write_text("timings")
    lengths = TextLengths("by hand", 512, 100, LinearCount(80, 5), LinearCount(40, 0), LinearCount(10, 4), 8, 16)
    yield Calibration(timer, EngineTimings(subject, 16, timed), lengths, read_shape("smollm2"))


@pytest.fixture
def small_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: Path) -> None:
    """Make the work of every study small. Commands of `selfcest` are parsed, and leave the example run behind."""
    monkeypatch.chdir(tmp_path)
    quick: dict[str, Any] = read_config(CONFIGS / "quick.yaml")
    quick["evaluation"]["episodes"] = 40
    config = tmp_path / "quick.yaml"
    config.write_text(yaml.safe_dump(quick), encoding="utf-8")
    for experiment in TRAINED:
        monkeypatch.setitem(trained.EXPERIMENTS, experiment, config)

    def stand_in(command: str, *words: str) -> None:
        group = get_group(app)
        group.commands[command].make_context(command, list(words))
        name = next(word.removeprefix("name=") for word in words if word.startswith("name="))
        if command == "train":
            shutil.copytree(example, Path("runs") / name, dirs_exist_ok=True)
        else:
            shutil.copytree(example / "deciding" / "seed0" / "evaluation", Path("studies") / name)

    monkeypatch.setattr(trained, "selfcest", stand_in)
    for module in ("methods.study", "methods.play", "methods.effort", "novels.study"):
        monkeypatch.setattr(importlib.import_module(f"studies.{module}"), "selfcest", stand_in)
    Path("runs/methods_budgets_seed0/every/seed0/model").mkdir(parents=True)
    Path("example").mkdir()
    shutil.copy(example / "config.yaml", "example")
    played = tmp_path / "played.yaml"
    policy = "runs/novels/deciding/seed{seed}/model"
    eval_set = {"family": "priced", "size": "4k"}
    task = {"name": "babilong", "options": {"source": {"name": "babi", "limit": 2}}}
    spec = {"policy": policy, "strategies": {"delegate": {}}, "eval_sets": [eval_set], "tasks": {"priced": task}}
    played.write_text(yaml.safe_dump(spec), encoding="utf-8")
    sizes: dict[str, dict[str, object]] = {
        "credit_map": {"SEEDS": (0,), "BUDGET": 1, "ProcessPoolExecutor": InThread},
        "when": {"measure": lambda config, variant, results: {}},  # of priced ledgers, which the example has none of
        "stopping": {"measure": lambda config, variant, results: {}},  # likewise, of offers
        "novels": {"VARIANTS": ("deciding",), "TRAINED": config, "PLAYED": played, "check_stories": lambda part: None},
        "scaling": {"GROUPS": 1, "WORKERS": (1, 2), "RANKS": (1,), "PER_WORKER": 8, "STRONG": 16},
    }
    monkeypatch.setattr(importlib.import_module("studies.novels.seconds"), "calibrate", stand_in_calibration)
    for study, values in sizes.items():
        for constant, value in values.items():
            monkeypatch.setattr(importlib.import_module(f"studies.{study}.study"), constant, value)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in NAMES]
)
def test_a_rerun_stores_its_results(name: str, small_work: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Cells could not be trained again after a keyword was renamed, and no test called what reads their results."""
    study: Study = importlib.import_module(f"studies.{name}.study").STUDY
    assert (study.rerun is not None) == (name in CELLS), "CELLS has small cells of every study that plays cells again"
    if study.rerun is None:
        return
    run_study(name, study, ["--rerun", *CELLS[name], "--workers", "1"])
    prefix = "written to "
    written = [line.removeprefix(prefix) for line in capsys.readouterr().out.splitlines() if line.startswith(prefix)]
    assert len(written) >= len(CELLS[name])
    assert all(Path(file).stat().st_size > 0 for file in written)
    assert {Path(file).parent for file in written} == {Path("runs/rerun") / name / "1"}


def test_a_cell_of_seconds_has_what_was_predicted_and_measured(small_work: None) -> None:
    study: Study = importlib.import_module("studies.novels.study").STUDY
    run_study("novels", study, ["--rerun", "seconds"])
    folder = Path("runs/rerun/novels/1")
    cell = read_json(folder / "seconds.json")
    assert (folder / "seconds.jsonl").exists()
    # The formula has no pairs of tokens, so delegation is never cheaper in seconds. It is in FLOPs.
    assert [crossing["length"] for crossing in cell["crossings"]] == [None, None]
    assert 1024 < cell["flops_crossing"] < 8192
    assert cell["fit"]["per prompt token"] == pytest.approx(1e-3)
    plays = {(play["strategy"], play["at_once"], play["text_tokens"]): play for play in cell["plays"]}
    full = plays["full reader", 1, 8192]
    assert full["predicted"] == pytest.approx(1e-3 * (100 + 8192) + 0.1 * 16)
    assert full["seconds"] == pytest.approx([full["predicted"]] * 3), "a warm-up and three plays"
    assert plays["full reader", 1, 32000]["not_measured"] == "a context is longer than the model's window"
    cost = next(cost for cost in cell["costs"] if (cost["strategy"], cost["text_tokens"]) == ("full reader", 1024))
    shape = read_shape("smollm2")
    cached = 100 + 1024 + 16
    assert cost["flops"] == pytest.approx(shape.flops(0, cached) + 16 * shape.output_flops)
    assert cost["memory"] == 2 * (shape.weights + cached * shape.cached_numbers)
