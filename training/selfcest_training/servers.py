"""What servers did while a folder was written: `servers.jsonl`, to which every batch or step adds a line a server."""

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
    """Add counts to a folder's file; none leave it as it is."""
    for server, of_server in counts.items():
        line = {"base_url": server.base_url, "model": server.model, **to_stored(of_server)}
        append_json(folder / SERVERS, line)


def read_counts(folders: Iterable[Path]) -> CountsByServer:
    """The sums over folders; those without a file have asked no server.

    Raises:
        RecordError: a line says no counts; the message names it.
    """
    sums: dict[ServerModel, ServerCounts] = {}
    for file in (folder / SERVERS for folder in folders):
        for number, line in read_json_lines(file) if file.is_file() else ():
            place = f"{file}, line {number}"
            if not isinstance(line, dict) or not all(isinstance(line.get(key), str) for key in ("base_url", "model")):
                raise RecordError(f"{place} has no base_url and model; delete that line")
            server = ServerModel(line.pop("base_url"), line.pop("model"))
            counts = structure(by_field(ServerCounts, line), ServerCounts, place=place, error=RecordError)
            sums[server] = sums.get(server, ServerCounts()) + counts
    return sums
