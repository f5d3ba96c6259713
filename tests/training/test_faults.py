"""What becomes of an exception: one line, an exit code, and the trace where the run is."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import flaky
import pytest
import yaml
from rich.console import Console
from test_job import config
from test_study_unplayable import study

import selfcest_cli.main as cli
from selfcest_agents.rollout import Unplayed, UnplayedError
from selfcest_env.errors import ConfigError, DataError, InfrastructureError, PolicyError
from selfcest_training.faults import LOG, Exit, exit_code, line_of, logged
from selfcest_training.run.experiment import run


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    flaky.loses.clear()
    yield
    flaky.loses.clear()


class OutOfMemoryError(RuntimeError):
    """As torch's."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), Exit.MISTAKE),
        (DataError("x"), Exit.MISTAKE),
        (PolicyError("x"), Exit.MISTAKE),
        (InfrastructureError("x"), Exit.INFRASTRUCTURE),
        (UnplayedError.of([], [Unplayed("e", InfrastructureError("x"), 0)]), Exit.INFRASTRUCTURE),
        (OSError(28, "No space left on device"), Exit.INFRASTRUCTURE),
        (OutOfMemoryError("x"), Exit.INFRASTRUCTURE),
        (BrokenProcessPool("x"), Exit.INFRASTRUCTURE),
        (KeyError("x"), Exit.DEFECT),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), Exit.MISTAKE),
        (ModuleNotFoundError("No module named 'torch.moved'", name="torch.moved"), Exit.DEFECT),
    ],
)
def test_exit_codes(
    error: Exception, code: Exit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(standalone_mode: bool) -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == code == exit_code(error)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"selfcest: {line_of(error)}"
    assert (len(said) > 1) == (code is Exit.DEFECT), "a trace that no file holds is shown"


def test_the_trace_of_an_exception_and_its_cause_is_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(standalone_mode: bool) -> None:
        with logged(tmp_path):
            try:
                raise ValueError("inner \ud83d")
            except ValueError as cause:
                raise KeyError("outer\nof two lines") from cause

    monkeypatch.setattr(cli, "app", app)
    for _ in range(2):
        with pytest.raises(SystemExit):
            cli.main()
    (line, again) = capsys.readouterr().err.splitlines()
    assert line == again == rf"selfcest: KeyError: 'outer\nof two lines'; the whole trace is in {tmp_path / LOG}"
    text = (tmp_path / LOG).read_text(encoding="utf-8")
    assert text.count(r"ValueError: inner \ud83d") == text.count("\nKeyError") == 2, "appended"


def test_a_mistake_is_not_logged_and_a_note_crosses_a_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), logged(tmp_path):
        raise ConfigError("x")
    assert not (tmp_path / LOG).exists()
    with pytest.raises(InfrastructureError) as caught, logged(tmp_path):
        raise InfrastructureError("down")
    assert line_of(pickle.loads(pickle.dumps(caught.value))) == f"down; the whole trace is in {tmp_path / LOG}"


def test_a_folder_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="down") as caught, logged(tmp_path / "gone"):
        raise InfrastructureError("down")
    assert line_of(caught.value) == "down"


def test_a_study_on_a_dead_server_ends_in_one_line_and_code_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flaky.loses.append(lambda request: True)
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study(tmp_path, name="dead")), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["selfcest", "evaluate", "-c", str(file)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == Exit.INFRASTRUCTURE
    (line,) = capsys.readouterr().err.splitlines()
    assert "8 of 10 instances could not be played" in line, "after two batches of four"
    assert f"the whole trace is in {tmp_path / 'dead' / LOG}" in line
    assert "InfrastructureError" in (tmp_path / "dead" / LOG).read_text(encoding="utf-8")


def test_a_run_on_a_dead_engine_says_whose_job_and_keeps_the_worker_s_trace(tmp_path: Path) -> None:
    changes = {"arms__delegating__rl__steps": 1, "workers": 1}
    phases = [{"tokens": 500, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}]
    sampler = {"name": "flaky:FlakySampler", "options": {"loses": ["s0."], "times": 9}}
    spec = config(tmp_path, **changes, arms__delegating__warmstart__phases=phases, sampler=sampler)
    with pytest.raises(InfrastructureError, match=r"delegating/seed0: step 0: 4 of 4 groups were lost"):
        run(spec, resume=False, console=Console(quiet=True))
    trace = (spec.folder / LOG).read_text(encoding="utf-8")
    assert "in produce" in trace, "of the worker, and not of who waited for it"
