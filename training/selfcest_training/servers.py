"""Stores counts of server faults in `servers.jsonl` of a folder. Every batch or step adds one line per server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from selfcest_agents.server_counts import CountsByServer, ServerCounts, ServerModel
from selfcest_env.errors import RecordError
from selfcest_env.record import read_json_lines
from selfcest_env.stored import by_field, to_stored
from selfcest_env.structure import structure
from selfcest_training.session import append_json

SERVERS = "servers.jsonl"


def store_counts(folder: Path, counts: CountsByServer) -> None:
    """Append counts to a folder's file, one line per server."""
    for server, server_counts in counts.items():
        line = {"base_url": server.base_url, "model": server.model, **to_stored(server_counts)}
        append_json(folder / SERVERS, line)


def read_counts(folders: Iterable[Path]) -> CountsByServer:
    """Sum the counts of folders. A folder without a file used no server.

    Raises:
        RecordError: a line holds no counts. The message names the line.
    """
    sums: dict[ServerModel, ServerCounts] = {}
    for folder in folders:
        file = folder / SERVERS
        if not file.is_file():
            continue
        for number, line in read_json_lines(file):
            place = f"{file}, line {number}"
            if not isinstance(line, dict) or not all(isinstance(line.get(key), str) for key in ("base_url", "model")):
                raise RecordError(f"{place} has no base_url and model; delete that line")
            server = ServerModel(line.pop("base_url"), line.pop("model"))
            counts = structure(by_field(ServerCounts, line), ServerCounts, place=place, error=RecordError)
            sums[server] = sums.get(server, ServerCounts()) + counts
    return sums
