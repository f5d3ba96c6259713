"""Records the commands that wrote a folder of results: their start and end, package versions and machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from selfcest_env.errors import RecordError
from selfcest_env.record import read_json_lines
from selfcest_env.structure import to_builtins
from selfcest_training.files import open_for_append

SESSIONS = "sessions.jsonl"
_PACKAGES = ("selfcest", "torch", "transformers", "numpy")


@contextmanager
def record_session(folder: Path, cluster: object = None) -> Iterator[None]:
    """Append a line to the folder's `sessions.jsonl` when the block begins, and another one when it ends.

    A session that was killed has no second line, so its length is unknown.

    Args:
        folder: the folder of results.
        cluster: the config's cluster block. It is stored here only.
    """
    file = folder / SESSIONS
    start_seconds = time.monotonic()
    line = {"started": _now(), "command": _command(), "versions": _get_versions(), **_describe_machine()}
    if cluster is not None:
        line["cluster"] = to_builtins(cluster)
    append_json(file, line)
    try:
        yield
    finally:
        # An error while writing, as on a full disk, must not hide an exception of the block.
        with suppress(OSError):
            append_json(file, {"ended": _now(), "seconds": round(time.monotonic() - start_seconds, 3)})


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """Read the sessions of a folder in order. Those that ended have `ended` and `seconds`.

    Raises:
        RecordError: a line is no JSON object.
    """
    file = folder / SESSIONS
    sessions: list[dict[str, Any]] = []
    if not file.is_file():
        return sessions
    for number, line in read_json_lines(file):
        if not isinstance(line, dict):
            raise RecordError(f"{file}, line {number}: {line!r:.80} is no session; delete that line")
        if "started" in line:
            sessions.append(dict(line))
        elif sessions:
            sessions[-1].update(line)
    return sessions


def sum_gpu_seconds(sessions: list[dict[str, Any]]) -> float | None:
    """Sum seconds x visible GPUs over sessions; `None` if the length of a session with GPUs is unknown."""
    total = 0.0
    for session in sessions:
        num_gpus = len(session.get("gpus", ()))
        seconds = session.get("seconds")
        if num_gpus and seconds is None:
            return None
        total += num_gpus * (seconds or 0.0)
    return total


def append_json(file: Path, values: Mapping[str, Any]) -> None:
    """Append a line to a file of JSON lines, and remove a cut line at its end. A link is refused."""
    with open_for_append(file) as lines:
        lines.seek(0)
        # Text after the last line break is a line that a killed process has cut.
        lines.truncate(lines.read().rfind(b"\n") + 1)
        lines.write(f"{json.dumps(values)}\n".encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _command() -> str:
    return shlex.join(["selfcest", *sys.argv[1:]])


def _get_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _describe_machine() -> dict[str, Any]:
    # Imported here, because torch is slow to import.
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"system": platform.platform(), "cores": os.cpu_count(), "gpus": gpus}
