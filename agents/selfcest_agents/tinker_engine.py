"""An engine over a sampling client of Tinker: its service, or a server with the same interface, such as SkyRL's.

Every request has the grant of its turn as `max_tokens`, so the budget of the game is hard. The SDK repeats requests
after a failed connection. docs/export.md shows an update from episodes that this engine has played.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from selfcest_agents.engine import Completion, FailedRequest, TokenRequest, check_requests
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError, install_hint
from selfcest_env.types import FinishReason

try:
    import tinker
except ImportError as error:
    raise ConfigError(f"{error}; run: {install_hint('tinker')}") from error

_SEED_BITS = 31  # SkyRL's server reads a seed as a signed number of 32 bits


class TinkerEngine:
    """An `Engine` over a `tinker.SamplingClient`, whose weights are those of the client.

    Args:
        client: sampling client of a base model, or of the saved weights of a training client.
        stop_ids: ids that end a sequence, and are part of the completion.
        policy_version: version of the client's weights.
    """

    def __init__(self, client: tinker.SamplingClient, *, stop_ids: Collection[int], policy_version: int = 0) -> None:
        self.policy_version = policy_version
        self._client = client
        self._stop_ids = sorted(stop_ids)
        self._pending: dict[str, tuple[TokenRequest, Future[Any]]] = {}

    @property
    def pending(self) -> int:
        return len(self._pending)

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Send all requests, or none and raise `PolicyError` if one of them could never be served."""
        check_requests(requests, self._pending)
        for request in requests:
            params = tinker.SamplingParams(
                max_tokens=request.max_new_tokens,
                seed=request.seed % 2**_SEED_BITS,
                stop=self._stop_ids,
                temperature=request.temperature,
                top_k=-1,
                top_p=1.0,
            )
            prompt = tinker.ModelInput.from_ints(list(request.context_ids))
            sampling = self._client.sample(prompt=prompt, num_samples=1, sampling_params=params)
            # The SDK below 0.26, which SkyRL 0.4.0 needs, returns the future itself.
            future = sampling if isinstance(sampling, Future) else sampling.future()
            self._pending[request.key] = request, future

    def poll(self) -> list[Completion | FailedRequest]:
        """Wait until a request ends; return the results of all that have ended, `[]` if none is pending."""
        wait([future for _, future in self._pending.values()], return_when=FIRST_COMPLETED)
        results: list[Completion | FailedRequest] = []
        for key, (request, future) in list(self._pending.items()):
            if not future.done():
                continue
            del self._pending[key]
            try:
                (sequence,) = future.result().sequences
            except Exception as error:  # the SDK has no common base class of its errors
                cause = " ".join(f"{type(error).__name__}: {error}".split())[:500]
                results.append(FailedRequest(key, InfrastructureError(f"{key} got no answer from Tinker: {cause}")))
            else:
                results.append(self._read_sequence(request, sequence))
        return results

    def cancel(self, keys: Iterable[str]) -> None:
        """Drop these requests; keys that are not pending are ignored."""
        for key in keys:
            if key in self._pending:
                self._pending.pop(key)[1].cancel()

    def _read_sequence(self, request: TokenRequest, sequence: tinker.SampledSequence) -> Completion:
        """Convert a sampled sequence to a completion.

        Raises:
            PolicyError: the server has no log-probs, or ignores `max_tokens` or `stop`.
        """
        ids = tuple(sequence.tokens)
        if sequence.logprobs is None:
            raise PolicyError(f"the answer to {request.key!r} has no log-probs; use a server that returns them")
        if not 1 <= len(ids) <= request.max_new_tokens or not set(self._stop_ids).isdisjoint(ids[:-1]):
            raise PolicyError(
                f"the answer to {request.key!r} has {len(ids)} ids for max_tokens = {request.max_new_tokens}, or "
                "continues after a stop id; use a server that obeys max_tokens and stop"
            )
        stopped = ids[-1] in self._stop_ids
        # A greedy choice has probability 1, but servers report its log-prob at temperature 1.
        logprobs = (0.0,) * len(ids) if request.temperature == 0 else tuple(sequence.logprobs)
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Completion(request.key, ids, logprobs, reason, self.policy_version)
