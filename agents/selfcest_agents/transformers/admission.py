"""Plan the prefill of waiting requests, so that a prefix that several of them share is computed once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from selfcest_agents.engine import TokenRequest
from selfcest_agents.transformers.prefix_store import PrefixStore

CachedPrefix = tuple[int, torch.Tensor | None]
"""The number of positions of a context that are cached, and the entry of the store that holds them."""


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Requests that are prefilled now, and requests that are deferred because they share a prefix with these.

    Attributes:
        requests: requests to prefill. No two of them share a prefix that could be in the store but is not.
        cached_prefixes: cached prefix of each request in `requests`, by key.
        shared_keys: keys of the requests whose context must be stored for a deferred request.
        deferred: requests that will copy a prefix of these.
    """

    requests: Sequence[TokenRequest]
    cached_prefixes: Mapping[str, CachedPrefix]
    shared_keys: frozenset[str] = frozenset()
    deferred: list[TokenRequest] = field(default_factory=list)

    def batches(self, max_tokens: int) -> Iterator[list[TokenRequest]]:
        """Yield batches of at most `max_tokens` ids with padding, or of one longer request.

        Requests are sorted by length, so that a batch has little padding.
        """
        batch: list[TokenRequest] = []
        for request in sorted(self.requests, key=self._count_new_ids):
            if batch and (len(batch) + 1) * self._count_new_ids(request) > max_tokens:
                yield batch
                batch = []
            batch.append(request)
        if batch:
            yield batch

    def _count_new_ids(self, request: TokenRequest) -> int:
        return len(request.context_ids) - self.cached_prefixes[request.key][0]


def plan_prefill(requests: Sequence[TokenRequest], prefixes: PrefixStore) -> PrefillPlan:
    """Choose the requests to prefill now. Of several requests with the same new prefix this is the first."""
    if not prefixes.enabled:
        return PrefillPlan(requests, {request.key: (0, None) for request in requests})
    complete: list[TokenRequest] = []
    leader_by_prefix: dict[int, TokenRequest] = {}  # by the hash of the shortest prefix that is not stored
    shared_keys: set[str] = set()
    deferred: list[TokenRequest] = []
    for request in requests:
        # The last id of a context is not prefilled, since it is the input of the first decoding step.
        prefix_hash = prefixes.find_first_missing(request.context_ids[:-1])
        if prefix_hash is None:
            complete.append(request)
        elif prefix_hash in leader_by_prefix:
            deferred.append(request)
            shared_keys.add(leader_by_prefix[prefix_hash].key)
        else:
            leader_by_prefix[prefix_hash] = request
    prefilled = [*complete, *leader_by_prefix.values()]
    cached_prefixes = {request.key: prefixes.find(request.context_ids[:-1]) for request in prefilled}
    return PrefillPlan(prefilled, cached_prefixes, frozenset(shared_keys), deferred)
