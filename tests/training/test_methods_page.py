"""The compared part of docs/methods.md: figures by hand, and what stands there is what the command prints."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def methods() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("methods")


def cell(arm: str, seed: int, earned: list[float]) -> dict[str, Any]:
    """Probed at 10, 20, 30 and 40 tokens of RL after a warm start of 100; a token cost of 0.1 everywhere."""
    size = {"accuracy": 0.5, "terms": {"correct": earned[-1] + 0.1, "token_cost": -0.1}}
    probes = {"compute_tokens": [110, 120, 130, 140]}
    for task in ("small", "large"):
        probes |= {f"probe/{task}/term/correct": [x + 0.1 for x in earned], f"probe/{task}/term/token_cost": [-0.1] * 4}
    curves = {"warmstart": {"compute_tokens": [50, 100]}, "probes": probes}
    return {"experiment": "x", "arm": arm, "seed": seed, "sizes": {"a": size, "b": size}, "curves": curves}


def test_what_a_cell_earned_and_how_fast(methods: ModuleType) -> None:
    family = methods.Family("x", "base", ("correct", "token_cost"), (), "")
    base, fast, flat = (
        cell("base", 0, [0.1, 0.2, 0.3, 0.4]), cell("fast", 0, [0.2, 0.4, 0.3, 0.5]), cell("flat", 0, [0.1] * 4),
    )  # fmt: skip
    assert methods.final(base, family) == pytest.approx(0.4)
    assert methods.times_fewer(fast, base, family) == pytest.approx(2.0), "0.4 at 20 tokens in the place of 40"
    assert methods.times_fewer(flat, base, family) is None
    assert methods.times_fewer(fast, flat, family) is None, "a baseline that has not risen is nothing to come to"


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([0.1, 0.11, 0.12], "**better**"),
        ([-0.1, -0.11, -0.12], "**worse**"),
        ([0.0, 0.1, 0.2], "undecided"),
        ([0.3], "undecided"),
    ],
)
def test_a_verdict_needs_an_interval_that_leaves_out_zero(methods: ModuleType, gaps: list[float], said: str) -> None:
    assert methods.verdict(gaps) == said
    if len(gaps) == 3 and gaps[0] == 0.1:  # 4.303 x 0.01 / sqrt 3
        assert methods.signed(gaps) == "+0.110 ± 0.025"


def test_distances_are_of_each_budget(methods: ModuleType) -> None:
    earned = {
        "every": {"160": 0.5, "480": 0.9},
        "only_160": {"160": 0.6, "480": 0.1},
        "only_480": {"160": 0, "480": 0.8},
    }
    assert methods.distances(earned) == pytest.approx([-0.1, 0.1])


def test_the_page_is_what_the_command_prints(methods: ModuleType) -> None:
    text, cells = methods.PAGE.read_text(encoding="utf-8"), methods.cells_in(methods.FOLDER)
    assert methods.page(cells, text) == text
    delegation = importlib.import_module("delegation")  # which the page has imported
    for found in cells:
        assert len(found["commit"]) == 40, "of a tree without changes"
        assert found["config"] == delegation.digest_of(found["experiment"], found["arm"])
    tuning = json.loads((methods.FOLDER / "tuning.json").read_text(encoding="utf-8"))
    assert all(run["seed"] >= 100 for run in tuning)


def test_titles_of_the_picture_are_headings_of_the_page(methods: ModuleType) -> None:
    headings = [line for line in methods.PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("### ")]
    assert {f"### {family.title}" for family in methods.FAMILIES} <= set(headings)
    assert len({family.title for family in methods.FAMILIES}) == len(methods.FAMILIES)
