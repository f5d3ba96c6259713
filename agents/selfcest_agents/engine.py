"""The token-level interface: what the project asks of anything that turns a context of ids into new ids.

This module imports no torch, so that engines served elsewhere, and tests with fakes, stay light.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from selfcest_env.types import FinishReason


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One generation to make.

    Attributes:
        key: the caller's name for it, unique among the pending requests of an engine, as in `e7/root.2/turn0`.
        context_ids: the whole context, at least one id. Engines sample what follows; they add nothing of their own.
        max_new_tokens: the granted length, at least 1; never exceeded.
        seed: names this request's own random stream, so that neither order nor batch neighbours can change it.
        temperature: the logits are divided by it; 0 is greedy.
    """

    key: str
    context_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Completion:
    """What came of a `TokenRequest`.

    Attributes:
        key: the request's key.
        token_ids: the sampled ids, `1 <= len <= max_new_tokens`. With `STOP` the last one is the stop id.
        logprobs: aligned with `token_ids`: log-probability under the distribution sampled from, temperature included.
            A greedy choice has no alternatives, so its log-probability is 0.0.
        finish_reason: `STOP` after a stop id, even when it was the last one granted; else `LENGTH`.
        policy_version: version of the weights when the first token was sampled: the oldest that took part.
    """

    key: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.token_ids):
            raise ValueError(
                f"completion {self.key!r}: got {len(self.logprobs)} logprobs for {len(self.token_ids)} tokens; "
                "there must be one for each"
            )


class Engine(Protocol):
    """Turns requests into completions, each exactly once, in whatever order they finish.

    Attributes:
        policy_version: age of the weights, copied into completions. The trainer sets it after each weight update.
    """

    policy_version: int

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue requests; all of them or, when one is refused, none.

        Raises:
            PolicyError: a request the engine can never serve (empty, too long, key already pending).
        """
        ...

    def poll(self) -> list[Completion]:
        """Advance the work a little and return what has finished. An engine may answer `[]` while it is busy."""
        ...

    @property
    def pending(self) -> int:
        """Requests submitted and neither returned by `poll` nor cancelled."""
        ...

    def cancel(self, keys: Iterable[str]) -> None:
        """Forget these requests: no completion will come. Keys that are not pending (any more) are ignored."""
        ...
