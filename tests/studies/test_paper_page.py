"""docs/paper.md says no more than the pages, tests, configs and the command that it names."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
VERDICTS = ("shown", "refuted", "open", "needs a GPU")
CLAIMS = [
    cells
    for line in PAGE.splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == 3 and cells[1].startswith(VERDICTS)
]


@pytest.fixture
def paper_cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("paper_cost")


def test_the_first_line_counts_the_claims() -> None:
    counts = Counter(next(verdict for verdict in VERDICTS if cells[1].startswith(verdict)) for cells in CLAIMS)
    assert f"Of {len(CLAIMS)} claims {counts['shown']} are shown here, {counts['refuted']} are refuted here, " in PAGE
    assert f"{counts['open']} are open, and {counts['needs a GPU']} need a GPU." in PAGE


@pytest.mark.parametrize("cells", CLAIMS, ids=lambda cells: cells[0])
def test_every_figure_stands_on_a_page_that_its_row_names(cells: list[str]) -> None:
    claim, verdict, evidence = cells
    if verdict.startswith("needs"):
        files = re.findall(r"`(?:(paper|gpu)/)?([a-z0-9_]+)(?:\.yaml)?`", evidence)
        assert any(
            (ROOT / "training/configs" / (folder or "paper") / f"{name}.yaml").is_file() for folder, name in files
        )
        return
    assert re.search(r"\b(?:small|exact|SmolLM2)\b", verdict), f"{claim}: at which scale?"
    # A figure belongs to the next page that is linked after it.
    *parts, rest = re.split(r"\]\(([\w/]+\.md)[^)]*\)", evidence)
    assert not re.search(r"\d\.\d", rest)
    for text, page in zip(parts[::2], parts[1::2], strict=True):
        there = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for figure in re.findall(r"[+-]?\d+\.\d+(?: ± \d+\.\d+| \[[+-]?\d+\.\d+, [+-]?\d+\.\d+\])?", text):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", there), f"{claim}: {figure} is not on {page}"


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) >= 15
    for file, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), f"{file}::{test}"


def test_the_costs_are_what_the_command_prints(paper_cost: ModuleType) -> None:
    assert paper_cost.table(paper_cost.Rates(sampled=5000, utilisation=0.3)) in PAGE


def test_a_cost_by_hand(paper_cost: ModuleType) -> None:
    rates = paper_cost.Rates(sampled=1000, utilisation=0.5)
    assert rates.trained == pytest.approx(989e12 / 2 / 12 / 4e9)
    assert rates.hours(4e9, 3.6e6) == pytest.approx(1)
    assert rates.hours(4e9, 3.6e6, 3600 * rates.trained) == pytest.approx(2)
    assert rates.hours(2e9, 3.6e6) == pytest.approx(0.5)
