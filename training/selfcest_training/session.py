"""Who wrote a folder of results: every start of a command, with its versions and its machine, and when it ended."""

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
def session(folder: Path, cluster: object = None) -> Iterator[None]:
    """Add a line to the folder's `sessions.jsonl` when the block begins, and one when it ends, however it does.

    `cluster`: the config's block, which is in the line and nowhere else.

    The last line of a session that was killed is missing: how long it took is not known.
    """
    file, start = folder / SESSIONS, time.monotonic()
    on = {} if cluster is None else {"cluster": to_builtins(cluster)}
    append_json(file, {"started": _now(), "command": _command(), "versions": _versions(), **_machine(), **on})
    try:
        yield
    finally:
        with suppress(OSError):  # a full disk must not hide what it has caused
            append_json(file, {"ended": _now(), "seconds": round(time.monotonic() - start, 3)})


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """Sessions of a folder in order, each with `ended` and `seconds` if it ended; none where there is no file.

    Raises:
        RecordError: a line is no JSON object.
    """
    file, found = folder / SESSIONS, list[dict[str, Any]]()
    for number, line in read_json_lines(file) if file.is_file() else ():
        if not isinstance(line, dict):
            raise RecordError(f"{file}, line {number}: {line!r:.80} is no session; delete that line")
        if "started" in line:
            found.append(dict(line))
        elif found:
            found[-1].update(line)
    return found


def gpu_seconds(sessions: list[dict[str, Any]]) -> float | None:
    """How long GPUs were held: seconds of the sessions times the GPUs seen; `None` if a session's length is unknown."""
    held = [(len(one.get("gpus", ())), one.get("seconds")) for one in sessions]
    if any(gpus and seconds is None for gpus, seconds in held):
        return None
    return float(sum(gpus * (seconds or 0.0) for gpus, seconds in held))


def append_json(file: Path, values: Mapping[str, Any]) -> None:
    """Add a line to a file of JSON lines. Half of a line, which a kill has left, is removed; a link is refused."""
    with open_for_append(file) as lines:
        lines.seek(0)
        lines.truncate(lines.read().rfind(b"\n") + 1)  # after it is a line that a kill has cut
        lines.write(f"{json.dumps(values)}\n".encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _command() -> str:
    return shlex.join(["selfcest", *sys.argv[1:]])


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _machine() -> dict[str, Any]:
    import torch  # slow to import

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"system": platform.platform(), "cores": os.cpu_count(), "gpus": gpus}
