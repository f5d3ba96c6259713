"""The page of the study `delegation`: intervals by hand, and the page in the documentation is what it prints."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from pathlib import Path
from statistics import fmean
from types import ModuleType

import pytest
from PIL import Image, ImageChops, ImageStat

from studies.runner import Rerun
from studies.trained import digest_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def delegation() -> ModuleType:
    return importlib.import_module("studies.delegation.study")


def test_intervals_over_seeds_by_hand(delegation: ModuleType) -> None:
    # Two values 0.1 apart: standard deviation 0.1 / sqrt 2, of the mean 0.05, times 12.71.
    assert delegation.shown(delegation.over_seeds([0.9, 1.0])) == "0.95 ± 0.64"
    assert delegation.shown(delegation.over_seeds([0.9])) == "0.90"
    assert delegation.each([0.5, None, 1.0]) == "0.50 - 1.00"


def test_exact_tests_by_hand(delegation: ModuleType) -> None:
    # Of the 10 ways to choose 2 of 5 one has these two on top, and one at the bottom.
    assert delegation.separated([0.9, 1.0], [0.1, 0.2, 0.3]) == pytest.approx(2 / 10)
    assert math.isnan(delegation.separated([0.9, 0.2], [0.1, 0.3]))
    # All of 5 above: one in 32 on either side. Four of 5: six in 32.
    assert delegation.sign_test([1, 1, 1, 1, 1]) == pytest.approx(2 / 32)
    assert delegation.sign_test([1, 1, 1, 1, -1]) == pytest.approx(12 / 32)
    assert delegation.sign_test([1, -1]) == 1


def test_costs_are_compared_where_both_are_accurate(delegation: ModuleType) -> None:
    def cell(accuracy: float, cost: float) -> dict[str, object]:
        return {"sizes": {"4x6": {"accuracy": accuracy, **dict.fromkeys(delegation.COSTS, cost)}}}

    ours = [cell(1.0, 30), cell(0.5, 1)]
    # The one that fails is left out, however cheap: 30 over the mean of 90 and 110.
    assert "| 4x6 | 1 of 2 and 2 of 2 | x0.30 |" in delegation._equal(ours, [cell(0.95, 90), cell(0.9, 110)])
    assert "| 4x6 | 1 of 2 and 0 of 1 | not comparable |" in delegation._equal(ours, [cell(0.2, 10)])


def test_the_page_is_what_the_evidence_says(delegation: ModuleType) -> None:
    cells, first, tuning = delegation.stored()
    assert delegation.page(cells, first, tuning) == (ROOT / "docs" / "delegation.md").read_text(encoding="utf-8")
    assert cells
    assert first
    assert tuning


def test_the_shipped_policy_follows_the_size_in_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Played again, with fewer sums: the decision is that of the size in the prompt, whatever the true size is."""
    reach = importlib.import_module("studies.delegation.reach")
    figures = reach.measure_told_sizes(episodes=4)
    for size, by_hint in figures["sizes"].items():
        for hint, cell in by_hint.items():
            assert cell["called"] == pytest.approx(float(int(hint) > 10), abs=0.25), f"{size} terms, told {hint}"
    stored = json.loads((ROOT / "studies" / "delegation" / "evidence" / "told.json").read_text(encoding="utf-8"))
    assert {size: list(cells) for size, cells in stored["sizes"].items()} == {
        size: list(cells) for size, cells in figures["sizes"].items()
    }


def test_a_page_of_evidence_says_its_version_and_what_a_rerun_repeats(delegation: ModuleType) -> None:
    results = [{"commit": "abcdef0123"}, {"commit": "abcdef0999"}, {"commit": "1234567 changed", "version": "0.2.0"}]
    line = delegation.evidence_line(results, "`--rerun`")
    assert line.startswith(
        "*Results of version 0.1.0, 0.2.0 (`1234567`, `abcdef0`). `--rerun` repeats the distribution"
    )
    assert "(4 commits)" in delegation.evidence_line([{"commit": f"{n}234567"} for n in range(4)], "`--run`")
    with_figures = ("benchmark", "cells", "credit_map", "delegation", "methods", "reliability", "gallery", "symbolic")
    history = [f"history/{file.stem}" for file in (ROOT / "docs" / "history").glob("*.md")]
    for page in ("history/code_lines", "history/speed"):  # no results, and they name the revisions that they compare
        history.remove(page)
    assert len(history) == 3
    for page in (*with_figures, *history):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert "*Results of version 0.1.0" in text, page
        assert "the distribution of these figures, not" in text, page


@pytest.mark.slow
def test_every_cell_says_what_it_was_made_of(delegation: ModuleType) -> None:
    for file in delegation.EVIDENCE.glob("*_seed*.json"):
        cell = json.loads(file.read_text(encoding="utf-8"))
        assert file.stem == f"{cell['experiment']}_{cell['arm']}_seed{cell['seed']}"
        assert len(cell["config"]) == 16
        assert len(cell["commit"].partition(" ")[0]) == 40
        assert cell["cpu_seconds"] > 0
        assert cell["curves"]
        assert cell["config"] == digest_of(cell["experiment"], cell["arm"])


def test_a_cell_of_no_experiment_is_refused(delegation: ModuleType, tmp_path: Path) -> None:
    how = Rerun(delegation.EVIDENCE, tmp_path)
    with pytest.raises(SystemExit, match=r"--rerun is 'whenever/a/seed0'; expected EXPERIMENT\[/VARIANT\]/seedN"):
        delegation.rerun("whenever/a/seed0", how)
    with pytest.raises(SystemExit, match="the variants of long_ledgers are reading_far, reading_long"):
        delegation.rerun("long_ledgers/reading/seed0", how)


def different(one: Image.Image, other: Image.Image) -> float:
    """Mean difference of pixels, of 255; text may sit a fraction of a pixel elsewhere on another machine."""
    return fmean(ImageStat.Stat(ImageChops.difference(one, other)).mean)


def test_a_picture_of_something_else_is_different() -> None:
    with Image.open(ROOT / "docs" / "delegation.png") as picture:
        kept = picture.convert("RGB")
    moved = ImageChops.offset(kept, 12, 0)  # as a curve that moved, everything else too
    assert different(kept, kept) == 0
    assert different(kept, moved) > 0.5


def test_the_pictures_have_every_variant_on_light_ground(delegation: ModuleType, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    cells, _, _ = delegation.stored()
    drawn: list[Figure] = []
    whole = Figure.savefig

    def spy(figure: Figure, *arguments: object, **options: object) -> None:
        drawn.append(figure)
        whole(figure, *arguments, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Figure, "savefig", spy)
        delegation.draw(cells, tmp_path / "delegation.png")
        delegation.draw_frontier(cells, tmp_path / "frontier.png")
    for name in ("delegation.png", "frontier.png"):
        kept, made = (Image.open(folder / name).convert("RGB") for folder in (ROOT / "docs", tmp_path))
        assert kept.size == made.size
        assert kept.getpixel((0, 0)) == (255, 255, 255), "readable on a dark page too"
        assert different(kept, made) < 0.5, f"docs/{name} is not drawn so; run `python -m studies delegation --write`"
    readers = delegation.READERS
    for axis, cost in zip(drawn[1].axes, delegation.FRONTIER_COSTS, strict=True):
        means = {line.get_label(): line for line in axis.lines if line.get_label() in readers.values()}
        assert list(means) == list(readers.values())
        for variant, found in delegation.of(cells, "quick", "long_ledgers").items():
            if variant in readers:
                last = fmean(cell["sizes"]["8x20"][cost] for cell in found)
                assert means[readers[variant]].get_xdata()[-1] == pytest.approx(last), variant
