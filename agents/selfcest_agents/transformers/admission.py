"""Which waiting requests an engine prefills together, and which have to wait for what others leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from selfcest_agents.engine import TokenRequest
from selfcest_agents.transformers.prefix_store import PrefixStore

Start = tuple[int, torch.Tensor | None]
"""Positions of a context that need not be computed, and the entry of the store that has them."""


@dataclass(frozen=True, slots=True)
class Wave:
    """Requests that can be prefilled now.

    Attributes:
        requests: no two of them begin with the same block unless the store has it.
        starts: what of their contexts the store has, by key.
        shared: keys of those whose context must be kept for a request that waits.
        later: requests that copy from these.
    """

    requests: Sequence[TokenRequest]
    starts: Mapping[str, Start]
    shared: frozenset[str] = frozenset()
    later: list[TokenRequest] = field(default_factory=list)

    def batches(self, max_tokens: int) -> Iterator[list[TokenRequest]]:
        """Runs of like length, which waste the least padding, of at most `max_tokens` padded ids (or one request)."""
        batch: list[TokenRequest] = []
        for request in sorted(self.requests, key=self._num_new):
            if batch and (len(batch) + 1) * self._num_new(request) > max_tokens:
                yield batch
                batch = []
            batch.append(request)
        if batch:
            yield batch

    def _num_new(self, request: TokenRequest) -> int:
        return len(request.context_ids) - self.starts[request.key][0]


def next_wave(requests: Sequence[TokenRequest], prefixes: PrefixStore) -> Wave:
    """Of requests that begin alike one goes first, and the others wait to copy what they share with it."""
    if not prefixes.enabled:
        return Wave(requests, {request.key: (0, None) for request in requests})
    leaders: dict[int, TokenRequest] = {}
    alone, later, shared = [], [], set()
    for request in requests:
        block = prefixes.first_missing(request.context_ids[:-1])
        if block is None:
            alone.append(request)
        elif block in leaders:
            later.append(request)
            shared.add(leaders[block].key)
        else:
            leaders[block] = request
    now = [*alone, *leaders.values()]
    starts = {request.key: prefixes.find(request.context_ids[:-1]) for request in now}
    return Wave(now, starts, frozenset(shared), later)
