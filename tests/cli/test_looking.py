"""Commands that only look run no code that only a file names: not its classes, not the import of its modules."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_job import config
from test_study_run import run, small

import selfcest_cli.main as cli
from selfcest_cli.trace import _find_run_config
from selfcest_env.errors import ConfigError
from selfcest_env.graders import Grade
from selfcest_env.plugin import PlugIn, only_trusted
from selfcest_env.types import Status
from selfcest_eval.play.config import load_stored_study
from selfcest_eval.play.results import Result, ResultKey, write_result
from selfcest_eval.report.training_run import EvaluationStage
from selfcest_training.config import EvalSet, EvaluationConfig
from selfcest_training.config_file import dump_config, load_stored_config
from selfcest_training.planning.shapes import get_model_shape

STRANGER = """
from pathlib import Path
Path("imported").touch()
from selfcest_eval.play.strategies import Strategy
class Eager:
    def __init__(self, args=()):
        Path("made").touch()
class Source(Eager):
    def draw(self, rng): ...
class Own(Strategy):
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module that leaves a trace when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "stranger.py").write_text(STRANGER, encoding="utf-8")
    yield tmp_path
    sys.modules.pop("stranger", None)


def selfcest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and what was printed, of which an error is one line."""
    monkeypatch.setattr(sys, "argv", ["selfcest", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        cli.main()
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == (caught.value.code == 2)
    return int(caught.value.code or 0), printed.out + printed.err


def questions(name: str) -> dict[str, Any]:
    Path(name).write_text(json.dumps({"question": f"{name}?", "answer": "1"}) + "\n", encoding="utf-8")
    return {"name": "questions", "options": {"path": name}}


def config_with_tasks(**tasks: Any) -> str:
    data = {"name": "r", "tasks": tasks, "variants": {"alone": {"warmstart": {}, "rl": {"steps": 0}}}}
    Path("c.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return "c.yaml"


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "stranger:Eager", "options": {"args": ["touch", "x"]}},
        {"name": "mixture", "options": {"sources": [{"name": "range_sum"}, {"name": "stranger:Source"}]}},
        {"name": "subprocess:Popen", "options": {"args": ["touch", "made"]}},
    ],
)
def test_contamination_imports_and_makes_nothing_that_it_was_not_told_to(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["contamination", config_with_tasks(a=questions("a"), b=questions("b"), other=spec)]
    code, printed = selfcest(monkeypatch, capsys, *asked)
    assert code == 2
    assert "read-only command does not run; if you trust it, add --trust s" in printed
    assert not Path("imported").exists()
    assert not Path("made").exists()
    module = spec["name"].partition(":")[0] if ":" in spec["name"] else "stranger"
    code, printed = selfcest(monkeypatch, capsys, *asked, "--trust", module)
    if spec["name"] == "mixture":
        assert code == 0, printed
        assert "made" in os.listdir()
    else:
        assert "lacks draw(); declare it on the class" in printed
        assert "made" not in os.listdir()


@pytest.mark.slow
def test_compare_imports_no_strategy_that_it_was_not_told_to_and_makes_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    eval_sets = [{"family": "range", "size": "2-6"}]
    study = run(
        small(
            folder, strategies={"own": {"name": "delegate"}}, eval_sets=eval_sets, budgets=[60], seeds=[0], episodes=2
        )
    )
    stored = (study / "study.yaml").read_text(encoding="utf-8")
    (study / "study.yaml").write_text(stored.replace("name: delegate", "name: stranger:Own"), encoding="utf-8")
    code, printed = selfcest(monkeypatch, capsys, "compare", str(study), str(study))
    assert (code, "--trust stranger" in printed) == (2, True)
    assert not Path("imported").exists()
    code, printed = selfcest(monkeypatch, capsys, "compare", str(study), str(study), "--trust", "stranger")
    assert (code, "own of" in printed) == (0, True)


def test_report_runs_nothing_at_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = {"name": "stranger:Eager"}
    spec = config(
        folder, model=stranger, sampler=stranger, tasks__choice=stranger, variants__delegating__rl__credit=stranger,
        reward={"name": "correct", "options": {"grader": stranger}},
    )  # fmt: skip
    spec = replace(spec, evaluation=EvaluationConfig((EvalSet("choice", "any"),), episodes=1))
    played = spec.folder / "delegating" / "seed0" / EvaluationStage.AFTER
    played.mkdir(parents=True)
    (spec.folder / "config.yaml").write_text(dump_config(spec), encoding="utf-8")
    place = ResultKey("choice", "any", "in", "delegating, after RL", None, 0, "t")
    result = Result("k", "p", place, (), 0, Grade(1.0, True, True), Status.ANSWERED, {"total_tokens": 9.0})
    (played / "results.jsonl").write_text(write_result(result, str), encoding="utf-8")
    code, printed = selfcest(monkeypatch, capsys, "report", str(spec.folder))
    assert (code, "\nchoice  delegating, after RL" in printed) == (0, True), printed
    assert not Path("imported").exists()


PROBED = ("brotli", "brotlicffi", "h2", "dill", "zstandard", "random", "pickle", "torch", "yaml")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["selfcest"], [sys.executable, "-m", "selfcest_cli"]], ids=["selfcest", "-m"])
def test_no_library_takes_a_module_of_the_working_directory(command: list[str], folder: Path) -> None:
    config = config_with_tasks(a=questions("a"), b=questions("b"))
    for name in PROBED:
        (folder / f"{name}.py").write_text(f"open('ran', 'a').write('{name} ')", encoding="utf-8")
    if command == ["selfcest"]:
        command = [str(Path(sys.executable).with_name("selfcest"))]
    done = subprocess.run([*command, "contamination", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path("ran").exists(), Path("ran").read_text(encoding="utf-8")


def test_a_module_beside_a_config_is_on_no_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    selfcest(monkeypatch, capsys, "contamination", "missing.yaml")
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    "name",
    [
        "nowhere", "nowhere.inside", "not a module", "", "a..b", "x:Class", "json.nonexistent", "stranger.inside",
        "selfcest_env.no_such", "json.decoder.deeper", "typer.nonexistent", ".", "stranger.", "xml.etree.nonexistent",
    ],
)  # fmt: skip
def test_a_module_to_trust_that_is_not_there_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_with_tasks(a=questions("a"), b=questions("b"))
    code, printed = selfcest(monkeypatch, capsys, "contamination", config, "--trust", name)
    assert (code, "no such module" in printed) == (2, True), printed


def test_plan_builds_no_plug_in_that_it_was_not_told_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = selfcest(monkeypatch, capsys, "plan", "model.name=stranger:Eager")
    assert (code, "--trust stranger" in printed) == (2, True), printed
    assert not Path("imported").exists()


def test_a_page_looks_for_no_config_above_the_run() -> None:
    job = Path("outer/run/variant/seed0")
    job.mkdir(parents=True)
    file = job / "episodes.jsonl"
    Path("config.yaml").touch()
    Path("outer/config.yaml").touch()
    assert _find_run_config(file) is None
    assert _find_run_config(Path("outer/run/episodes.jsonl")) is None
    Path("outer/run/config.yaml").touch()
    assert _find_run_config(file) == Path("outer/run/config.yaml").absolute()


def test_a_command_that_looks_downloads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a network was contacted")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with only_trusted([]), pytest.raises(ConfigError, match="contacts no network"):
        get_model_shape(PlugIn("chat", {"source": "hub:nobody/nothing"}))


def test_a_command_that_looks_downloads_no_data_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = {"name": "questions", "options": {"path": "hub:nobody/nothing"}}
    code, printed = selfcest(monkeypatch, capsys, "contamination", config_with_tasks(a=questions("a"), b=hub))
    assert (code, "uses no network; download the official file" in printed) == (2, True), printed


def test_a_command_that_looks_converts_no_gguf_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr("selfcest_agents.pretrained.importlib.util.find_spec", lambda name: name)
    model = folder / "stranger.gguf"
    model.write_bytes(b"GGUF")
    with only_trusted([]), pytest.raises(ConfigError, match="has not been converted yet"):
        get_model_shape(PlugIn("chat", {"source": str(model)}))
    assert not (folder / "cache").exists()


@pytest.mark.parametrize(
    ("name", "load"), [("config.yaml", load_stored_config), ("study.yaml", load_stored_study)], ids=["run", "study"]
)
def test_a_stored_config_extends_no_file_elsewhere(name: str, load: Callable[[Path], Any], folder: Path) -> None:
    (folder / "outside.yaml").write_text("secret: 1\n", encoding="utf-8")
    stored = folder / "run" / name
    stored.parent.mkdir()
    stored.write_text("extends: ../outside.yaml\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="expected a stored config with all of its keys"):
        load(stored)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["selfcest_baselines", "selfcest_methods.learn_playbook"])
def test_no_other_command_takes_a_module_of_the_working_directory(module: str, folder: Path) -> None:
    for name in PROBED:
        (folder / f"{name}.py").write_text(f"open('ran', 'a').write('{name} ')", encoding="utf-8")
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path("ran").exists(), Path("ran").read_text(encoding="utf-8")
