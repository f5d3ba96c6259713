"""The compared part of docs/methods.md: figures by hand, and what its evidence is of."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from studies.methods.effort import judge_effort
from studies.trained import digest_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def methods() -> ModuleType:
    return importlib.import_module("studies.methods.study")


def cell(variant: str, seed: int, earned: list[float]) -> dict[str, Any]:
    """Probed at 10, 20, 30 and 40 tokens of RL after a warm start of 100; a token cost of 0.1 everywhere."""
    size = {"accuracy": 0.5, "terms": {"correct": earned[-1] + 0.1, "token_cost": -0.1}}
    probes = {"compute_tokens": [110, 120, 130, 140]}
    for task in ("small", "large"):
        probes |= {f"probe/{task}/term/correct": [x + 0.1 for x in earned], f"probe/{task}/term/token_cost": [-0.1] * 4}
    curves = {"warmstart": {"compute_tokens": [50, 100]}, "probes": probes}
    return {"experiment": "x", "arm": variant, "seed": seed, "sizes": {"a": size, "b": size}, "curves": curves}


def test_what_a_cell_earned_and_how_fast(methods: ModuleType) -> None:
    family = methods.Family("x", "X", "base", ("correct", "token_cost"), (), "")
    base, fast, flat = (
        cell("base", 0, [0.1, 0.2, 0.3, 0.4]), cell("fast", 0, [0.2, 0.4, 0.3, 0.5]), cell("flat", 0, [0.1] * 4),
    )  # fmt: skip
    assert methods.final(base, family) == pytest.approx(0.4)
    assert methods.times_fewer(fast, base, family) == "2.0", "0.4 at 20 tokens in the place of 40"
    assert methods.times_fewer(flat, base, family) == "-"
    assert methods.times_fewer(fast, flat, family) == "x", "a baseline that has not risen is nothing to come to"
    variants = {"base": [base, cell("base", 1, [0.7])], "fast": [cell("fast", 1, [0.9]), fast, cell("fast", 2, [1.0])]}
    assert methods.gaps(variants, "fast", "base", family) == pytest.approx([0.2, 0.1]), "of seeds that both have"


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


def test_what_a_policy_for_all_budgets_is_put_beside(methods: ModuleType) -> None:
    earned = {
        "every": {"160": 0.5, "480": 0.9},
        "only_160": {"160": 0.6, "480": 0.1},
        "only_480": {"160": 0.7, "480": 0.8},
        "hidden": {"160": 0.4, "480": 0.9},
    }
    found = methods.distances({10: earned, 11: earned})
    assert {words: [[round(x, 6) for x in row] for row in rows] for words, rows in found.items()} == {
        methods.OWN: [[-0.1, 0.1]] * 2,
        "the best of the five there": [[-0.2, 0.1]] * 2,
        "`only_160`": [[-0.1, 0.8]] * 2,
        "`only_480`": [[-0.2, 0.1]] * 2,
        methods.HIDDEN: [[0.1, 0.0]] * 2,
    }


def test_perfect_execution_pays_the_cheaper_way_where_the_window_allows(methods: ModuleType) -> None:
    call = {"total_tokens": 100.0, "lifted": 0, "n": 4}
    sizes = {size: {"delegate": call, "solve": {"total_tokens": 20.0, "lifted": lifted, "n": 4}} for size, lifted in
             (("a", 0), ("b", 1), ("c", 4))}  # fmt: skip
    sizes["d"] = {"delegate": call, "solve": {"total_tokens": 300.0, "lifted": 0, "n": 4}}
    found = {"experiment": "methods_when", "errorless": sizes}
    assert methods.perfect_execution(found, chooses=False) == pytest.approx(0.6), "1 less 0.4 for 100 tokens"
    assert methods.perfect_execution(found, chooses=True) == pytest.approx(1 - 0.004 * (20 + 40 + 100 + 100) / 4)


def effort_cell(accuracy: float, rise: float, earned: float) -> dict[str, Any]:
    """A cell whose budgets earn 0.5 at best."""
    efforts = {
        "effort_25 at 480": {"accuracy": 0.9, "tokens": 100.0, "earned": 0.1},
        "effort_175 at 480": {"accuracy": accuracy, "tokens": 100.0 * (1 + rise), "earned": earned},
    }
    budgets = {f"every at {budget}": {"accuracy": 0.9, "tokens": 100.0, "earned": 0.5} for budget in (160, 480)}
    return {"points": {"methods_effort": efforts, "methods_budgets": budgets}}


@pytest.mark.parametrize(
    ("cells", "verdicts"),
    [
        ([effort_cell(0.7, 0.14, 0.5), effort_cell(0.65, -0.06, 0.32)], ["held", "held", "held"]),
        ([effort_cell(0.7, 0.04, 0.5), effort_cell(0.59, 0.08, 0.74)], ["**failed**", "**failed**", "**failed**"]),
    ],
)
def test_predictions_on_efforts_are_judged(cells: list[dict[str, Any]], verdicts: list[str]) -> None:
    lines = judge_effort(cells).splitlines()[2:]
    assert [line.split("|")[3].strip() for line in lines] == verdicts


def test_the_evidence_is_of_the_configs(methods: ModuleType) -> None:
    cells = methods.cells_in(methods.FOLDER)
    assert all(len(found["commit"]) == 40 for found in cells), "of a tree without changes"
    for experiment, arm, digest in {(found["experiment"], found["arm"], found["config"]) for found in cells}:
        assert digest == digest_of(experiment, arm)
    tuning = json.loads((methods.FOLDER / "tuning.json").read_text(encoding="utf-8"))
    assert all(run["seed"] >= 100 for run in tuning)
