"""Seeds of named random streams. A stream depends only on its name, not on the order in which streams are used."""

from __future__ import annotations

import hashlib
from operator import index
from typing import SupportsIndex

from selfcest_env.types import AgentId


def stream_seed(*key: str | SupportsIndex | AgentId) -> int:
    """Return the seed, in [0, 2**63), of the stream with this name. It is the same on every machine."""
    name = ""
    for part in key:
        if not isinstance(part, str | int | AgentId):
            part = index(part)  # NumPy's integers name the streams of Python's
        # The type tag and the length keep ("a", 1), ("a1",) and ("a", "1") apart.
        # "AgentId" is a literal, so that renaming the class changes no seed.
        kind = "AgentId" if isinstance(part, AgentId) else type(part).__name__
        text = f"{kind}:{part}"
        name += f"{len(text)}:{text}"
    digest = hashlib.blake2b(name.encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 1


def turn_seed(seed: int, agent_id: AgentId, turn: int, kind: str = "factual", sample: int = 0) -> int:
    """Return the seed for sampling one turn. Replays use another `kind`, so they share no factual stream."""
    return stream_seed("turn", seed, agent_id, turn, kind, sample)
