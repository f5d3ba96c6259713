"""The report of a run as a page that reloads itself, served to this machine only while the run continues."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from html import escape
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
from selfcest_eval.html.playing import Renderer
from selfcest_eval.report.page import write_report_page
from selfcest_eval.report.sources import read_sources
from selfcest_eval.report.verdict import report_on

HOST = "127.0.0.1"
MIN_RELOAD_SECONDS = 30.0
# Between two reports passes this multiple of the time that one takes, so that an open page takes no core from the run.
_PAUSE_FACTOR = 10
_POLL_SECONDS = 0.1  # the server notices after this time that it must end
_SOURCE_FILES = ("config.yaml", "metrics.jsonl", "episodes.jsonl", "results.jsonl", "sessions.jsonl")
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".csv": "text/csv; charset=utf-8",
}
# A policy in the page itself restricts what it loads, but only a header can forbid frames.
_POLICIES = {".html": "frame-ancestors 'none'"}
_STRICT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


class LiveReport:
    """The report of one run's folder. A request writes it again if files of the run have changed.

    Args:
        run: folder of the run, which is only read.
        out: folder of the report's files.
        renderers_of: as in `write_report_page`.

    Attributes:
        seconds: duration of the last report.
        error: message of the last report, if it failed.
    """

    def __init__(self, run: Path, out: Path, renderers_of: Callable[[Path], Sequence[Renderer]]) -> None:
        self.seconds = 0.0
        self.error = ""
        self._run = run
        self._page = out / "report.html"
        self._renderers_of = renderers_of
        self._lock = threading.Lock()
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._files: dict[str, Path] = {}
        # It holds the trusted plug-ins, and the threads of a server start without them.
        self._context = copy_context()

    def page(self) -> bytes | None:
        """Return the page of the newest report that did not fail, or `None` if there is none yet."""
        with self._lock:
            stamps = self._read_stamps()
            if stamps != self._stamps:
                self._context.run(self._write)
                self._stamps = stamps
            return self._page.read_bytes() if self._files else None

    def file(self, name: str) -> bytes | None:
        """Return a file of the report by its path from the page, or `None` if there is no such file."""
        with self._lock:
            path = self._files.get(name)
            return None if path is None else path.read_bytes()

    def _write(self) -> None:
        start = time.monotonic()
        try:
            with warnings.catch_warnings():
                # The run may be writing the last line of a file, which is cut then.
                warnings.simplefilter("ignore")
                reports = [report_on(source) for source in read_sources([self._run])]
                written = write_report_page(reports, self._page, self._renderers_of)
        except (SelfcestError, OSError) as error:
            self.error = str(error)
        else:
            self.error = ""
            self._files = {path.relative_to(self._page.parent).as_posix(): path for path in written}
        self.seconds = time.monotonic() - start

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
        self.port = self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A browser may leave before its answer comes, and the terminal shows the run.
        if not isinstance(sys.exception(), ConnectionError):
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
        path = unquote(urlsplit(self.path).path).removeprefix("/") or "report.html"
        report = self.server.report
        headers = {}
        if path == "report.html":
            body: bytes | None = report.page() or _waiting_page(report.error)
            headers["Refresh"] = f"{max(MIN_RELOAD_SECONDS, _PAUSE_FACTOR * report.seconds):.0f}"
        else:
            body = report.file(path)
        if body is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"the report has no such file\n")
            return
        suffix = Path(path).suffix
        headers["Content-Security-Policy"] = _POLICIES.get(suffix, _STRICT_POLICY)
        self._send(HTTPStatus.OK, _CONTENT_TYPES[suffix], body, headers)

    do_HEAD = do_GET

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


def _waiting_page(reason: str) -> bytes:
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    text = f'<!doctype html><html lang="en"><meta charset="utf-8">{policy}<title>No report yet</title><h1>No report yet'
    return f"{text}</h1><p>{escape(reason)}</p></html>\n".encode(errors="backslashreplace")


@contextmanager
def serve_report(run: Path, port: int, renderers_of: Callable[[Path], Sequence[Renderer]]) -> Iterator[str]:
    """Serve the report of a run's folder on 127.0.0.1 until the block ends. Yields its address.

    Args:
        run: the folder.
        port: of the server; 0: any free port.
        renderers_of: as in `write_report_page`.

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
                yield f"http://{HOST}:{server.port}/"
            finally:
                server.shutdown()
