"""The page of `studies/cells/study.py`: figures by hand, and what its evidence is of."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from studies.trained import digest_of


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return importlib.import_module("studies.cells.study")


def cell(tokens: list[float], returns: list[float]) -> dict[str, object]:
    return {"curves": {"rl": {"sampled_tokens": tokens, "return": returns}}}


def test_means_are_over_tokens_and_not_over_points(page: ModuleType) -> None:
    # The first fifth of 100 tokens has two points of 10, the last two as well, the others one of 20.
    found = cell([10, 20, 40, 60, 80, 90, 100], [0.2, 0.4, 0.5, 0.6, 0.7, 1.0, 0.8])
    assert page.windows(found) == pytest.approx([0.3, 0.5, 0.6, 0.7, 0.9])
    tokens, running = page.smoothed(found)
    assert tokens.tolist() == [20, 40, 60, 80, 90, 100]
    # At 90: 10 tokens of 1.0; the 20 of 0.7 began before the width did and count where they ended.
    assert running == pytest.approx([0.3, 0.5, 0.6, 0.7, (20 * 0.7 + 10 * 1.0) / 30, 0.9])


def test_speed_up_by_hand(page: ModuleType) -> None:
    ends = [20.0, 40.0, 60.0, 80.0, 100.0]
    slow, fast = cell(ends, [0.5, 0.5, 0.5, 0.6, 0.7]), cell(ends, [0.5, 0.7, 0.7, 0.8, 0.9])
    assert page.speed_up(fast, slow) == 100 / 40
    assert page.speed_up(slow, fast) is None, "it never got there"
    level = cell(ends, [0.5, 0.6, 0.7, 0.7, 0.7])
    assert page.speed_up(level, level) == 1, "a baseline that was there before its end is measured where it got there"
    assert page.speed_up(fast, cell(ends, [0.5, 0.5, 0.5, 0.5, 0.52])) is None, "there is nowhere to get"


def test_the_evidence_is_of_the_configs_with_every_seed(page: ModuleType) -> None:
    cells, _, tuning = page.stored()
    assert {found["experiment"] for found in cells} <= set(page.CREDIT)
    seeds: dict[tuple[str, str], set[int]] = {}
    for found in cells:
        seeds.setdefault((found["experiment"], found["arm"]), set()).add(found["seed"])
        assert len(found["commit"]) == 40, "of a tree without changes"
    for experiment, arm, digest in {(found["experiment"], found["arm"], found["config"]) for found in cells}:
        assert digest == digest_of(experiment, arm)
    assert len([variant for name, variant in seeds if name == "cells"]) == 9
    assert all(found == {0, 1, 2, 3, 4} for (name, _), found in seeds.items() if name == "cells")
    assert tuning
    assert all(run["seed"] >= 100 for run in tuning)
