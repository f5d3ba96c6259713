"""`.ci/run` with commands that only pretend: what the budget cut, what failed, what an environment is made of."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is a script for Linux")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With a pytest that says `SAID`, goes on for `SLEEP` seconds and ends with `RC`, and a `python3` that installs."""
    stub = f"""#!{sys.executable}
import os, pathlib, sys, time
if sys.argv[1:] == ["--version"]:
    print("Python", os.environ.get("VERSION", "3.11.1"))
elif sys.argv[1:3] == ["-m", "venv"]:
    folder = pathlib.Path(sys.argv[3], "bin")
    folder.mkdir(parents=True)
    for name in ("python", "pip"):
        (folder / name).symlink_to(__file__)
elif sys.argv[1] != "-c":
    print(os.environ.get("SAID", ""), flush=True)
    time.sleep(float(os.environ.get("SLEEP", 0)))
    sys.exit(int(os.environ.get("RC", 0)))
"""
    for path in (".venv/bin/python", "bin/python3"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(stub)
        (tmp_path / path).chmod(0o755)
    for name in ("dev", "torch", "trl"):
        (tmp_path / "requirements").mkdir(exist_ok=True)
        (tmp_path / "requirements" / f"{name}.txt").write_text(f"{name}==1\n")
    (tmp_path / ".ci").mkdir()
    # Its functions, and none of its sets.
    (tmp_path / ".ci" / "run").write_text(RUN.read_text(encoding="utf-8").partition('\necho "== time budget')[0])
    return tmp_path


def ci(checkout: Path, sets: str, **pretended: str) -> str:
    """What a set with some seconds of the budget prints, and the summary."""
    said = '\nprintf "%s\\n" "${summary[@]}"'
    command = f"source .ci/run; {sets}{said}"
    environment = {"PATH": f"{checkout / 'bin'}:/usr/bin:/bin", "SELFCEST_CI_BUDGET_S": "3", **pretended}
    done = subprocess.run(
        ["bash", "-c", command], cwd=checkout, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_types_of_all_code_but_the_tests_are_checked() -> None:
    """A study passed a keyword that had been renamed, and nothing checked its types."""
    root = RUN.parents[1]
    recipe = subprocess.run(["make", "-n", "lint"], cwd=root, capture_output=True, text=True, check=True).stdout
    (command,) = (line for line in recipe.splitlines() if "/mypy " in line)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(command.split()[1:]) == {*packages, "studies", "benchmarks"}


def test_every_folder_of_tests_is_in_a_slow_set() -> None:
    sets = re.findall(r"^(?: *'slow_set|lab_tests=).*", RUN.read_text(encoding="utf-8"), re.MULTILINE)
    listed = re.findall(r"tests/(?:{(.*?)}|(\w+)(?=[ )]|$))", "\n".join(sets), re.MULTILINE)
    folders = {path.parent.name for path in RUN.parents[1].glob("tests/*/test_*.py")}
    assert {name for several, single in listed for name in (single or several).split(",")} >= folders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("[gw0] [ 50%] FAILED tests/test_a.py::test_b", "failed (tests failed before the budget cut it"),
        ("tests/test_a.py::test_b ERROR        [ 50%]", "failed (tests failed before the budget cut it"),
        ("[gw0] [ 50%] PASSED tests/test_a.py::test_b[FAILED]", "skipped (cut by the budget"),
    ],
)
def test_a_set_that_failed_and_was_then_cut_has_failed(checkout: Path, said: str, verdict: str) -> None:
    printed = ci(checkout, "slow_set a 0 60 tests", SAID=said, SLEEP="30")
    assert f"slow a: {verdict}" in printed
    assert said in printed, "it is shown too"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "failed (its lock is wrong"),
        ("ERROR: No matching distribution found for torch", "skipped (cannot be installed"),
    ],
)
def test_a_wrong_lock_is_no_registry_that_cannot_be_reached(checkout: Path, said: str, verdict: str) -> None:
    assert f"trl: {verdict}" in ci(checkout, "own_set trl trl 0 60 tests", SAID=said, RC="1")
    assert "trl: failed (its lock is wrong" in ci(checkout, "own_set trl none 0 60 tests")


@pytest.mark.slow
def test_an_environment_is_made_anew_when_what_is_beneath_it_changes(checkout: Path) -> None:
    def made(**pretended: str) -> bool:
        printed = ci(checkout, "own_set trl trl 0 60 tests", SELFCEST_CI_BUDGET_S="60", **pretended)
        assert "trl: passed" in printed
        return "== .venv-trl: at most" in printed

    assert [made(), made()] == [True, False]
    assert made(VERSION="3.12.1")
    (checkout / "requirements" / "dev.txt").write_text("dev==2\n")
    assert made(VERSION="3.12.1")


def give_python(checkout: Path, version: str) -> None:
    """A Python of this version on the path, which runs the stub for everything else."""
    python = checkout / "bin" / f"python{version}"
    python.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo {version}; else exec {checkout}/bin/python3 "$@"; fi\n')
    python.chmod(0o755)


def test_a_python_that_is_not_there_is_named(checkout: Path) -> None:
    printed = ci(checkout, 'any_python_set 3.12 lowest "" 0 60 tests')
    assert "game on Python 3.12, lowest versions: skipped (Python 3.12 is not installed)" in printed


def test_a_python_of_another_version_behind_the_name_is_none(checkout: Path) -> None:
    give_python(checkout, "3.12")
    (checkout / "bin" / "python3.12").rename(checkout / "bin" / "python3.13")
    printed = ci(checkout, 'any_python_set 3.13 newest "" 0 60 tests')
    assert "game on Python 3.13, newest versions: skipped (Python 3.13 is not installed)" in printed


@pytest.mark.parametrize(("rc", "verdict"), [("0", "passed ("), ("1", "skipped (cannot be installed")])
def test_the_game_is_tested_on_a_python_that_is_there(checkout: Path, rc: str, verdict: str) -> None:
    give_python(checkout, "3.12")
    printed = ci(checkout, 'any_python_set 3.12 lowest "" 0 60 tests', RC=rc, SELFCEST_CI_BUDGET_S="60")
    assert f"game on Python 3.12, lowest versions: {verdict}" in printed


def test_a_python_without_a_cpu_build_of_torch_is_skipped(checkout: Path) -> None:
    give_python(checkout, "3.12")
    (checkout / "requirements" / "torch.txt").write_text("torch==2.13.0\n")
    printed = ci(checkout, "any_python_set 3.12 newest train 0 60 tests", RC="1", SELFCEST_CI_BUDGET_S="60")
    verdict = "skipped (no CPU build torch==2.13.0+cpu for Python 3.12)"
    assert f"train on Python 3.12, newest versions: {verdict}" in printed
