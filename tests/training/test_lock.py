"""A folder of a run or a study has one writer, however the last one ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from test_job import config
from test_study_run import run as run_study
from test_study_run import small

from selfcest_cli.report import report_folder
from selfcest_cli.solve import _count_episodes
from selfcest_env.errors import ConfigError, RecordError
from selfcest_env.graders import Grade
from selfcest_env.types import Status
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.results import Result, ResultKey
from selfcest_eval.play.store import Store
from selfcest_eval.report.page import write_report_page
from selfcest_training import lock, session
from selfcest_training.config_file import dump_config, parse_as
from selfcest_training.faults import log_faults
from selfcest_training.files import (
    AppendLog,
    FileOffset,
    atomic_write,
    check_new_file,
    check_output_file,
    check_output_folder,
    open_for_append,
    replace_text,
    write_text,
)
from selfcest_training.lock import lock_folder
from selfcest_training.run.experiment import run
from selfcest_training.run.progress import ProgressFile, read_run

ROOT = Path(__file__).parents[2]
OWNER = """
import os, signal, sys, time
from pathlib import Path
from selfcest_training.faults import log_faults
from selfcest_training.files import FileOffset, AppendLog, replace_text, write_text
from selfcest_training.lock import lock_folder
# Who runs in the background inherits that these are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
with lock_folder(Path(sys.argv[1])):
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
    with pytest.raises(ConfigError) as caught, lock_folder(folder):
        pass
    return str(caught.value)


def test_a_second_process_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    with owner(tmp_path / "runs" / "r") as (process, _):
        said = refusal(tmp_path / "runs" / "r")
        assert f"runs/r is in use by process {process.pid} on {socket.gethostname()} since 20" in said
        assert len(said.splitlines()) == 1
        with lock_folder(tmp_path / "runs" / "other"):
            pass
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
        with lock_folder(tmp_path / "runs" / "r"):
            assert f"process {os.getpid()} on" in refusal(tmp_path / "runs" / "r")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_the_owner_the_folder_is_free_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with owner(tmp_path) as (process, _):
        process.send_signal(number)
        process.wait(timeout=60)
        with lock_folder(tmp_path):
            pass


def test_a_child_of_a_dead_owner_holds_nothing(tmp_path: Path) -> None:
    with owner(tmp_path, "with a child") as (process, child):
        try:
            process.kill()
            process.wait(timeout=60)
            os.kill(child, 0)  # it is still there
            with lock_folder(tmp_path):
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
            with (
                lock_folder(folder),
                pytest.raises(ConfigError, match=f"{folder.name} is in use by process {os.getpid()} "),
            ):
                begin(resume)
        assert [path.name for path in folder.iterdir()] == [lock.LOCK]


def test_a_report_waits_for_who_writes(tmp_path: Path) -> None:
    for name, written in (("config.yaml", config(tmp_path)), ("study.yaml", parse_as(StudyConfig, small(tmp_path)))):
        folder = tmp_path / name.removesuffix(".yaml")
        folder.mkdir()
        (folder / name).write_text(dump_config(written), encoding="utf-8")
        with lock_folder(folder), pytest.raises(ConfigError, match=f"is in use by process {os.getpid()} "):
            report_folder(folder, Console(quiet=True))


def test_a_file_system_without_locks_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match="is not locked \\(Function not implemented\\)"), lock_folder(tmp_path):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"), lock_folder(blocker / "runs"):
        pass
    (tmp_path / "odd" / lock.LOCK).mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be written"), lock_folder(tmp_path / "odd"):
        pass
    if os.geteuid() != 0:  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(ConfigError, match="cannot be written"), lock_folder(tmp_path / "closed"):
            pass


def link(kind: str, place: Path, target: Path) -> None:
    """A link of a stranger in the place of a file of a run, and the file of the user to which it leads."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind != "dangling":
        target.write_text("mine", encoding="utf-8")
    if kind == "hard":
        os.link(target, place)
    elif kind == "chain":
        (target.parent / "between").symlink_to(target)
        place.symlink_to(target.parent / "between")
    elif kind == "relative":
        place.symlink_to(os.path.relpath(target, place.parent))
    else:
        place.symlink_to(target)


def write_into(folder: Path, name: str) -> None:
    """Write a file of a run or a study by the code that does so in a command."""
    if name == ".lock":
        with lock_folder(folder):
            pass
    elif name == "errors.log":
        with suppress(ZeroDivisionError), log_faults(folder):
            raise ZeroDivisionError
    elif name == "sessions.jsonl":
        session.append_json(folder / name, {"a": 1})
    elif name == "metrics.jsonl":
        AppendLog(folder / name, FileOffset()).append("x")
    elif name == "progress.json":
        ProgressFile(folder).report("rl", 0.5, "", 7)
    elif name == "episodes.jsonl":
        _count_episodes(folder / name)
    else:
        store = Store(folder)
        store.add([RESULT])
        store.finish([(RESULT.key, RESULT.place)], {})


RESULT = Result(
    "k", "p", ResultKey("f", "any", "in", "s", None, 0, "t"), (), 0, Grade(1.0, True, True), Status.ANSWERED, {}
)
REFUSED = (".lock", "errors.log", "metrics.jsonl", "sessions.jsonl", "played.jsonl", "episodes.jsonl")
REPLACED = ("progress.json", ".partial.progress.json", "results.partial", "played.partial")


@pytest.mark.parametrize("kind", ["symbolic", "dangling", "hard", "chain", "relative"])
@pytest.mark.parametrize("name", [*REFUSED, *REPLACED])
def test_no_file_of_a_run_is_written_through_a_link(kind: str, name: str, tmp_path: Path) -> None:
    folder, target = tmp_path / "run", tmp_path / "target"
    link(kind, folder / name, target)
    with suppress(RecordError):  # of a file that is no part of a study
        if name in REFUSED and name != "errors.log":
            with pytest.raises(ConfigError, match=f"{name} is a (symbolic|hard) link; expected a regular file"):
                write_into(folder, name)
        else:
            write_into(folder, name.removeprefix(".partial."))
    assert not target.exists() if kind == "dangling" else target.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", REFUSED)
def test_a_link_that_comes_after_a_look_is_not_followed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a race would do: every look at a name says that there is no link."""
    folder, target = tmp_path / "run", tmp_path / "target"
    link("symbolic", folder / name, target)
    monkeypatch.setattr(Path, "is_symlink", lambda path: False)
    monkeypatch.setattr(os.path, "islink", lambda path: False)
    with suppress(ConfigError, RecordError):
        write_into(folder, name)
    assert target.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", ["played.jsonl", "errors.log", ".lock", "sessions.jsonl"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_nothing_waits_for_it(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    if name == "errors.log":
        write_into(tmp_path, name)
        return
    with pytest.raises(ConfigError, match="is a pipe or a device"):
        open_for_append(tmp_path / name)


FOLDERS = ("delegating", "delegating/seed0", "delegating/seed0/checkpoints", "delegating/seed0/tensorboard",
           "delegating/seed0/after", "delegating/seed0/wandb", "plots", "delegating/seed0/model",
           "wandb/seed0")  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_no_folder_inside_of_a_run_is_a_link(name: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    spec = config(tmp_path)
    place = spec.folder / name
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    (spec.folder / "config.yaml").write_text(dump_config(spec), encoding="utf-8")
    for command in (
        lambda: run(spec, resume=True, console=Console(quiet=True)),
        lambda: report_folder(spec.folder, Console(quiet=True)),
    ):
        with pytest.raises(ConfigError, match=f"{place.name} is a symbolic link"):
            command()
    assert not list(outside.iterdir())


def test_a_run_may_be_linked_as_a_whole_and_so_may_what_wandb_keeps(tmp_path: Path) -> None:
    board = tmp_path / "elsewhere" / "delegating" / "seed0" / "wandb"
    (board / "run-1").mkdir(parents=True)
    (board / "latest-run").symlink_to("run-1")
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with lock_folder(tmp_path / "run"):
        assert "process" in (tmp_path / "elsewhere" / lock.LOCK).read_text(encoding="utf-8")


def test_a_page_writes_its_figures_into_no_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "report_files").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="report_files is a symbolic link"):
        write_report_page([], tmp_path / "report.html", lambda file: [])


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


def test_a_file_does_not_replace_a_folder(tmp_path: Path) -> None:
    """`selfcest evaluate --page docs` deleted the folder docs."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "thesis").write_text("mine", encoding="utf-8")
    with pytest.raises(IsADirectoryError, match="docs"):
        write_text(tmp_path / "docs", "page")
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]
    assert (tmp_path / "docs" / "thesis").read_text(encoding="utf-8") == "mine"
    (tmp_path / "file").write_text("", encoding="utf-8")
    check_output_file("--out", tmp_path / "file")
    check_output_file("--out", tmp_path / "new" / "page", makes_folders=True)
    check_output_folder("--out", tmp_path / "new" / "folder")
    for check, path, words in (
        (check_output_file, "docs", "--out .*docs is a folder; expected the path of a file"),
        (check_output_file, "new/page", "new is not a folder"),
        (partial(check_output_file, makes_folders=True), "file/page", "file is not a folder"),
        (check_output_folder, "file", "file is not a folder"),
        (check_new_file, "file", "exists; expected a new file"),
    ):
        with pytest.raises(ConfigError, match=words):
            check("--out", tmp_path / path)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_put_in_the_place_of_the_next_partial_file_is_not_followed(kind: str, tmp_path: Path) -> None:
    """A library opens the partial file by its name, so a stranger must not know the name before."""
    page, target = tmp_path / "page.csv", tmp_path / "target"
    with atomic_write(page) as partial:
        known = partial
        partial.write_text("old", encoding="utf-8")
    target.mkdir()
    if kind == "file":
        known.parent.mkdir(exist_ok=True)
        known.symlink_to(target / "file")
    elif not known.parent.exists():
        known.parent.symlink_to(target)
    with atomic_write(page) as partial:
        partial.write_text("new", encoding="utf-8")
    assert page.read_text(encoding="utf-8") == "new"
    assert not list(target.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.csv", "target"]


@pytest.mark.parametrize("name", [lock.LOCK, "delegating/seed0/progress.json", "delegating/seed0/metrics.jsonl"])
def test_who_watches_a_run_waits_for_no_pipe_in_its_folder(name: str, tmp_path: Path) -> None:
    spec = config(tmp_path)
    pipe = spec.folder / name
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    watched = threading.Thread(target=read_run, args=(spec,), daemon=True)
    watched.start()
    watched.join(10)
    assert not watched.is_alive()
