"""Tables, intervals and verdicts on results made by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from selfcest_training.evaluation.evaluate import EpisodeResult
from selfcest_training.evaluation.run_report import (
    difference,
    interval,
    markdown,
    plot_frontier,
    summarise,
    verdicts,
    warnings,
    write_csv,
)


def results(correct: list[bool], tokens: int) -> list[EpisodeResult]:
    return [
        EpisodeResult("sum", "4", "in", 0.0, f"t{i}", right, "answered", tokens + i, 10, 8, 30, 2)
        for i, right in enumerate(correct)
    ]


BY_SEED = {
    ("delegating", 0): results([True, True, True, True], 100),
    ("delegating", 1): results([True, True, True, False], 100),
    ("delegating", 2): results([True, True, False, False], 100),
    ("monolithic", 0): results([True, False, False, False], 50),
    ("monolithic", 1): results([True, False, False, False], 50),
    ("monolithic", 2): results([False, False, False, False], 50),
}


def test_interval_by_hand() -> None:
    # 1, .75, .5: mean .75, sd .25, half width 4.303 * .25 / sqrt(3) = .6211
    found = interval([1.0, 0.75, 0.5])
    assert found.mean == pytest.approx(0.75)
    assert found.half == pytest.approx(0.62109, abs=1e-4)
    assert str(found) == "0.75 ± 0.62"


def test_one_seed_has_no_interval_over_seeds() -> None:
    assert math.isnan(interval([0.5]).half)
    assert str(interval([0.5])) == "0.50"


def test_summary_averages_within_seeds_first() -> None:
    delegating, monolithic = summarise(BY_SEED)
    assert delegating.accuracy.mean == pytest.approx(0.75)
    assert monolithic.accuracy.mean == pytest.approx(1 / 6)
    assert delegating.costs["total_tokens"].mean == pytest.approx(101.5)
    assert delegating.seeds == 3


def test_difference_is_paired_by_seed() -> None:
    # .75, .5, .5: mean .5833, sd .1443, half width 4.303 * .1443 / sqrt(3) = .3586
    found = difference(BY_SEED, ("sum", "4", "in", 0.0), "delegating", "monolithic")
    assert found.mean == pytest.approx(0.58333, abs=1e-4)
    assert found.half == pytest.approx(0.35858, abs=1e-4)


def test_verdicts_say_who_wins_on_what() -> None:
    (line,) = verdicts(BY_SEED, "delegating", ["monolithic"])
    # total tokens 101.5 against 51.5
    assert line.startswith("sum 4, against monolithic: wins accuracy +0.58 ± 0.36; total tokens x1.97")
    (other,) = verdicts(BY_SEED, "monolithic", ["delegating"])
    assert "loses accuracy -0.58 ± 0.36" in other
    assert "does not pay" not in other, "it is cheaper"


def test_one_seed_gives_no_verdict_and_a_dear_tie_does_not_pay() -> None:
    one = {key: rows for key, rows in BY_SEED.items() if key[1] == 0}
    assert "(one seed, no verdict) +0.75" in verdicts(one, "delegating", ["monolithic"])[0]
    same = {("a", 0): results([True], 60), ("b", 0): results([True], 50)}
    assert "delegation does not pay here" in verdicts(same, "a", ["b"])[0]


def test_a_baseline_that_never_learned_is_named() -> None:
    (line,) = warnings(summarise(BY_SEED), ["monolithic"])
    assert line.startswith("monolithic did not solve the smallest sum (0.17 ± ")


def test_table_csv_and_plot(tmp_path: Path) -> None:
    table = summarise(BY_SEED)
    assert "| sum | 4 | delegating | 0.75 ± 0.62 | 101.5 |" in markdown(table)
    write_csv(table, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == ["delegating", "monolithic"]
    assert float(rows[0]["accuracy_half"]) == pytest.approx(0.6211)
    plot_frontier(table, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
