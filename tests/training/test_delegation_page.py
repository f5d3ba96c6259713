"""The page of `benchmarks/delegation.py`: intervals by hand, and what stands in the documentation is what it prints."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from selfcest_env.graders import Grade
from selfcest_env.tasks import Style
from selfcest_env.types import Status
from selfcest_training.evaluation.results import Place, Result, write_result

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def delegation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("delegation", ROOT / "benchmarks" / "delegation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_intervals_over_seeds_by_hand(delegation: ModuleType) -> None:
    # Two values 0.1 apart: standard deviation 0.1 / sqrt 2, of the mean 0.05, times 12.71.
    assert delegation.over_seeds([0.9, 1.0]) == "0.95 ± 0.64"
    assert delegation.over_seeds([0.9]) == "0.90"
    assert delegation.each([0.5, None, 1.0]) == "0.50 - 1.00"


def test_the_page_is_what_the_evidence_says(delegation: ModuleType) -> None:
    cells, tuning = delegation.stored()
    assert delegation.page(cells, tuning) == (ROOT / "docs" / "delegation.md").read_text(encoding="utf-8")
    assert cells
    assert tuning


def test_what_a_cell_does_not_have_is_missing_and_not_zero(delegation: ModuleType) -> None:
    costs = dict(zip(delegation.COSTS, (206, 116, 53, 55, 4000, 300), strict=True))
    made = {"config": "c" * 16, "commit": "d" * 40, "compute_tokens": 1, "cpu_seconds": 1.0}
    cell = {
        "experiment": "long_ledgers",
        "arm": "delegating",
        "seed": 0,
        **made,
        "sizes": {"4x6": {"n": 200, "shift": "in", "accuracy": 0.11, **costs}},
        "errorless": {"4x6": {"delegate": {"n": 200, "lifted": 0, "total_tokens": 210.0}}},
    }
    row = "| 4x6 | delegating | 0.11 | 206 | 116 | 53 | 55 | 4000 | 300 | {} |"
    assert row.format("210") in delegation.page([cell], [])
    old = {**cell, "sizes": {"4x6": {name: cell["sizes"]["4x6"][name] for name in ("shift", "accuracy", *costs)}}}
    del old["errorless"], old["sizes"]["4x6"]["kv_token_steps"]
    assert row.format("—").replace("4000", "—") in delegation.page([old], [])
    # A seed that lacks it leaves no mean, and a family without an expert has none.
    assert delegation.measured([210.0, None]) == delegation.MISSING == "—"
    assert delegation.errorless_total({"errorless": {"4x6": {"delegate": {"n": 0, "lifted": 0}}}}, "4x6") is None
    assert delegation.errorless_total(cell, "4x6", "solve") is None
    assert delegation.errorless_total(cell, "4x6", "delegate") == 210.0


def test_errorless_figures_are_of_each_instance_once(delegation: ModuleType, tmp_path: Path) -> None:
    def line(strategy: str, task: str, style: Style | None, total: float | None, lifted: tuple[str, ...] = ()) -> str:
        place = Place("led", "4x6", "in", strategy, None, 0, task, style)
        costs = None if total is None else dict.fromkeys(delegation.COSTS, total)
        grade = Grade(1.0, True, True)
        key = f"{strategy} {task} {style}"
        return write_result(Result(key, key, place, (), 0, grade, Status.ANSWERED, costs, lifted=lifted), str)

    file = tmp_path / "results.jsonl"
    lines = [
        line("before", "a", None, 1.0),  # a policy's
        line("before", "a", Style.DELEGATE, 10.0),
        line("after", "a", Style.DELEGATE, 10.0),  # the same player beside another strategy
        line("after", "b", Style.DELEGATE, 20.0, ("total_tokens",)),
        line("after", "c", Style.DELEGATE, None),
        line("never", "a", Style.SOLVE, None),
    ]
    file.write_text("".join(lines), encoding="utf-8")
    assert delegation._errorless(file) == {
        "4x6": {
            "delegate": {"n": 2, "lifted": 1, **dict.fromkeys(delegation.COSTS, 15.0)},
            "solve": {"n": 0, "lifted": 0},
        }
    }


def test_every_cell_says_what_it_was_made_of(delegation: ModuleType) -> None:
    for file in delegation.EVIDENCE.glob("*_seed*.json"):
        cell = json.loads(file.read_text(encoding="utf-8"))
        assert file.stem == f"{cell['experiment']}_{cell['arm']}_seed{cell['seed']}"
        assert len(cell["config"]) == 16
        assert len(cell["commit"].partition(" ")[0]) == 40
        assert cell["cpu_seconds"] > 0
        assert cell["curves"]


def test_a_cell_of_no_experiment_is_refused(delegation: ModuleType) -> None:
    with pytest.raises(SystemExit, match="--rerun is 'whenever/a/seed0'; expected EXPERIMENT/ARM/seedN"):
        delegation.rerun("whenever/a/seed0")
    with pytest.raises(SystemExit, match="the arms of when.yaml are delegating"):
        delegation.rerun("when/reading/seed0")
