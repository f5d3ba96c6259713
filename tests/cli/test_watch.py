"""What is shown of a run that goes on: read from its files alone, in the terminal and as a page."""

from __future__ import annotations

import errno
import http.client
import io
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console
from test_job import config
from typer.testing import CliRunner

import selfcest_cli.main as cli
from selfcest_cli import watch
from selfcest_env.plugin import only_trusted
from selfcest_env.tasks import SOURCES
from selfcest_eval.html.playing import Renderer
from selfcest_eval.report import serve
from selfcest_eval.report.page import ReportFiles, ReportPage, make_page
from selfcest_eval.report.serve import LiveReport, serve_report
from selfcest_eval.report.sources import Source
from selfcest_training.config import RunConfig
from selfcest_training.config_file import dump_config
from selfcest_training.lock import LOCK, find_lock_owner, lock_folder
from selfcest_training.run.display import (
    HEADS,
    Display,
    format_cells,
    format_duration,
    format_headline,
    format_job_line,
    print_status,
    print_text,
)
from selfcest_training.run.progress import DONE, PROGRESS, STEPS, WAITING, JobStatus, ProgressFile, RunStatus, read_run

USED = {"compute_tokens": 0, "sampled_tokens": 0, "scored_tokens": 0, "cpu_seconds": 0.0}


def rows(*found: dict[str, Any]) -> str:
    return "".join(json.dumps({**USED, **row}) + "\n" for row in found)


def step(number: int, **values: float) -> dict[str, Any]:
    fixed = {"return": 0.0, "clones": 1.0, "total_tokens": 20.0, "replayed_tokens": 0}
    return {"stage": "rl", "step": number, **fixed, **values}


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    """A run of one job, `delegating/seed0`, that has begun nothing."""
    spec = config(tmp_path, evaluation__eval_sets=[{"family": "choice", "size": "any"}])
    (spec.folder / "delegating" / "seed0").mkdir(parents=True)
    (spec.folder / "config.yaml").write_text(dump_config(spec), encoding="utf-8")
    return spec


def job_folder(run: RunConfig) -> Path:
    return run.folder / "delegating" / "seed0"


def only_job(run: RunConfig, now: float | None = None) -> JobStatus:
    (job,) = read_run(run, now).jobs
    return job


def marks(run: RunConfig, *found: tuple[float, float, int], stage: str = "RL") -> None:
    text = json.dumps({"stage": stage, "note": "step 3 of 10", "marks": found})
    (job_folder(run) / PROGRESS).write_text(text, encoding="utf-8")


# The files


def test_a_run_that_has_begun_nothing_waits(run: RunConfig) -> None:
    assert only_job(run) == JobStatus("delegating/seed0", WAITING)
    assert format_headline(read_run(run)) == f"{run.folder}: no process works here"


def test_numbers_are_means_over_the_last_steps_and_a_line_that_is_being_written_does_not_count(run: RunConfig) -> None:
    found = [step(i, **{"return": float(i), "correct": i / 100}) for i in range(STEPS + 5)]
    text = rows({"stage": "probe", "step": 0, "accuracy/a": 0.5, "accuracy/b": 1.0}, *found)
    (job_folder(run) / "metrics.jsonl").write_text(text + '{"stage": "rl", "return": 99', encoding="utf-8")
    (job_folder(run) / "checkpoints" / "rl_000010").mkdir(parents=True)
    (job_folder(run) / "checkpoints" / "warmstart_000020").mkdir()
    last = range(5, STEPS + 5)
    job = only_job(run)
    assert job.team_return == pytest.approx(sum(last) / STEPS)
    assert job.accuracy == pytest.approx(sum(last) / STEPS / 100)
    assert (job.clones, job.checkpoint) == (1.0, "rl_000010")


def test_without_a_step_that_knows_it_accuracy_is_that_of_the_last_probe(run: RunConfig) -> None:
    probe = {"stage": "probe", "step": 0, "accuracy/a": 0.5, "accuracy/b": 1.0, "threshold": 0.9}
    (job_folder(run) / "metrics.jsonl").write_text(rows({**probe, "accuracy/a": 0.0}, probe), encoding="utf-8")
    assert (only_job(run).accuracy, only_job(run).team_return) == (0.75, None)


def test_of_a_long_file_the_end_is_read(run: RunConfig) -> None:
    found = [step(i, **{"return": float(i >= 995)}, padding=10.0**50) for i in range(1000)]
    (job_folder(run) / "metrics.jsonl").write_text(rows(*found), encoding="utf-8")
    assert only_job(run).team_return == 0.5


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"stage": "RL"}', b'{"stage": "RL", "note": "", "marks": [[1, 2]]}',
     b'{"stage": "RL", "note": "", "marks": ["x"]}', b"[" * 10_000],
)  # fmt: skip
def test_damage_counts_as_missing(run: RunConfig, damage: bytes) -> None:
    (job_folder(run) / PROGRESS).write_bytes(damage)
    (job_folder(run) / "metrics.jsonl").write_bytes(damage + b"\n" + rows(step(0, clones=3.0)).encode() + damage)
    assert only_job(run) == JobStatus("delegating/seed0", WAITING, team_return=0.0, clones=3.0)


def test_time_left_and_speed_are_those_of_late_and_nothing_ends_where_nobody_works(run: RunConfig) -> None:
    marks(run, (100.0, 0.2, 1000), (110.0, 0.4, 3000))
    with lock_folder(run.folder):
        job = only_job(run, now=115.0)
        assert (job.stage, job.share, job.tokens_per_second) == ("RL", 0.4, 200.0)
        assert job.seconds_left == pytest.approx(25)  # 0.6 at 0.02 a second, 5 s of which are over
        assert only_job(run, now=999.0).seconds_left == 0
        assert format_headline(read_run(run)).startswith(f"{run.folder}: process {os.getpid()} on ")
    assert only_job(run, now=115.0).seconds_left is None
    marks(run, (100.0, 0.0, 0))
    assert only_job(run).tokens_per_second is None, "one look says nothing of speed"


def test_marks_are_of_one_stage_and_one_attempt(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100, 200, 10))
    monkeypatch.setattr("selfcest_training.run.progress.time.time", lambda: float(next(clock)))
    file = ProgressFile(job_folder(run))

    def stored() -> list[list[float]]:
        found: list[list[float]] = json.loads((job_folder(run) / PROGRESS).read_bytes())["marks"]
        return found

    file.report("warm start", 0.5, "loss 1", 10)
    file.report("warm start", 1.0, "loss 1", 20)
    assert stored() == [[100, 0.5, 10], [110, 1.0, 20]]
    file.report("warm start", 0.0, "attempt 2 of 3", 20)
    assert stored() == [[120, 0.0, 20]]
    file.report("RL", 0.0, "", 30)
    assert stored() == [[130, 0.0, 30]]
    for i in range(3):
        file.report("RL", i / 100, "", 30)
    assert len(stored()) == 4
    assert [path.name for path in job_folder(run).iterdir()] == [PROGRESS], "and nothing half-written"


def test_a_report_that_cannot_be_written_ends_no_job(tmp_path: Path) -> None:
    ProgressFile(tmp_path / "gone").report("RL", 0.0, "", 0)
    assert list(tmp_path.iterdir()) == []


def test_the_owner_is_whoever_the_lock_file_names_unless_it_is_gone(tmp_path: Path) -> None:
    here, since = socket.gethostname(), "since 2026-01-01 00:00:00+00:00"
    assert find_lock_owner(tmp_path) is None
    with lock_folder(tmp_path):
        assert str(os.getpid()) in (find_lock_owner(tmp_path) or "")
    assert find_lock_owner(tmp_path) is None, "it has ended"
    for text, alive in [
        (f"process {2**22 + 1} on {here} {since}", False),  # above what Linux gives
        (f"process 12 on elsewhere {since}", True),
        (f"process 1 on {here} {since}", True),
        ("process x", False),
    ]:
        (tmp_path / LOCK).write_text(text, encoding="utf-8")
        assert find_lock_owner(tmp_path) == (text if alive else None)


# The terminal


def status(**values: Any) -> JobStatus:
    return JobStatus("a/seed0", **values)


def test_a_line_and_a_table_say_the_same() -> None:
    job = status(stage="RL", share=0.419, seconds_left=130.0, tokens_per_second=1234.4, team_return=-0.126,
                 accuracy=0.5, clones=1.25, checkpoint="rl_000004", note="step 4 of 10")  # fmt: skip
    assert format_job_line(job) == (
        "a/seed0: RL, 41%, 2:10 min left, tokens/s 1234, return -0.13, right 0.50, clones 1.25, checkpoint rl_000004, "
        "step 4 of 10"
    )
    assert format_job_line(status()) == "a/seed0: waiting"
    run = RunStatus(Path("r"), None, (job, status(stage=DONE, share=1.0)))
    for width, shown in ((120, len(HEADS)), (80, len(HEADS) - 1)):
        drawn = io.StringIO()
        print_status(run, Console(file=drawn, force_terminal=True, color_system=None, width=width))
        title, heads, first, second = drawn.getvalue().splitlines()
        assert title.strip() == format_headline(run)
        assert heads.split() == list(HEADS[:shown])
        assert all(cell in first for cell in format_cells(job)[:shown])
        assert second.split()[:3] == ["a/seed0", DONE, "100%"]
        assert max(map(len, (heads, first))) <= width


def test_lines_break_between_words_and_rows_between_columns() -> None:
    words = "a warning of more than forty characters, with a-hyphenated-name and averyveryverylongname"
    row = "family    delegating  0.91 [0.85, 0.95]  123.4  56.7"
    for is_terminal, shown in ((False, f"{words}\n  {words}\n{row}\n"), (True, None)):
        drawn = io.StringIO()
        console = Console(file=drawn, force_terminal=is_terminal, color_system=None, width=40)
        print_text(console, f"{words}\n  {words}\n{row}")
        if shown is not None:
            assert drawn.getvalue() == shown
            continue
        lines = drawn.getvalue().splitlines()
        assert max(map(len, lines)) <= 40
        assert " ".join(drawn.getvalue().split()) == " ".join(f"{words} {words} {row}".split()), "no word is cut"
        assert lines[-2:] == ["family  delegating  0.91 [0.85, 0.95]", "    123.4  56.7"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1:00 min"), (3599, "59 min"), (3661, "1:01 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_without_a_terminal_there_is_a_line_per_stage_tenth_and_probe(run: RunConfig) -> None:
    said = io.StringIO()
    probe = {"stage": "probe", "step": 0, "accuracy/choice": 0.25}
    with Display(run, Console(file=said, width=200)) as display:
        display.update()  # waiting is no news
        for i in range(41):
            marks(run, (100.0, i / 40, i), stage="warm start")
            display.update()
        (job_folder(run) / "metrics.jsonl").write_text(rows(probe), encoding="utf-8")
        display.update()
        marks(run, (100.0, 0.0, 0))
        display.update()
    head, *lines = said.getvalue().splitlines()
    assert head == f"{run.folder}: no process works here"
    assert [found.split(", ")[1] for found in lines] == [*(f"{10 * i}%" for i in range(11)), "100%", "0%"]
    assert "right 0.25" in lines[-2]
    assert lines[-1].startswith("delegating/seed0: RL, 0%")


def test_a_terminal_is_drawn_on_again(run: RunConfig) -> None:
    drawn = io.StringIO()
    with Display(run, Console(file=drawn, force_terminal=True, width=100)) as display:
        for share in (0.1, 0.2):
            marks(run, (100.0, share, 0))
            display.update()
    assert "10%" in drawn.getvalue()
    assert "20%" in drawn.getvalue().split("10%")[1]


# The command


def test_watch_prints_once_or_until_it_is_interrupted(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    marks(run, (100.0, 0.5, 0))
    shown = f"{run.folder}: no process works here\ndelegating/seed0: RL, 50%, step 3 of 10\n"
    once = CliRunner().invoke(cli.app, ["watch", str(run.folder), "--once"])
    assert (once.exit_code, once.output) == (0, shown)
    looks = iter(range(3))

    def pause(seconds: float) -> None:
        if next(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch, "time", type("Clock", (), {"sleep": staticmethod(pause)}))
    until = CliRunner().invoke(cli.app, ["watch", str(run.folder)])
    assert (until.exit_code, until.output) == (0, shown), "what is no news is not said again"


def test_nothing_in_the_folder_is_touched(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    marks(run, (100.0, 0.5, 0))
    (job_folder(run) / "metrics.jsonl").write_text(rows(step(0)) + "{", encoding="utf-8")
    before = {path: path.stat() for path in run.folder.rglob("*") if path.is_file()}
    with lock_folder(run.folder):  # as `train` holds it
        (run.folder / LOCK).touch()
        assert CliRunner().invoke(cli.app, ["watch", str(run.folder), "--once"]).exit_code == 0
    after = {path: path.stat() for path in run.folder.rglob("*") if path.is_file() and path.name != LOCK}
    assert {path: (found.st_size, found.st_mtime_ns) for path, found in after.items()} == {
        path: (found.st_size, found.st_mtime_ns) for path, found in before.items()
    }


def test_mistakes_are_named(run: RunConfig, tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.yaml").write_text(STUDY, encoding="utf-8")

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(cli.app, ["watch", *arguments])
        assert isinstance(result.exception, cli.ConfigError)
        return str(result.exception)

    assert "holds no config.yaml of a run" in said(str(tmp_path / "nothing"))
    assert "holds a study, which has no jobs" in said(str(study))
    assert "--port 80 has no effect without --serve" in said(str(run.folder), "--port", "80")
    assert "give one of them" in said(str(run.folder), "--once", "--serve")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"--port {port} of 127.0.0.1 cannot be opened" in said(str(run.folder), "--serve", "--port", port)
    for port in ("70000", "-1"):
        assert f"--port {port} of 127.0.0.1 cannot be opened" in said(str(run.folder), "--serve", "--port", port)


STUDY = """
name: s
budgets: [40]
strategies: {delegate: {}}
policy: {name: "study_players:Scripted"}
tasks: {choice: {name: "trivial:Choice"}}
eval_sets: [{family: choice, size: any}]
"""


# The page


def no_renderers(file: Path) -> list[Renderer]:
    return []


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Reports in place of the real ones, which take seconds: each page holds how many there have been."""
    made: list[int] = []

    def make(sources: Sequence[Source], name: str, renderers_of: object) -> ReportPage:
        made.append(len(made) + 1)
        drawn = f"<svg>{made[-1]}</svg>"
        figure = ReportFiles(["report_files/learning.svg"], lambda paths: paths[0].write_text(drawn, encoding="utf-8"))
        return ReportPage(replace(make_page("Report", []), body=f"<p>report {made[-1]}</p>"), [figure])

    monkeypatch.setattr(serve, "make_report_page", make)
    monkeypatch.setattr(serve, "MIN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(serve, "_PAUSE_FACTOR", 0)
    return made


class Browser:
    """Asks a server on this machine as a browser would, or as one would not."""

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        assert url.port is not None
        self.port = url.port
        self.token = url.path.strip("/")

    def __call__(
        self, path: str, method: str = "GET", hosts: Sequence[str] | None = None, *, site: str = "none", root: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, (root or f"/{self.token}") + path, skip_host=True)
        connection.putheader("Sec-Fetch-Site", site)
        for host in (f"127.0.0.1:{self.port}",) if hosts is None else hosts:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, dict(answer.headers), answer.read()
        connection.close()
        return found

    def report(self) -> str:
        """Return the number of the report on the page, after the report that a request begins has been made."""
        found = re.search(r"<p>report (\d+)</p>", self.settled("/"))
        return found[1] if found else "none"

    def settled(self, path: str) -> str:
        """Ask for a path once no report is due any more."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self("/progress.json")
            if json.loads(self("/progress.json")[2])["writing"] is None:
                return self(path)[2].decode()
            time.sleep(0.01)
        raise TimeoutError("a report has been in the making for 60 s")


@pytest.fixture
def browser(run: RunConfig, reports: list[int]) -> Iterator[Browser]:
    (job_folder(run) / "metrics.jsonl").write_text(rows(step(0)), encoding="utf-8")
    with serve_report(run.folder, 0, no_renderers) as address:
        yield Browser(address)


@pytest.mark.slow
def test_a_report_is_made_again_when_files_have_changed(run: RunConfig, browser: Browser, reports: list[int]) -> None:
    assert browser.report() == browser.report() == "1"
    (job_folder(run) / "metrics.jsonl").write_text(rows(step(0), step(1)), encoding="utf-8")
    assert browser.report() == browser.report() == "2"
    marks(run, (0.0, 0.0, 0))
    (job_folder(run) / "evaluation").mkdir()
    (job_folder(run) / "evaluation" / "played.jsonl").write_text("{}", encoding="utf-8")
    assert browser.report() == "2", "neither file is in a report"
    (run.folder / "sessions.jsonl").write_text("", encoding="utf-8")
    assert browser.report() == "3"
    status, headers, _ = browser("/")
    assert status == 200
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["Cache-Control"] == "no-store"
    assert reports == [1, 2, 3]


def test_progress_is_there_while_the_report_is_made_and_figures_are_drawn_once(
    run: RunConfig, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    drawn: list[Path] = []

    def draw(paths: Sequence[Path]) -> None:
        drawn.extend(paths)
        paths[0].write_text("<svg/>", encoding="utf-8")

    def make_slowly(*given: object) -> ReportPage:
        assert go.wait(300)
        return ReportPage(make_page("Report", []), [ReportFiles(["report_files/learning.svg"], draw)])

    monkeypatch.setattr(serve, "make_report_page", make_slowly)
    marks(run, (0.0, 0.25, 0))
    page = browser("/")[2].decode()
    assert "<main" in page
    now = json.loads(browser("/progress.json")[2])
    assert now["jobs"] == [list(format_cells(only_job(run)))]
    assert (now["headline"], now["heads"]) == (f"{run.folder}: no process works here", list(HEADS))
    assert (now["version"], now["error"]) == (0, "")
    assert now["writing"] is not None
    assert browser("/report_files/learning.svg")[0] == 404
    go.set()
    browser.settled("/")
    assert json.loads(browser("/progress.json")[2])["version"] == 1
    assert drawn == [], "nobody has asked for a figure"
    assert browser("/report_files/learning.svg") == browser("/report_files/learning.svg")
    assert len(drawn) == 1


# A report takes 10 seconds.
@pytest.mark.slow
@pytest.mark.parametrize(("min_pause", "factor", "pause"), [(60.0, 5, 60.0), (20.0, 5, 50.0), (20.0, 7, 70.0)])
def test_between_reports_passes_the_least_pause_and_a_multiple_of_their_time(
    run: RunConfig, browser: Browser, monkeypatch: pytest.MonkeyPatch, min_pause: float, factor: int, pause: float
) -> None:
    class Clock:
        seconds = 1000.0

        def monotonic(self) -> float:
            return self.seconds

    clock = Clock()
    make = serve.make_report_page

    def make_in_ten_seconds(*given: Any) -> ReportPage:
        clock.seconds += 10
        return make(*given)

    monkeypatch.setattr(serve, "time", clock)
    monkeypatch.setattr(serve, "make_report_page", make_in_ten_seconds)
    monkeypatch.setattr(serve, "MIN_PAUSE_SECONDS", min_pause)
    monkeypatch.setattr(serve, "_PAUSE_FACTOR", factor)
    assert browser.report() == "1"
    (job_folder(run) / "metrics.jsonl").write_text(rows(step(0), step(1)), encoding="utf-8")
    clock.seconds += pause - 0.1
    assert browser.report() == "1"
    clock.seconds += 0.1
    assert browser.report() == "2"


def test_only_the_files_of_the_report_are_served_and_only_read(run: RunConfig, browser: Browser) -> None:
    browser.settled("/")
    status, headers, body = browser("/report_files/learning.svg?v=1")
    assert (status, body, headers["Content-Type"]) == (200, b"<svg>1</svg>", "image/svg+xml")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    for path in ("/secret.csv", "/report_files/", "/../config.yaml", "/%2e%2e/x", "//etc/passwd", "/report_files/../x"):
        assert browser(path)[0] == 404, path
    assert browser("/", "HEAD")[::2] == (200, b"")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert browser("/", method)[0] == 501


def test_another_sites_name_for_this_machine_is_refused(browser: Browser, reports: list[int]) -> None:
    port = browser.port
    for hosts in ([], ["evil.example"], [f"evil.example:{port}"], ["127.0.0.1"], [f"127.0.0.1:{port + 1}"],
                  [f"127.0.0.1:{port}", "evil.example"]):  # fmt: skip
        status, _, body = browser("/", hosts=hosts)
        assert (status, body) == (421, b"this server is only for 127.0.0.1\n"), hosts
    assert reports == [], "nothing was made for it"
    assert browser("/", hosts=[f"localhost:{port}"])[0] == 200


def test_a_file_that_cannot_be_drawn_is_one_line_for_the_browser(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(paths: Sequence[Path]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def make(*given: object) -> ReportPage:
        return ReportPage(make_page("Report", []), [ReportFiles(["report_files/learning.svg"], fail)])

    def time_out(*given: object) -> None:
        raise TimeoutError("the browser does not read")

    monkeypatch.setattr(serve, "make_report_page", make)
    browser.settled("/")
    status, _, body = browser("/report_files/learning.svg")
    assert (status, body.decode()) == (
        500, "report_files/learning.svg could not be drawn: [Errno 28] No space left on device\n"
    )  # fmt: skip
    assert browser("", root="http://[")[0] == 400
    with socket.create_connection(("127.0.0.1", browser.port)) as connection:
        monkeypatch.setattr(serve._Handler, "_send", time_out)
        connection.sendall(f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{browser.port}\r\n\r\n".encode())
        assert connection.recv(1) == b"", "the server has ended the connection"
    assert capsys.readouterr().err == ""


def test_only_the_printed_address_is_answered(browser: Browser, reports: list[int]) -> None:
    assert len(browser.token) >= 20
    for root in ("/", f"/{browser.token}", "//", "/wrong/", f"/{browser.token[:-1]}/", f"/x/{browser.token}/", "/%ff/"):
        for path in ("", "progress.json"):
            if root + path:
                status, _, body = browser(path, root=root)
                assert (status, body) == (404, b"there is no such page; open the printed address\n"), root + path
    assert browser("/", site="cross-site")[0] == 403
    assert reports == [], "nothing was made for them"
    assert browser("/", site="same-origin")[0] == 200


def test_it_listens_on_this_machine_alone(browser: Browser) -> None:
    listening = [row.split()[1] for row in Path("/proc/net/tcp").read_text().splitlines() if row.split()[3] == "0A"]
    assert [found for found in listening if found.endswith(f":{browser.port:04X}")] == [f"0100007F:{browser.port:04X}"]


def test_what_cannot_be_reported_is_said_and_the_last_report_stays(run: RunConfig, browser: Browser) -> None:
    stored = run.folder / "config.yaml"
    text = stored.read_text(encoding="utf-8")
    stored.write_text("<script>: 1", encoding="utf-8")
    page = browser.settled("/")
    assert "script-src 'sha256-" in page
    assert "\\u003cscript\\u003e" in page
    assert "<script>:" not in page
    assert "<script>" in json.loads(browser("/progress.json")[2])["error"]
    stored.write_text(text, encoding="utf-8")
    assert browser.report() == "1"
    stored.write_text("name: [", encoding="utf-8")
    assert browser.report() == "1"
    assert json.loads(browser("/progress.json")[2])["error"]


def test_a_thread_of_the_server_trusts_what_the_command_trusts(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*_: object) -> ReportPage:
        SOURCES.load("trivial:Choice")
        return ReportPage(make_page("", []), [])

    monkeypatch.setattr(serve, "make_report_page", make)
    (job_folder(run) / "metrics.jsonl").write_text(rows(step(0)), encoding="utf-8")
    with only_trusted([]):
        report = LiveReport(run.folder, tmp_path, no_renderers)
    thread = threading.Thread(target=report.page)
    thread.start()
    thread.join()
    while report.progress()["writing"] is not None:
        time.sleep(0.01)
    assert "add --trust trivial" in report.progress()["error"]


def test_the_real_page_of_a_run_that_still_trains(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MIN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(serve, "_PAUSE_FACTOR", 0)
    metrics = job_folder(run) / "metrics.jsonl"
    metrics.write_text(rows(step(0, cpu_seconds=1.0)) + "{", encoding="utf-8")
    with serve_report(run.folder, 0, no_renderers) as address:
        browser = Browser(address)
        first = browser.settled("/")
        policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', first)
        assert policy is not None
        assert re.fullmatch(
            r"default-src 'none'; style-src 'sha256-\S+'; script-src 'sha256-\S+'; img-src data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'", policy[1],
        )  # fmt: skip
        assert browser("/report_files/learning.csv")[0] == 200
        metrics.write_text(rows(step(0, cpu_seconds=1.0), step(1, cpu_seconds=2.0)), encoding="utf-8")
        browser.settled("/")
        assert json.loads(browser("/progress.json")[2])["version"] == 2
    with pytest.raises(ConnectionRefusedError):
        browser("/")
