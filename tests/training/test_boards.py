"""Where a job's numbers go beside its metrics: TensorBoard for real, W&B and trackio where they are installed, and
always against modules that write down how they are called."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from test_job import config, rows

from selfcest_env.errors import ConfigError, InfrastructureError
from selfcest_training.files import AppendLog, FileOffset
from selfcest_training.run import boards
from selfcest_training.run.boards import BOARDS, BoardJob, Trackio, WeightsAndBiases, check_boards
from selfcest_training.run.job import Job, JobId
from selfcest_training.run.metrics import MetricsLog

Calls = list[tuple[str, Any]]


def board_job(folder: Path) -> BoardJob:
    folder.mkdir(parents=True, exist_ok=True)
    return BoardJob("mine", "a/seed0", folder, {"name": "mine", "seeds": [0]})


def module(name: str, calls: Calls, raises: Exception | None = None) -> ModuleType:
    """As much of W&B or trackio as is called, writing down how."""
    made, said = ModuleType(name), SimpleNamespace()
    said.log = lambda values: calls.append(("log", values))
    said.finish = lambda: calls.append(("finish", None))
    said.define_metric = lambda pattern, step_metric: calls.append(("define_metric", (pattern, step_metric)))

    def init(**options: Any) -> Any:
        print("welcome")
        calls.append(("init", options))
        if raises is not None:
            raise raises
        return said

    made.init = init  # type: ignore[attr-defined]
    made.finish = said.finish  # type: ignore[attr-defined]
    made.Settings = dict  # type: ignore[attr-defined]
    made.errors = SimpleNamespace(Error=LookupError, CommError=KeyError)  # type: ignore[attr-defined]
    return made


def test_a_name_that_is_not_known_or_not_installed_is_an_error_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"logging\[0\] is 'wandbb'. Did you mean 'wandb'\? Expected one of"):
        config(tmp_path, logging=["wandbb"])
    with pytest.raises(ConfigError, match="each one once"):
        config(tmp_path, logging=["trackio", "trackio"])
    monkeypatch.setattr(boards, "find_spec", lambda name: None if name == "wandb" else object())
    with pytest.raises(ConfigError, match="logging names wandb, which is not installed: pip install wandb"):
        Job(config(tmp_path, logging=["tensorboard", "wandb"]), JobId("delegating", 0), lambda *_: None)
    assert list(tmp_path.iterdir()) == []
    check_boards(["tensorboard", "trackio"])
    check_boards([])


def test_wandb_has_a_run_per_job_a_group_per_run_and_steps_per_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Calls = []
    monkeypatch.setitem(sys.modules, "wandb", module("wandb", calls))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    for _ in range(2):  # the second time as after --resume
        board = WeightsAndBiases(board_job(tmp_path))
        board.write("rl", 3, {"return": 0.5})
        board.close()
    half = len(calls) // 2
    assert calls[:half] == calls[half:], "the id is kept"
    (_, options), *others = calls[:half]
    assert (options["project"], options["group"], options["name"]) == ("selfcest", "mine", "a/seed0")
    assert (options["dir"], options["resume"], options["config"]) == (
        str(tmp_path),
        "allow",
        {**board_job(tmp_path).config},
    )
    assert options["id"] == (tmp_path / "wandb" / "id").read_text(encoding="utf-8")
    assert others == [
        *[("define_metric", (f"{stage}/*", f"{stage}/step")) for stage in ("warmstart", "probe", "rl")],
        ("log", {"rl/step": 3, "rl/return": 0.5}),
        ("finish", None),
    ]
    other = WeightsAndBiases(board_job(tmp_path / "other"))
    other.close()
    monkeypatch.setenv("WANDB_PROJECT", "ours")
    WeightsAndBiases(board_job(tmp_path)).close()
    inits = [options for name, options in calls if name == "init"]
    assert inits[-2]["id"] != options["id"]
    assert inits[-1]["project"] == "ours"


@pytest.mark.parametrize(
    ("raised", "expected", "words"),
    [(LookupError("no api key"), ConfigError, "wandb login"), (KeyError("timed out"), InfrastructureError, "offline")],
)
def test_wandb_that_cannot_begin_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, expected: type[Exception], words: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", module("wandb", [], raised))
    with pytest.raises(expected, match=words):
        WeightsAndBiases(board_job(tmp_path))


def test_trackio_has_a_run_per_job_and_says_nothing_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: Calls = []
    monkeypatch.setitem(sys.modules, "trackio", module("trackio", calls))
    board = Trackio(board_job(tmp_path))
    board.write("warmstart", 0, {"loss": 1.5})
    board.close()
    (_, options), *others = calls
    assert (options["project"], options["name"], options["resume"]) == ("mine", "a/seed0", "allow")
    assert others == [("log", {"warmstart/step": 0, "warmstart/loss": 1.5}), ("finish", None)]
    assert capsys.readouterr().out == ""


class Recording:
    """A board that keeps what it is told."""

    def __init__(self, job: BoardJob) -> None:
        self.job, self.rows, self.closed = job, list[dict[str, Any]](), False
        KEPT.append(self)

    def write(self, stage: str, step: int, values: Any) -> None:
        self.rows.append({"stage": stage, "step": step, **values})

    def close(self) -> None:
        self.closed = True
        if self.job.name == "bad":
            raise OSError("no")


KEPT: list[Recording] = []


def test_boards_are_told_every_row_and_closed_whatever_happens(tmp_path: Path) -> None:
    KEPT.clear()
    good, bad = Recording(board_job(tmp_path)), Recording(BoardJob("r", "bad", tmp_path, {}))
    log = MetricsLog(AppendLog(tmp_path / "m.jsonl", FileOffset()))
    log.add_board(good)
    log.add_board(bad)
    with pytest.raises(OSError, match="no"), log:
        log.write("rl", 0, {"return": 1.0})
    assert good.rows == bad.rows == [json.loads((tmp_path / "m.jsonl").read_text(encoding="utf-8"))]
    assert (good.closed, bad.closed) == (True, True)


def test_a_job_tells_the_boards_of_its_config_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KEPT.clear()
    monkeypatch.setattr(boards, "find_spec", lambda _: object())
    monkeypatch.setitem(BOARDS, "trackio", Recording)  # type: ignore[misc, call-overload]
    short = {"variants__delegating__warmstart__phases": [], "variants__delegating__rl__steps": 1}
    job = Job(config(tmp_path, logging=["trackio"], **short), JobId("delegating", 0), lambda *_: None)
    job.run(lambda: None)
    job.close()
    (board,) = KEPT
    assert board.rows == rows(job)
    assert 0 <= board.rows[0]["correct"] <= 1
    assert (board.job.run, board.job.name, board.job.config["logging"]) == ("t", "delegating/seed0", ["trackio"])
    assert not (job.folder / "tensorboard").exists()


# The real ones, where they are


@pytest.fixture
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """W&B as it is where nobody has set it up."""
    wandb = pytest.importorskip("wandb", reason="W&B is not installed")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    wandb.teardown()  # it reads its environment once


@pytest.mark.usefixtures("no_account")
def test_the_real_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    board = WeightsAndBiases(board_job(tmp_path / "job"))
    for step in range(2):
        board.write("rl", step, {"return": 0.5 + step, "mismatch/root/kl": 0.0})
    board.close()
    (file,) = (tmp_path / "job" / "wandb").glob("offline-run-*/*.wandb")
    kept = file.read_bytes()
    assert all(name in kept for name in (b"rl/return", b"rl/mismatch/root/kl", b"a/seed0"))
    assert file.stem == f"run-{(tmp_path / 'job' / 'wandb' / 'id').read_text(encoding='utf-8')}"


@pytest.mark.usefixtures("no_account")
def test_the_real_wandb_without_an_account_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set WANDB_MODE=offline"):
        WeightsAndBiases(board_job(tmp_path / "job"))


def test_the_real_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "trackio" not in sys.modules:  # it reads this once
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="trackio is not installed")
    for _ in range(2):  # the second time as after --resume
        board = Trackio(board_job(tmp_path / "job"))
        board.write("rl", 0, {"return": 0.5})
        board.close()
    (file,) = Path(trackio.utils.TRACKIO_DIR).glob("mine*.db")
    with sqlite3.connect(file) as found:
        stored = found.execute("select run_name, metrics from metrics").fetchall()
    assert [(name, json.loads(text)["rl/return"]) for name, text in stored] == [("a/seed0", 0.5)] * 2
