"""The report of a run as a page that renews itself, served to this machine alone while the run goes on."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from selfcest_env.errors import ConfigError, SelfcestError
from selfcest_eval.html.playing import Renderer
from selfcest_eval.report.page import write_report_page
from selfcest_eval.report.sources import read_sources
from selfcest_eval.report.verdict import report_on

HOST = "127.0.0.1"
RENEW_SECONDS = 30.0  # at least; a report that takes long is asked for less often
_PAUSE = 10  # times what a report took until the next, so that a page left open takes no core from the run
_POLL = 0.1  # seconds in which it notices that it is to end
_READ = ("config.yaml", "metrics.jsonl", "episodes.jsonl", "results.jsonl", "sessions.jsonl")
_KINDS = {".html": "text/html; charset=utf-8", ".png": "image/png", ".svg": "image/svg+xml",
          ".csv": "text/csv; charset=utf-8"}  # fmt: skip
# A page says itself what it may load; no policy in a page can say who may frame it.
_POLICIES = {".html": "frame-ancestors 'none'"}
_NOTHING = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


class LiveReport:
    """The files of a report of one run's folder, made anew when one is asked for and the run's files have changed.

    Args:
        run: folder of the run; only read.
        out: folder of the report's files.
        renderers_of: as `write_report_page`.
    """

    def __init__(self, run: Path, out: Path, renderers_of: Callable[[Path], Sequence[Renderer]]) -> None:
        self._run, self._page, self._renderers_of = run, out / "report.html", renderers_of
        self._lock, self._made_of = threading.Lock(), dict[Path, tuple[int, int]]()
        self._files = dict[str, Path]()
        self._context = copy_context()  # which plug-ins are trusted; threads of a server know none
        self.seconds, self.trouble = 0.0, ""

    def page(self) -> bytes | None:
        """The report as it is now; one of before if there is `trouble` with that, `None` if there is none."""
        with self._lock:
            now = self._stamps()
            if now != self._made_of:
                self._context.run(self._make)
                self._made_of = now
            return self._page.read_bytes() if self._files else None

    def file(self, name: str) -> bytes | None:
        """A file beside the page, by its path from there; `None`: the report has none of this name."""
        with self._lock:
            path = self._files.get(name)
            return None if path is None else path.read_bytes()

    def _make(self) -> None:
        start = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of last lines that are being written
                reports = [report_on(source) for source in read_sources([self._run])]
                written = write_report_page(reports, self._page, self._renderers_of)
        except (SelfcestError, OSError) as error:
            self.trouble = str(error)
        else:
            self.trouble = ""
            self._files = {path.relative_to(self._page.parent).as_posix(): path for path in written}
        self.seconds = time.monotonic() - start

    def _stamps(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for name in _READ:
            for path in self._run.rglob(name):
                try:
                    stat = path.stat()
                except OSError:  # it has just been replaced
                    continue
                found[path] = (stat.st_size, stat.st_mtime_ns)
        return found


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, report: LiveReport) -> None:
        super().__init__((HOST, port), _Handler)
        self.report, self.port = report, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has left before its answer came is no trouble, and the terminal shows the run."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30
    server_version, sys_version = "selfcest", ""

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in _names(self.server.port):  # another site's name that leads here
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"this server is for 127.0.0.1 alone\n")
            return
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        report, body = self.server.report, None
        if path in ("", "report.html"):
            body = report.page()
            if body is None:
                body = _waiting(report.trouble)
            renew = {"Refresh": f"{max(RENEW_SECONDS, _PAUSE * report.seconds):.0f}"}
            self._send(HTTPStatus.OK, _KINDS[".html"], body, {"Content-Security-Policy": _POLICIES[".html"], **renew})
            return
        body = report.file(path)
        if body is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"the report has no such file\n")
            return
        suffix = Path(path).suffix
        self._send(HTTPStatus.OK, _KINDS[suffix], body, {"Content-Security-Policy": _POLICIES.get(suffix, _NOTHING)})

    do_HEAD = do_GET

    def _send(self, status: HTTPStatus, kind: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        fixed = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in {**fixed, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The terminal shows the run."""


def _names(port: int) -> set[str]:
    names = {f"{host}:{port}" for host in (HOST, "localhost")}
    return names | ({HOST, "localhost"} if port == 80 else set())


def _waiting(why: str) -> bytes:
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    text = f'<!doctype html><html lang="en"><meta charset="utf-8">{policy}<title>No report yet</title><h1>No report yet'
    return f"{text}</h1><p>{escape(why)}</p></html>\n".encode(errors="backslashreplace")


@contextmanager
def served(run: Path, port: int, renderers_of: Callable[[Path], Sequence[Renderer]]) -> Iterator[str]:
    """Serve the report of a run's folder on 127.0.0.1 until the block ends; gives its address.

    Args:
        run: the folder.
        port: 0: any that is free.
        renderers_of: as `write_report_page`.

    Raises:
        ConfigError: the port is in use, or may not be used.
    """
    with TemporaryDirectory(prefix="selfcest-", ignore_cleanup_errors=True) as out:
        try:
            server = _Server(port, LiveReport(run, Path(out), renderers_of))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"--port {port} of {HOST} cannot be had ({why}); name another, or none") from error
        with server:
            threading.Thread(target=server.serve_forever, args=(_POLL,), daemon=True).start()
            try:
                yield f"http://{HOST}:{server.port}/"
            finally:
                server.shutdown()
