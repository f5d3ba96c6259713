"""The runner of the studies: every printed page is its evidence, and what the command line refuses."""

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from PIL import Image, ImageChops, ImageStat

from selfcest_eval.stats.statistics import over_seeds
from studies import runner
from studies.__main__ import NAMES
from studies.figures import draw_median
from studies.runner import (
    DOCS,
    ROOT,
    STUDIES,
    Rerun,
    Study,
    each,
    evidence_line,
    read_json,
    run_study,
    shown,
    store_json,
)


@pytest.mark.parametrize("name", NAMES)
def test_a_printed_page_is_its_evidence(name: str) -> None:
    study: Study = import_module(f"studies.{name}.study").STUDY
    assert study.page_file.is_file()
    assert all(file.is_file() for file in study.figures)
    if study.page is not None:
        run_study(name, study, ["--check"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_drawn_from_its_evidence(name: str, tmp_path: Path) -> None:
    """One was older than its evidence, and another was copied from a file that no checkout has."""
    study: Study = import_module(f"studies.{name}.study").STUDY
    for file, draw in study.figures.items():
        draw(tmp_path / file.name)
        with Image.open(file) as stored, Image.open(tmp_path / file.name) as drawn:
            assert stored.size == drawn.size, file.name
            difference = ImageChops.difference(stored.convert("RGB"), drawn.convert("RGB"))
        # Text may sit a fraction of a pixel elsewhere on another machine.
        assert fmean(ImageStat.Stat(difference).mean) < 0.5, f"{file.name} differs; write it with --write"


def test_a_curve_is_a_median_with_its_quartiles() -> None:
    axis = Figure().subplots()
    draw_median(axis, np.array([0.0, 1.0]), [np.array([0.0, value]) for value in (1.0, 2.0, 3.0, 4.0, 9.0)], 0, "name")
    assert axis.lines[0].get_ydata().tolist() == [0.0, 3.0]
    band = axis.collections[0].get_paths()[0].vertices
    assert {height for position, height in band.tolist() if position == 1.0} == {2.0, 3.0 + 1.0}
    assert axis.get_legend_handles_labels()[1] == ["name"]


def test_a_page_that_differs_is_found_and_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    file = tmp_path / "example.md"
    drawn: list[Path] = []
    study = Study(file, lambda: "evidence\n", {tmp_path / "a.png": drawn.append})
    file.write_text("other\n")
    with pytest.raises(SystemExit, match=r"example\.md differs from its evidence; write it with --write"):
        run_study("example", study, ["--check"])
    assert file.read_text() == "other\n", "a check writes nothing"
    run_study("example", study, ["--write"])
    run_study("example", study, ["--check"])
    assert drawn == [tmp_path / "a.png"]


def test_cells_are_played_in_order_and_nothing_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = Study(DOCS / "cells.md", lambda: "page", rerun=lambda name, how: [Path(f"{name}-{how.workers}")])
    run_study("cells", study, ["--rerun", "b", "a", "--workers", "3"])
    assert capsys.readouterr().out == "written to b-3\nwritten to a-3\n"
    run_study("cells", study, [])
    assert capsys.readouterr().out == "page"


@pytest.mark.parametrize("arguments", [["--check"], ["--write"], []])
def test_a_page_written_by_hand_is_never_overwritten(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    study: Study = import_module("studies.gallery.study").STUDY
    with pytest.raises(SystemExit) as end:
        run_study("gallery", study, arguments)
    assert end.value.code == 2
    assert "gallery" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "cell", "said"),
    [
        ("credit_map", "additive-16/other", "no cell is named additive-16/other"),
        ("scaling", "other", "expected one of episodes, curve, results"),
        ("gallery", "other", "expected episodes, or the folder"),
        ("cells", "other/seed0", r"--rerun is 'other/seed0'; expected EXPERIMENT\[/VARIANT\]/seedN"),
        ("cells", "cells/other/seed0", "the variants of cells are"),
    ],
)
def test_an_unknown_cell_plays_nothing(
    name: str, cell: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=said):
        run_study(name, import_module(f"studies.{name}.study").STUDY, ["--rerun", cell])


def test_a_rerun_writes_into_the_evidence_only_when_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[Path, bool]] = []

    def play(name: str, how: Rerun) -> list[Path]:
        asked.append((how.folder, how.resume))
        return []

    study = Study(DOCS / "cells.md", lambda: "page", rerun=play)
    with pytest.raises(SystemExit, match="holds no rerun to resume; expected one: leave --resume out"):
        run_study("cells", study, ["--rerun", "a", "--resume"])
    for options in ([], [], ["--resume"], ["--store"], ["--store", "--resume"]):
        run_study("cells", study, ["--rerun", "a", *options])
    runs, evidence = Path("runs/rerun/cells"), STUDIES / "cells" / "evidence"
    assert asked == [(runs / "1", False), (runs / "2", False), (runs / "2", True), (evidence, False), (evidence, True)]
    with pytest.raises(SystemExit) as end:
        run_study("cells", study, ["--store"])
    assert end.value.code == 2
    assert "say how a cell is played again; give --rerun CELL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "cell", "folder"),
    [
        ("cells", "cells/rloo/seed0", "runs/cells_rloo_seed0"),
        ("cells", "cells/seed0", "runs/cells_seed0"),
        ("methods", "methods_when/seed10", "runs/methods_when_seed10"),
    ],
)
def test_a_rerun_where_a_command_would_play_nothing_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cell: str, folder: str
) -> None:
    """Each resumed what an earlier rerun had left, and stored its results as new ones."""
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir(parents=True)
    study: Study = import_module(f"studies.{name}.study").STUDY
    with pytest.raises(
        SystemExit, match=f"^{folder} holds what an earlier rerun has trained or played; .* add --resume"
    ):
        run_study(name, study, ["--rerun", cell])
    assert not list(Path(folder).iterdir())


@pytest.mark.parametrize("policies", [("every",), ("every", "only_160")])
def test_a_sweep_plays_stored_policies_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policies: tuple[str, ...]
) -> None:
    methods = import_module("studies.methods.study")
    monkeypatch.chdir(tmp_path)
    given = yaml.safe_load(methods.SWEEP.read_text(encoding="utf-8"))["strategies"]
    for policy in policies:
        Path(given[policy]["policy"]).mkdir(parents=True)
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(methods, "selfcest", lambda *words: commands.append(words))
    monkeypatch.setattr(methods, "read_results", lambda *_, **__: [])
    evidence = tmp_path / "evidence"
    file = store_json(evidence / "sweep-10.json", {"seed": 10, "earned": {policy: {} for policy in given}})
    methods.sweep(10, Rerun(evidence, evidence))
    assert [words[-1] for words in commands] == [f"name=methods_budgets_seed10_{'_'.join(policies)}"]
    assert read_json(file)["earned"].keys() == given.keys(), "policies that are not here stay stored"
    with pytest.raises(SystemExit, match="nothing to play"):
        methods.sweep(10, Rerun(evidence, evidence, resume=True))


def test_results_of_a_rerun_are_made_from_what_it_has_made(tmp_path: Path) -> None:
    evidence, folder = tmp_path / "evidence", tmp_path / "rerun"
    how = Rerun(evidence, folder)
    assert how.input("episodes.json") == evidence / "episodes.json"
    store_json(folder / "episodes.json", {})
    assert how.input("episodes.json") == folder / "episodes.json"


def test_episodes_of_a_rerun_leave_the_evidence_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = import_module("studies.gallery.study")
    monkeypatch.setattr(gallery, "play_all", lambda: iter([("pays.jsonl", "new\n")]))
    how = Rerun(gallery.TREES, tmp_path)
    before = (gallery.TREES / "pays.jsonl").read_bytes()
    assert list(gallery.rerun("episodes", how)) == [tmp_path / "pays.jsonl"]
    assert (tmp_path / "pays.jsonl").read_text() == "new\n"
    assert (gallery.TREES / "pays.jsonl").read_bytes() == before


def test_an_unknown_study_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-m", "studies", "cels"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("no study is named cels; NAME is one of cells, claims, credit_map")


def test_a_page_of_evidence_says_its_version_and_what_a_rerun_repeats() -> None:
    results = [{"commit": "abcdef0123"}, {"commit": "abcdef0999"}, {"commit": "1234567 changed", "version": "0.2.0"}]
    line = evidence_line(results, "`--rerun`")
    assert line.startswith(
        "*Results of version 0.1.0, 0.2.0 (`1234567`, `abcdef0`). `--rerun` repeats the distribution"
    )
    assert "(4 commits)" in evidence_line([{"commit": f"{n}234567"} for n in range(4)], "`--run`")
    with_figures = ("benchmark", "cells", "credit_map", "methods", "reliability", "gallery", "symbolic")
    history = [f"history/{file.stem}" for file in (DOCS / "history").glob("*.md")]
    assert len(history) == 4
    for page in (*with_figures, *history):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        assert re.search(r"\*Results of version 0\.[12]\.0", text), page
        assert "the distribution of these figures, not" in text, page


def test_an_interval_is_that_of_the_evaluation() -> None:
    found = over_seeds([0.9, 1.0])
    assert shown(found, 3, "+") == "+0.950 ± 0.635"
    # Student's t with one degree of freedom: its quantile at 0.75 is 1, so half of the difference remains.
    assert shown(over_seeds([0.9, 1.0], confidence=0.5), 3, "+") == "+0.950 ± 0.050"
    assert shown(over_seeds([0.25])) == "0.25", "one seed has no interval"
    assert each([0.5, None, 1.0]) == "0.50 - 1.00"


def test_git_keeps_studies_of_the_project_and_ignores_those_of_a_user(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    kept = ["studies/runner.py", "studies/new/study.py", "studies/new/evidence/a_seed0.json"]
    ignored = ["studies/mine/results.jsonl", "studies/mine/config.yaml", "studies/cells/table.md"]
    done = subprocess.run(["git", "check-ignore", *kept, *ignored], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ignored


def test_evidence_is_stored_in_full_lines(tmp_path: Path) -> None:
    values = {"a": {"b": 1}, "curve": list(range(100)), "cells": [{"n": 1}, {"text": "x" * 120}], "none": []}
    text = store_json(tmp_path / "new" / "a.json", values).read_text()
    assert json.loads(text) == values
    lines = text.splitlines()
    assert lines[:2] == ["{", ' "a": {"b": 1},']
    assert lines[2] == ' "curve": ['
    assert lines[3].startswith("  0, 1, 2, ")
    assert len(lines[3]) > 110
    assert lines[-9:] == [
        *(" ],", ' "cells": [', '  {"n": 1},', "  {"),
        f'   "text": "{"x" * 120}"',
        "  }",
        " ],",
        ' "none": []',
        "}",
    ]
    assert text.endswith("}\n")
    # Keys of mappings are texts, as in all JSON, and a line with its key and comma fits.
    numbers = {7: "x", "a" * 60: list(range(20)), "rest": ["y"] * 40}
    assert json.loads(runner.format_json(numbers)) == json.loads(json.dumps(numbers))
    assert max(map(len, runner.format_json(numbers).splitlines())) <= runner.LINE_WIDTH
