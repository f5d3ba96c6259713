"""Schemes of other packages: found by entry point, built late; the worked example of the docs, installed and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfcest_cli.main import app
from selfcest_env.errors import ConfigError, PlugInError
from selfcest_training.credit import SCHEMES, find_scheme, make_assigner

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "credit_plugin"


def install_metadata(folder: Path, name: str, entry: str) -> None:
    """What a wheel leaves behind of a package `name` with one entry point."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[selfcest.credit]\n{entry}\n", encoding="utf-8")


def test_an_entry_point_is_a_name_and_imports_nothing_until_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install_metadata(tmp_path, "mine", "mine = late_scheme:Mine")
    assert SCHEMES["mine"] == "late_scheme:Mine"
    assert "late_scheme" not in sys.modules
    with pytest.raises(PlugInError, match="importing 'late_scheme' failed"):
        find_scheme("mine")
    (tmp_path / "late_scheme.py").write_text(
        "from selfcest_training.credit import Rloo\nclass Mine(Rloo):\n    name = 'mine'\n", encoding="utf-8"
    )
    assert make_assigner("mine", {}, where="credit.options").name == "mine"
    with pytest.raises(ConfigError, match="Did you mean 'mine'"):
        find_scheme("mien")


def test_a_scheme_that_cannot_be_loaded_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install_metadata(tmp_path, "mine", "a_broken_one = not_there:Mine")
    listed = CliRunner().invoke(app, ["credit", "list"])
    assert "a_broken_one (not_there:Mine): cannot be loaded" in listed.output
    assert all(f"{name} (" in listed.output for name in SCHEMES)
    assert isinstance(listed.exception, PlugInError)
    assert "importing 'not_there' failed" in str(listed.exception)


@pytest.mark.parametrize("name", ["grpo", "twice"])
def test_two_schemes_of_one_name_are_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install_metadata(tmp_path, "first", f"{name} = first:Scheme")
    if name == "twice":
        install_metadata(tmp_path, "again", "twice = first:Scheme")
        assert SCHEMES[name] == "first:Scheme"  # the same thing twice is no clash
        install_metadata(tmp_path / "later", "second", "twice = second:Scheme")
        monkeypatch.syspath_prepend(str(tmp_path / "later"))
    with pytest.raises(PlugInError, match=f"'{name}'.*selfcest.credit clashes with .*uninstall"):
        SCHEMES.references()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package installed, as by `pip install`."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(folder), str(EXAMPLE)], check=True, timeout=120)
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = [str(folder), *(str(ROOT / part) for part in ("", "agents", "training"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.slow
def test_the_example_package_is_listed(installed: Path) -> None:
    listed = run(installed, "-m", "selfcest_cli", "credit", "list")
    assert listed.returncode == 0, listed.stderr
    assert "aristocrat (unbiased; aristocrat:Aristocrat)" in listed.stdout


@pytest.mark.slow
def test_the_example_package_passes_its_own_tests(installed: Path) -> None:
    tests = EXAMPLE / "tests"
    done = run(
        installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tests), str(tests)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_the_example_package_trains(installed: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path; from test_job import config, play, rows\n"
        "credit = {'name': 'aristocrat', 'options': {'absence': 0.25}}\n"
        "mix = {'choice': {'share': 1, 'styles': {'delegate': 1, 'solve': 1}}}\n"
        "change = {'variants__delegating__rl__credit': credit, 'variants__delegating__rl__steps': 2,\n"
        "          'variants__delegating__warmstart__phases': [{'tokens': 8000, 'mix': mix}]}\n"
        "print(sum(row['credit/replays'] for row in rows(play(config(Path(sys.argv[1]), **change)))))"
    )
    folders = [str(ROOT / "tests" / part) for part in ("training", "support")]
    done = run(installed, "-c", program, str(tmp_path), *folders)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0
