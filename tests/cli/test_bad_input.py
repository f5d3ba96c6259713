"""Bad input of the commands that look: one line on the standard error, the exit code, and no trace."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import groups, write
from test_job import config

import selfcest_cli.main as cli
from selfcest_training.config_file import dump_config
from selfcest_training.faults import ExitCode

SUM = "?[1]C[2]E[3]F;09,20,3"
DECIDING = ("--policy", "deciding")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of episodes, a run that has trained a step, and what is wrong with copies of both."""
    here = tmp_path_factory.mktemp("bad")
    (records,) = groups(1, size=2)
    episodes = write(here / "episodes.jsonl", *records).read_bytes()
    first = episodes[: episodes.index(b"\n") + 1]
    (here / "cut.jsonl").write_bytes(episodes[:300])
    (here / "cut_within.jsonl").write_bytes(episodes[:300] + b"\n" + first)
    (here / "empty.jsonl").touch()
    (here / "bytes.jsonl").write_bytes(b"\xff\xfe\xfa\n" + first)
    (here / "other.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    (here / "unreadable.jsonl").symlink_to("/proc/self/mem")  # it opens, and the first byte is an error, even for root
    (here / "folder").mkdir()
    run = config(here, name="run")
    (run.folder / "delegating" / "seed0").mkdir(parents=True)
    (run.folder / "config.yaml").write_text(dump_config(run), encoding="utf-8")
    for name, text in (("no_yaml", "name: ["), ("no_mapping", "a"), ("unknown_key", "nmae: x")):
        (here / name).mkdir()
        (here / name / "config.yaml").write_text(text, encoding="utf-8")
    (here / "unreadable").mkdir()
    (here / "unreadable" / "config.yaml").symlink_to("/proc/self/mem")
    for name, text in (("damaged", '{"stage": \n{}\n'), ("unreadable_log", None)):
        shutil.copytree(run.folder, here / name)
        log = here / name / "delegating" / "seed0" / "metrics.jsonl"
        if text is None:
            log.symlink_to("/proc/self/mem")
        else:
            log.write_text(text, encoding="utf-8")
    (here / "keys.json").write_text(json.dumps({"a": 1}), encoding="utf-8")
    return here


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield str(one.getsockname()[1])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("trace missing.jsonl", "there is no file missing.jsonl"),
        ("trace folder", "there is no file folder/results.jsonl"),
        ("trace empty.jsonl", "empty.jsonl holds no episode"),
        ("trace empty.jsonl --html x.html", "empty.jsonl: there is no episode to show"),
        ("trace cut.jsonl", "cut.jsonl holds no episode"),
        ("trace cut_within.jsonl", "cut_within.jsonl, line 1: "),
        ("trace bytes.jsonl", "bytes.jsonl, line 1: "),
        ("trace other.jsonl", "other.jsonl, line 1: record.a is unknown"),
        ("trace unreadable.jsonl", "unreadable.jsonl cannot be read (Input/output error)"),
        ("trace episodes.jsonl --episode s0.g0.e9", "no such episode 's0.g0.e9'. Did you mean"),
        ("trace episodes.jsonl --episode x --html x.html", "no file holds an episode 'x'"),
        ("trace episodes.jsonl --episode x --svg x.svg", "no such episode 'x'"),
        ("trace episodes.jsonl --html missing/x.html", "--html missing/x.html cannot be written"),
        ("trace episodes.jsonl --html folder", "--html folder is a folder"),
        ("trace episodes.jsonl --html empty.jsonl/x.html", "empty.jsonl is not a folder"),
        ("trace episodes.jsonl --svg missing/x.svg", "--svg missing/x.svg cannot be written"),
        ("trace episodes.jsonl --gif folder", "--gif folder is a folder"),
        ("trace episodes.jsonl --html x.html --credit rlo", "unknown credit scheme 'rlo'"),
        ("trace episodes.jsonl --credit rloo", "--credit needs a page"),
        ("trace episodes.jsonl --strategy x", "episodes.jsonl is not the results.jsonl of a study"),
        ("report missing", "missing holds no config.yaml of a run and no study.yaml"),
        ("report folder", "folder holds no config.yaml of a run and no study.yaml"),
        ("report episodes.jsonl --html x.html", "episodes.jsonl holds no config.yaml of a run"),
        ("report no_yaml", "no_yaml/config.yaml is not valid YAML"),
        ("report no_mapping", "no_mapping/config.yaml holds str"),
        ("report unknown_key --html x.html", "nmae"),
        ("report unreadable --html x.html", "unreadable/config.yaml cannot be read: Input/output error"),
        ("report damaged --html x.html", "metrics.jsonl, line 1: "),
        ("report unreadable_log --html x.html", "unreadable_log cannot be read (Input/output error)"),
        ("report run run --html x.html", "a folder is named twice"),
        ("report run --html missing/x.html", "--html missing/x.html cannot be written"),
        ("report run --html folder", "--html folder does not end in .html"),
        ("watch missing", "missing holds no config.yaml of a run"),
        ("watch folder --once", "folder holds no config.yaml of a run"),
        ("watch no_yaml --once", "no_yaml/config.yaml is not valid YAML"),
        ("watch unreadable --serve", "unreadable/config.yaml cannot be read: Input/output error"),
        ("watch run --port 80", "--port 80 has no effect without --serve"),
        ("watch run --serve --port TAKEN", "cannot be opened (Address already in use); give another port"),
        ("watch run --serve --port 65536", "--port 65536 of 127.0.0.1 cannot be opened"),
        (("solve", "", *DECIDING), "the question is ''"),
        (("solve", " \n", *DECIDING), "the question is ' \\n'"),
        (("solve", SUM), "no policy given: pass --policy"),
        (("solve", SUM, "--policy", "missing"), "--policy missing: there is no such folder"),
        (("solve", SUM, "--policy", "folder"), "--policy folder is not a model"),
        (("solve", SUM, *DECIDING, "--html", "missing/x.html"), "--html missing/x.html cannot be written"),
        (("solve", SUM, *DECIDING, "--html", "folder"), "--html folder is a folder"),
        (("solve", SUM, *DECIDING, "--out", "missing/x.jsonl"), "--out missing/x.jsonl cannot be written"),
        (("solve", SUM, *DECIDING, "--out", "folder"), "--out folder cannot be written"),
        (("solve", SUM, *DECIDING, "--out", "cut.jsonl"), "--out: cut.jsonl, line 1, was cut"),
        (("solve", SUM, *DECIDING, "--documents", "missing"), "missing: cannot be read"),
        (("solve", SUM, *DECIDING, "--documents", "folder"), "folder holds no document"),
        (("solve", SUM, *DECIDING, "--documents", "keys.json"), "keys.json: 'a' is 1; expected a text"),
        (("solve", SUM, *DECIDING, "--temperature", "-1"), "temperature is -1.0"),
        (("solve", SUM, *DECIDING, "limits.total_tokens=many"), "limits.total_tokens is 'many'"),
        (("solve", SUM, "--server", "127.0.0.1", "--name", "m"), "base_url is '127.0.0.1'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_it(
    folder: Path,
    taken: str,
    command: str | tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = command.split() if isinstance(command, str) else command
    before = sorted(folder.rglob("*"))
    assert ended(folder, [taken if word == "TAKEN" else word for word in words], monkeypatch) is ExitCode.MISTAKE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("selfcest: ")
    assert said in line
    assert sorted(folder.rglob("*")) == before, "nothing is left"


def test_a_server_that_is_not_there_is_no_mistake_and_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["solve", SUM, "--server", f"http://127.0.0.1:{port}/v1", "--name", "m"]
    assert ended(folder, words, monkeypatch) is ExitCode.MISTAKE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"selfcest: cannot connect to http://127.0.0.1:{port}/v1 (ConnectError: ")
    assert "start the server" in line


def ended(folder: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> ExitCode:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["selfcest", *words])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return ExitCode(stopped.value.code)
