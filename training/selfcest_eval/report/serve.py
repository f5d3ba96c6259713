"""The progress and the report of a run as a live page, served to this machine only."""

from __future__ import annotations

import secrets
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from itertools import chain
from pathlib import Path
from socketserver import ThreadingTCPServer
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from selfcest_env.errors import ConfigError, SelfcestError
from selfcest_eval.html.page import dump_json
from selfcest_eval.html.playing import Renderer
from selfcest_eval.report.page import ReportPage, make_page, make_report_page
from selfcest_eval.report.sources import load_folder_config, read_sources
from selfcest_eval.report.verdict import report_on
from selfcest_training.config import RunConfig
from selfcest_training.run.display import HEADS, format_cells, format_headline
from selfcest_training.run.progress import read_run

HOST = "127.0.0.1"
PAGE = "report.html"
PROGRESS = "progress.json"
# Between two reports passes at least this time, and this multiple of the time that one takes, so that an open page
# takes little of a core from the run.
MIN_PAUSE_SECONDS = 20.0
_PAUSE_FACTOR = 5
_POLL_SECONDS = 0.1  # the server notices after this time that it must end
_SOURCE_FILES = ("config.yaml", "metrics.jsonl", "episodes.jsonl", "results.jsonl", "sessions.jsonl")
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".csv": "text/csv; charset=utf-8",
}
# A policy in the page itself restricts what it loads, but only a header can forbid frames.
_POLICIES = {".html": "frame-ancestors 'none'"}
_STRICT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


class LiveReport:
    """The progress and the report of one run's folder, for a page that shows both.

    The page and the progress are always returned at once. A request for one of them begins a new report in the
    background if files of the run have changed. Figures and the page of trees are drawn when they are asked for.

    Args:
        run: folder of the run, which is only read.
        out: folder for the files of the report.
        renderers_of: as in `make_report_page`.
    """

    def __init__(self, run: Path, out: Path, renderers_of: Callable[[Path], Sequence[Renderer]]) -> None:
        self._run = run
        self._out = out
        self._renderers_of = renderers_of
        self._lock = threading.Lock()  # of all that follows
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._error = ""
        self._report: ReportPage | None = None
        self._version = 0  # number of reports so far
        self._begun_at: float | None = None  # of the report that is being written
        self._earliest_begin = 0.0  # of the next report
        self._file_lock = threading.Lock()  # held while a file is drawn
        # It holds the trusted plug-ins, and the threads of a server start without them.
        self._context = copy_context()

    def page(self) -> bytes:
        """Return the page with the progress now and the newest report that did not fail, if there is one yet."""
        live = self.progress()
        with self._lock:
            page = make_page(f"Run: {self._run.name}", []) if self._report is None else self._report.page
        page = replace(page, data={**page.data, "live": live}, scripts=("live.js", *page.scripts), connects=True)
        return page.render().encode(errors="backslashreplace")

    def progress(self) -> dict[str, Any]:
        """Return the state of the jobs and of the report as JSON values, and begin a report if one is due."""
        jobs: list[Sequence[str]] = []
        try:
            config = load_folder_config(self._run)
            if not isinstance(config, RunConfig):
                raise ConfigError(f"{self._run} holds a study, which has no jobs to watch")
            status = read_run(config)
            headline = format_headline(status)
            jobs = [format_cells(job) for job in status.jobs]
        except (SelfcestError, OSError) as error:
            headline = str(error)
        self._begin()
        with self._lock:
            seconds = None if self._begun_at is None else time.monotonic() - self._begun_at
            return {
                "headline": headline,
                "heads": HEADS,
                "jobs": jobs,
                "version": self._version,
                "writing": None if seconds is None else round(seconds),
                "error": self._error,
            }

    def file(self, name: str) -> bytes | None:
        """Return a file of the newest report by its path from the page, or `None` if there is no such file."""
        with self._file_lock:
            with self._lock:
                report = self._report
                folder = self._out / str(self._version)
            files = next((files for files in report.files if name in files.names), None) if report else None
            if files is None:
                return None
            if not (folder / name).exists():
                for path in self._out.iterdir():
                    if path != folder:  # of an earlier report
                        shutil.rmtree(path)
                paths = [folder / other for other in files.names]
                for path in paths:
                    path.parent.mkdir(parents=True, exist_ok=True)
                self._context.copy().run(files.write, paths)
            return (folder / name).read_bytes()

    def _begin(self) -> None:
        """Begin a report in the background if files have changed, none is being written, and the last is old enough."""
        stamps = self._read_stamps()
        with self._lock:
            if stamps == self._stamps or self._begun_at is not None or time.monotonic() < self._earliest_begin:
                return
            self._stamps = stamps
            self._begun_at = time.monotonic()
        threading.Thread(target=self._context.copy().run, args=(self._write,), daemon=True).start()

    def _write(self) -> None:
        start = time.monotonic()
        report = None
        error = ""
        try:
            with warnings.catch_warnings():
                # The run may be writing the last line of a file, which is cut then.
                warnings.simplefilter("ignore")
                reports = [report_on(source) for source in read_sources([self._run])]
                report = make_report_page(reports, PAGE, self._renderers_of)
        except (SelfcestError, OSError) as caught:
            error = str(caught)
        except Exception as defect:
            error = f"{type(defect).__name__}: {defect}"
            raise  # the terminal shows where
        finally:
            now = time.monotonic()
            with self._lock:
                self._error = error
                if report is not None:
                    self._report = report
                    self._version += 1
                self._begun_at = None
                self._earliest_begin = now + max(MIN_PAUSE_SECONDS, _PAUSE_FACTOR * (now - start))

    def _read_stamps(self) -> dict[Path, tuple[int, int]]:
        """Return size and time of each file that the report reads."""
        stamps = {}
        for path in chain.from_iterable(map(self._run.rglob, _SOURCE_FILES)):
            # The run may replace a file at any moment.
            with suppress(OSError):
                stat = path.stat()
                stamps[path] = (stat.st_size, stat.st_mtime_ns)
        return stamps


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, report: LiveReport) -> None:
        super().__init__((HOST, port), _Handler)
        self.report = report
        # Other users of this machine can connect too, but only the address that is printed has this part.
        self.token = secrets.token_urlsafe(16)
        self.port = self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A browser may leave before its answer comes, or stop reading it, and the terminal shows the run.
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30
    server_version = "selfcest"
    sys_version = ""

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        # Otherwise another site could read the report, by a domain name that it points to this address.
        if len(hosts) != 1 or hosts[0] not in _hosts(self.server.port):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"this server is only for 127.0.0.1\n")
            return
        if self.headers.get("Sec-Fetch-Site") == "cross-site":
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"open the printed address, not a link of another site\n")
            return
        try:
            _, token, *parts = unquote(urlsplit(self.path).path).split("/", 2)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"the request has no valid address\n")
            return
        path = "".join(parts) or PAGE
        if not parts or not secrets.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page; open the printed address\n")
            return
        try:
            body = self._read_body(path)
        except (SelfcestError, OSError) as error:
            line = " ".join(f"{path} could not be drawn: {error}".split())
            self._send(
                HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", f"{line}\n".encode(errors="replace")
            )
            return
        if body is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"the report has no such file\n")
            return
        suffix = Path(path).suffix
        policy = {"Content-Security-Policy": _POLICIES.get(suffix, _STRICT_POLICY)}
        self._send(HTTPStatus.OK, _CONTENT_TYPES[suffix], body, policy)

    do_HEAD = do_GET

    def _read_body(self, path: str) -> bytes | None:
        report = self.server.report
        if path == PAGE:
            return report.page()
        if path == PROGRESS:
            return dump_json(report.progress()).encode()
        return report.file(path)

    def _send(
        self, status: HTTPStatus, content_type: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(status)
        fixed = {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal shows the run."""


def _hosts(port: int) -> set[str]:
    hosts = {f"{host}:{port}" for host in (HOST, "localhost")}
    return hosts | {HOST, "localhost"} if port == 80 else hosts


@contextmanager
def serve_report(run: Path, port: int, renderers_of: Callable[[Path], Sequence[Renderer]]) -> Iterator[str]:
    """Serve the progress and the report of a run's folder on 127.0.0.1 until the block ends. Yields its address.

    The address has a random part, and requests without it are refused.

    Args:
        run: the folder.
        port: of the server; 0: any free port.
        renderers_of: as in `make_report_page`.

    Raises:
        ConfigError: the port is in use, or may not be used.
    """
    with TemporaryDirectory(prefix="selfcest-", ignore_cleanup_errors=True) as out:
        try:
            server = _Server(port, LiveReport(run, Path(out), renderers_of))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--port {port} of {HOST} cannot be opened ({reason}); give another port, or leave --port out"
            ) from error
        with server:
            threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True).start()
            try:
                yield f"http://{HOST}:{server.port}/{server.token}/"
            finally:
                server.shutdown()
