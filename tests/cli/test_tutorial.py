"""docs/tutorial.md from its first block to its last, in an empty folder, with the scripted server as the API."""

from __future__ import annotations

import csv
import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_models import CHATML, byte_level, chat_tokenizer, tiny_llama

import selfcest_cli.main as cli
from selfcest_eval.report import study_report as report

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SERVER = ROOT / "docs" / "examples" / "tutorial" / "scripted_server.py"
ON_THE_PAGE = "http://127.0.0.1:8000/v1"


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of the page's server, on a port that was free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(SERVER), str(port)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def models(tmp_path: Path) -> None:
    """What the page takes for granted: what `save_pretrained` wrote."""
    tokenizer = chat_tokenizer(CHATML, byte_level([PAGE] * 2, 1000))
    tokenizer.save_pretrained(tmp_path / "my-model")
    tiny_llama(tokenizer, positions=8192).save_pretrained(tmp_path / "my-model")


@pytest.mark.usefixtures("models")
@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "draw_frontiers", lambda *_: None)  # half a second each
    names: dict[str, object] = {}
    commands: list[str] = []
    printed: dict[str, str] = {}
    assert PAGE.count(ON_THE_PAGE) == 2
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.replace(ON_THE_PAGE, server), re.M | re.S):
        if named := re.match(r"# (\w+\.(?:py|yaml))\n", text):
            Path(named[1]).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(text, names)
        else:
            assert language == "bash", f"nothing runs a block of {language!r}"
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                assert program == "selfcest"
                monkeypatch.setattr(sys, "argv", [program, *arguments])
                with pytest.raises(SystemExit) as caught:
                    cli.main()
                printed[line] = capsys.readouterr().out
                assert caught.value.code == 0, line
                commands.append(arguments[0])
    assert commands == ["solve", "trace", "evaluate", "evaluate", "evaluate", "evaluate", "trace"]

    # What the page says of it.
    (asked,) = [text for line, text in printed.items() if line.startswith("selfcest solve")]
    spent = {name[: name.index("'")]: int(text.split()[-2]) for name, text in documents().items()}
    assert f'answer: "{spent["Ann"] + spent["Bo"]}"' in asked
    rows = {(row["strategy"], row["budget"]): row for row in table("mine")}
    assert len(rows) == 9
    shown = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| (\d+) \| (\d+) \| ([\d.]+) \|$", PAGE, re.M)
    assert [line[0] for line in shown] == ["delegate", "monolithic"]
    for strategy, accuracy, total, generated, money in shown:
        row = rows[strategy, "4000"]
        assert (float(accuracy), float(total)) == (float(row["accuracy"]), float(row["total_tokens"]))
        assert (float(generated), money) == (float(row["generated_tokens"]), f"{float(row['money']):.5f}")
    assert rows["monolithic", "400"]["money"] == ""
    assert rows["monolithic", "400"]["ended_prompt_too_long"] == "24"
    monolithic = rows["monolithic", "4000"]
    price = 3 * float(monolithic["prompt_tokens"]) + 15 * float(monolithic["generated_tokens"])
    assert float(monolithic["money"]) == pytest.approx(price / 1e6, rel=1e-4), "one call each, so nothing is cached"
    (again,) = [text for line, text in printed.items() if "--resume" in line]
    assert "216 of 432 results are stored\n" in again, "another price plays nothing but what no model plays"
    assert len(table("mine_local")) == 3
    assert len(table("mine_embedded")) == 4
    traced = list(printed.values())[-1]
    assert traced.startswith("delegate on mine all, at most 400, seed 0: wrong\n")
    assert "turn 0: refused" in traced, "400 tokens do not pay for two clones"


def documents() -> dict[str, str]:
    found: dict[str, str] = json.loads(Path("documents.json").read_text(encoding="utf-8"))
    return found


def table(study: str) -> list[dict[str, str]]:
    with (Path("studies") / study / "results.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
