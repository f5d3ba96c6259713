"""A folder of a run or a study has one writer, however the last one ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from test_job import config
from test_study_run import run as run_study
from test_study_run import small

from selfcest_cli.report import report_folder
from selfcest_env.errors import ConfigError
from selfcest_eval.play.config import StudyConfig
from selfcest_training import lock, session
from selfcest_training.config_file import dump_config, parse_as
from selfcest_training.faults import logged
from selfcest_training.files import Extent, Growing, replace_text, write_text
from selfcest_training.lock import locked
from selfcest_training.run.experiment import run

ROOT = Path(__file__).parents[2]
OWNER = """
import os, signal, sys, time
from pathlib import Path
from selfcest_training.faults import logged
from selfcest_training.files import Extent, Growing, replace_text, write_text
from selfcest_training.lock import locked
# Who runs in the background inherits that these are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with locked(Path(sys.argv[1])):
    if not sys.argv[2:]:
        print(1, flush=True)
    elif not os.fork():
        print(os.getpid(), flush=True)  # by now it has let go of the file
        time.sleep(60)
    input()
"""


@contextmanager
def owner(folder: Path, *with_child: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds the folder, and its child's id."""
    path = os.pathsep.join(str(ROOT / part) for part in ("", "training"))
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), *with_child],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught, locked(folder):
        pass
    return str(caught.value)


def test_a_second_process_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    with owner(tmp_path / "runs" / "r") as (process, _):
        said = refusal(tmp_path / "runs" / "r")
        assert f"runs/r is in use by process {process.pid} on {socket.gethostname()} since 20" in said
        assert len(said.splitlines()) == 1
        with locked(tmp_path / "runs" / "other"):
            pass
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
        with locked(tmp_path / "runs" / "r"):
            assert f"process {os.getpid()} on" in refusal(tmp_path / "runs" / "r")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_the_owner_the_folder_is_free_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with owner(tmp_path) as (process, _):
        process.send_signal(number)
        process.wait(timeout=60)
        with locked(tmp_path):
            pass


def test_a_child_of_a_dead_owner_holds_nothing(tmp_path: Path) -> None:
    with owner(tmp_path, "with a child") as (process, child):
        try:
            process.kill()
            process.wait(timeout=60)
            os.kill(child, 0)  # it is still there
            with locked(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_neither_a_run_nor_a_study_touches_a_folder_in_use(tmp_path: Path) -> None:
    spec, study = config(tmp_path), small(tmp_path)
    start = {
        spec.folder: lambda resume: run(spec, resume=resume, console=Console(quiet=True)),
        tmp_path / "s": lambda resume: run_study(study, resume=resume),
    }
    for folder, begin in start.items():
        for resume in (False, True):
            with locked(folder), pytest.raises(ConfigError, match=f"{folder.name} is in use by process {os.getpid()} "):
                begin(resume)
        assert [path.name for path in folder.iterdir()] == [lock.LOCK]


def test_a_report_waits_for_who_writes(tmp_path: Path) -> None:
    for name, written in (("config.yaml", config(tmp_path)), ("study.yaml", parse_as(StudyConfig, small(tmp_path)))):
        folder = tmp_path / name.removesuffix(".yaml")
        folder.mkdir()
        (folder / name).write_text(dump_config(written), encoding="utf-8")
        with locked(folder), pytest.raises(ConfigError, match=f"is in use by process {os.getpid()} "):
            report_folder(folder, Console(quiet=True))


def test_a_file_system_without_locks_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match="is not locked \\(Function not implemented\\)"), locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"), locked(blocker / "runs"):
        pass
    (tmp_path / "odd" / lock.LOCK).mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be written"), locked(tmp_path / "odd"):
        pass
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(ConfigError, match="cannot be written"), locked(tmp_path / "closed"):
            pass


@pytest.mark.parametrize("kind", ["symbolic", "dangling", "hard", "chain"])
@pytest.mark.parametrize("name", [".lock", "errors.log", "metrics.jsonl", "sessions.jsonl"])
def test_no_file_of_a_run_is_written_through_a_link(kind: str, name: str, tmp_path: Path) -> None:
    folder, target = tmp_path / "run", tmp_path / "target"
    folder.mkdir()
    if kind != "dangling":
        target.write_text("mine", encoding="utf-8")
    if kind == "hard":
        os.link(target, folder / name)
    elif kind == "chain":
        (tmp_path / "between").symlink_to(target)
        (folder / name).symlink_to(tmp_path / "between")
    else:
        (folder / name).symlink_to(target)
    if name == ".lock":
        with pytest.raises(ConfigError, match=r"\.lock is a (symbolic|hard) link"), locked(folder):
            pass
    elif name == "errors.log":
        with pytest.raises(ZeroDivisionError), logged(folder):
            raise ZeroDivisionError
    elif name == "sessions.jsonl":
        with pytest.raises(ConfigError, match="link"):
            session._append(folder / name, {"a": 1})
    else:
        with pytest.raises(ConfigError, match="link"):
            Growing(folder / name, Extent()).append("x")
    assert not target.exists() if kind == "dangling" else target.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("write", [write_text, replace_text])
@pytest.mark.parametrize("name", ["page.html", ".partial.page.html"])
def test_a_whole_file_replaces_a_link_and_spares_its_target(
    write: Callable[[Path, str], None], name: str, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_text("mine", encoding="utf-8")
    (tmp_path / name).symlink_to(target)
    write(tmp_path / "page.html", "new")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "new"
    assert target.read_text(encoding="utf-8") == "mine"
