"""No character of a stranger's text that a terminal obeys or hides reaches the terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text
from test_job import config

import selfcest_cli.main as cli
from selfcest_cli import plain
from selfcest_cli.masking import MaskedStream, masked_output, printable
from selfcest_cli.terminal import Terminal
from selfcest_training.config_file import dump_config

HOSTILE = {
    "colour": "\x1b[31mred",
    "hidden": "\x1b[8mhidden\x1b[0m",
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "hyperlink": "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "one-byte CSI": "\x9b31m",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "device control": "\x1bP1;1|\x1b\\",
    "bell": "a\x07b",
    "backspace": "good\x08\x08\x08\x08evil",
    "return": "good\revil",
    "next line": "good\x85evil",
    "delete": "a\x7f",
    "null": "a\x00b",
    "override": "\u202etxt.exe",
    "isolate": "\u2066a\u2069",
    "mark": "a\u200fb\u061c",
    "zero width": "a\u200bb\u200cc\u200dd\u2060e\ufeff",
    "tag": "a\U000e0041b",
    "annotation": "\ufff9a\ufffbb",
    "separator": "a\u2028b\u2029c",
    "soft hyphen": "pay\u00adpal",
    "filler": "a\u3164b\u115fc",
    "surrogate": "a\udc9b31m",
}
FORBIDDEN = {char for text in HOSTILE.values() for char in text if not (char.isascii() and char.isprintable())}


class TerminalFile(io.StringIO):
    """A file that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def harmless(text: str) -> bool:
    return not FORBIDDEN & set(text.replace("\r\n", "\n"))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_masked_text_can_be_read_and_is_masked_once(text: str) -> None:
    masked = printable(text)
    assert harmless(masked)
    assert printable(masked) == masked
    assert re.search(r"\\(x|u|U|r)", masked)
    assert masked.encode("ascii").decode() == masked


@pytest.mark.parametrize("text", ["plain\n\ttext\n", "größer – „so“ · 3 × 4", "日本語 العربية हिन्दी", "▁▂█━ ✓", ""])
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_prints_warnings_and_errors_are_masked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with masked_output():
        print("out", f"{text}.", end=f"|{text}|\n")
        print(f"selfcest: {text}.", file=sys.stderr)
        sys.stderr.writelines([f"a line {text}.\n"])
        sys.stderr.write(warnings.formatwarning(f"{text}.", UserWarning, "file.py", 1))
    printed = capsys.readouterr()
    assert harmless(printed.out + printed.err)
    assert printed.out == f"out {printable(text)}.|{printable(text)}|\n"
    assert printed.err.count(f"{printable(text)}.") == 3


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_terminal_masks_texts_and_tables_and_keeps_its_own_colours(text: str) -> None:
    file = TerminalFile()
    terminal = Terminal(file=file)
    terminal.print(text, Text(text, "bold"), soft_wrap=True)
    table = Table(text, title=text)
    table.add_row(text)
    table.add_row(Text(text))
    terminal.print(table)
    drawn = file.getvalue()
    for own in ("\x1b[1m", "\x1b[3m", "\x1b[1;3m", "\x1b[0m"):
        drawn = drawn.replace(own, "")
    assert harmless(drawn)


@pytest.mark.parametrize(
    "text", ["[bold]a[/bold]", "[link=http://evil]a[/link]", "[red]", "[/]", "[[a]", "[@click=app.quit]a[/]", ":skull:"]
)
def test_markup_of_a_stranger_is_text(text: str) -> None:
    file = TerminalFile()
    terminal = Terminal(file=file)
    terminal.print(text)
    table = Table(box=None, show_header=False)
    table.add_row(text)
    terminal.print(table)
    assert [line.strip() for line in file.getvalue().splitlines()] == [text, text]


def test_a_link_of_rich_is_dropped() -> None:
    file = TerminalFile()
    Terminal(file=file).print(Text("a", "link http://evil"), Text.from_markup("[link=http://evil]a[/link]"))
    assert file.getvalue() == "a a\n"


def test_a_warning_beside_a_live_table_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    file = TerminalFile()
    monkeypatch.setattr(sys, "stderr", file)
    text = HOSTILE["hyperlink"] + HOSTILE["hidden"]
    with masked_output(), Live(Text("table"), console=Terminal(stderr=True), auto_refresh=False):
        sys.stderr.write(warnings.formatwarning(text, UserWarning, "file.py", 1))
    drawn = file.getvalue()
    assert printable(HOSTILE["hyperlink"]) in drawn.replace("\n", "")
    assert "\x1b]8" not in drawn
    assert "\x1b[8m" not in drawn


def test_progress_bars_of_libraries_can_draw(capsys: pytest.CaptureFixture[str]) -> None:
    from tqdm import tqdm

    stream = MaskedStream(sys.stderr)
    for _ in tqdm(range(3), file=stream, leave=False, mininterval=0):
        pass
    assert "\\r" not in capsys.readouterr().err


def run_folder(folder: Path, text: str) -> str:
    """A run of a stranger, which seems to go on, whose files hold a text wherever one can stand."""
    spec = config(folder)
    job = spec.folder / next(iter(spec.variants)) / f"seed{spec.seeds[0]}"
    (job / "checkpoints").mkdir(parents=True)
    (spec.folder / "config.yaml").write_text(dump_config(spec), encoding="utf-8")
    progress = {"stage": f"RL {text}", "note": text, "marks": [[0.0, 0.1, 1], [1.0, 0.2, 9]]}
    (job / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
    owner = f"process {os.getpid()} on {socket.gethostname()} since {text}\n"
    (spec.folder / ".lock").write_bytes(owner.encode(errors="replace"))
    return str(spec.folder)


NAMES = [name for name in HOSTILE if name != "surrogate"]  # which no file of a run can hold


@pytest.mark.parametrize("name", [*NAMES[:6], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[6:])])
def test_watch_masks_progress_and_owner(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path, HOSTILE[name])
    for arguments in (["watch", folder, "--once"], ["watch", folder, "--once", "--port", "7"], ["report", folder]):
        monkeypatch.setattr(sys, "argv", ["selfcest", *arguments])
        with pytest.raises(SystemExit):
            cli.main()
    printed = capsys.readouterr()
    assert "process" in printed.out
    assert harmless(printed.out + printed.err)


@pytest.mark.slow
def test_watch_masks_in_a_terminal(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, HOSTILE["hyperlink"] + HOSTILE["override"])
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "selfcest_cli", "watch", folder, "--once"]
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm-256color"}
    with os.fdopen(reader, "rb", buffering=0) as screen:
        subprocess.run(command, stdout=writer, stderr=writer, check=True, env=environment)
        drawn = screen.read(1 << 16).decode()
        os.close(writer)
    assert "\\x1b]8;;http" in drawn
    assert "\x1b]8" not in drawn
    assert "\u202e" not in drawn
    assert "\x1b[" in drawn  # its own colours


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "arguments",
    [["trace"], ["plan", "-c"], ["nonsense"], *(pytest.param(arguments, marks=pytest.mark.slow) for arguments in (
        ["report"], ["watch"], ["compare", "x"], ["contamination"], ["export"], ["--"], ["watch", "a", "b"],
        ["credit", "apply", "--name"], ["lab", "--game"], ["bench", "--seeds", "1"],
    ))],
    ids=" ".join,
)  # fmt: skip
def test_what_was_typed_is_masked_in_an_error(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["selfcest", *arguments, HOSTILE[name]])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code
    printed = capsys.readouterr()
    assert printed.err
    assert harmless(printed.out + printed.err)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_plain_install_masks_too(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["trace", HOSTILE[name]], ["trace", "x", f"--{HOSTILE[name]}"]):
        assert plain.main(arguments) == 2
    printed = capsys.readouterr()
    assert harmless(printed.out + printed.err)
