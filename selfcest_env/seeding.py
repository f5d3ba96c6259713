"""Randomness by name. A stream depends on what it is for, never on the order in which streams are used."""

from __future__ import annotations

import hashlib

from selfcest_env.types import AgentId


def stream_seed(*key: str | int | AgentId) -> int:
    """A seed in [0, 2**63) for the stream with this name; equal names give equal seeds on every machine."""
    digest = hashlib.blake2b(digest_size=8)
    for part in key:
        # The type tag and the length keep ("a", 1), ("a1",) and ("a", "1") apart.
        kind = "AgentId" if isinstance(part, AgentId) else type(part).__name__  # not the class's name of today
        text = f"{kind}:{part}"
        digest.update(f"{len(text)}:{text}".encode())
    return int.from_bytes(digest.digest(), "big") >> 1


def turn_seed(seed: int, agent_id: AgentId, turn: int, kind: str = "factual", sample: int = 0) -> int:
    """Seed of one turn's sampling. Counterfactual replays name another `kind`, so they never share the factual one."""
    return stream_seed("turn", seed, agent_id, turn, kind, sample)
