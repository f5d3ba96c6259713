"""What becomes of an exception: one line, an exit code, and the trace where the run is."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

import flaky
import pytest
import yaml
from rich.console import Console
from test_job import config
from test_study_run import small
from test_study_unplayable import study

import selfcest_cli.main as cli
import selfcest_cli.study as study_command
from selfcest_agents.rollout import FailedEpisode, UnplayedError
from selfcest_cli.study import run_study
from selfcest_env.errors import ConfigError, DataError, InfrastructureError, PolicyError, exit_cause
from selfcest_eval.play.config import StudyConfig
from selfcest_training.config_file import parse_as
from selfcest_training.faults import (
    ENDING_SIGNALS,
    LOG,
    ExitCode,
    format_error_line,
    get_exit_code,
    log_faults,
    raise_on_signals,
)
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
        (ConfigError("x"), ExitCode.MISTAKE),
        (DataError("x"), ExitCode.MISTAKE),
        (PolicyError("x"), ExitCode.MISTAKE),
        (InfrastructureError("x"), ExitCode.INFRASTRUCTURE),
        (UnplayedError.of([], [FailedEpisode("e", InfrastructureError("x"), 0)]), ExitCode.INFRASTRUCTURE),
        (OSError(28, "No space left on device"), ExitCode.INFRASTRUCTURE),
        (OutOfMemoryError("x"), ExitCode.INFRASTRUCTURE),
        (BrokenProcessPool("x"), ExitCode.INFRASTRUCTURE),
        (KeyError("x"), ExitCode.DEFECT),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), ExitCode.MISTAKE),
        (ModuleNotFoundError("No module named 'torch.moved'", name="torch.moved"), ExitCode.DEFECT),
    ],
)
def test_exit_codes(
    error: Exception, code: ExitCode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(standalone_mode: bool) -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == code == get_exit_code(error)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"selfcest: {format_error_line(error)}"
    assert (len(said) > 1) == (code is ExitCode.DEFECT), "a trace that no file holds is shown"


def test_the_trace_of_an_exception_and_its_cause_is_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(standalone_mode: bool) -> None:
        with log_faults(tmp_path):
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
    with pytest.raises(ConfigError), log_faults(tmp_path):
        raise ConfigError("x")
    assert not (tmp_path / LOG).exists()
    with pytest.raises(InfrastructureError) as caught, log_faults(tmp_path):
        raise InfrastructureError("down")
    assert (
        format_error_line(pickle.loads(pickle.dumps(caught.value))) == f"down; the whole trace is in {tmp_path / LOG}"
    )


def test_a_folder_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="down") as caught, log_faults(tmp_path / "gone"):
        raise InfrastructureError("down")
    assert format_error_line(caught.value) == "down"


def test_a_study_on_a_dead_server_ends_in_one_line_and_code_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flaky.loses.append(lambda request: True)
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study(tmp_path, name="dead")), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["selfcest", "evaluate", "-c", str(file)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == ExitCode.INFRASTRUCTURE
    (line,) = capsys.readouterr().err.splitlines()
    assert "8 of 10 instances could not be played" in line, "after two batches of four"
    assert f"the whole trace is in {tmp_path / 'dead' / LOG}" in line
    assert "InfrastructureError" in (tmp_path / "dead" / LOG).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_on_a_dead_engine_says_whose_job_and_keeps_the_worker_s_trace(tmp_path: Path) -> None:
    changes = {"variants__delegating__rl__steps": 1, "workers": 1}
    phases = [{"tokens": 500, "mix": {"choice": {"share": 1, "styles": {"delegate": 1, "solve": 1}}}}]
    sampler = {"name": "flaky:FlakySampler", "options": {"loses": ["s0."], "times": 9}}
    spec = config(tmp_path, **changes, variants__delegating__warmstart__phases=phases, sampler=sampler)
    with pytest.raises(InfrastructureError, match=r"delegating/seed0: step 0: 4 of 4 groups were lost"):
        run(spec, resume=False, console=Console(quiet=True))
    trace = (spec.folder / LOG).read_text(encoding="utf-8")
    assert "in produce" in trace, "of the worker, and not of who waited for it"


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_ends_a_command_in_one_line_with_its_number(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended every command but `train` without a word."""
    closed: list[str] = []

    def work(standalone_mode: bool) -> None:
        try:
            with suppress(Exception):  # as a retry or a plug-in's wrapper does
                os.kill(os.getpid(), number)
                time.sleep(60)
        finally:
            closed.append("lock")

    monkeypatch.setattr(cli, "app", work)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as caught:
            cli.main()
    finally:
        signal.signal(number, before)
    assert caught.value.code == 128 + number
    assert capsys.readouterr().err == f"selfcest: ended by signal {number:d} ({number.name})\n"
    assert closed == ["lock"]


def test_a_signal_that_is_ignored_or_handled_stays_so() -> None:
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
        with raise_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_forked_child_is_ended_as_it_would_be() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with warnings.catch_warnings(), raise_on_signals():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(60)
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_study_that_a_signal_ends_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = parse_as(StudyConfig, small(tmp_path))
    monkeypatch.setattr(study_command, "_play", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(
        cli, "app", lambda standalone_mode: run_study(config, resume=False, console=Console(quiet=True))
    )
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as caught:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == 143
    assert capsys.readouterr().err == (
        "selfcest: ended by signal 15 (SIGTERM); the same command with --resume plays the missing results\n"
    )
    assert not (config.folder / LOG).exists(), "it is no fault"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (1, "ended with exit code 1"),
        (-9, "was killed by signal 9 (SIGKILL), often the out-of-memory killer"),
        (-15, "was killed by signal 15 (SIGTERM)"),
        (-40, "was killed by signal 40"),
        (None, "ended, and its exit code is unknown"),
    ],
)
def test_how_a_process_ended(code: int | None, words: str) -> None:
    assert exit_cause(code) == words
