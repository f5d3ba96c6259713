"""The token-level interface: what the project asks of anything that turns a context of ids into new ids.

This module imports no torch, so that engines served elsewhere, and tests with fakes, stay light.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from selfcest_env.errors import PolicyError
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


def check_requests(
    requests: Iterable[TokenRequest],
    pending: Collection[str],
    *,
    max_positions: int | None = None,
    vocab_size: int | None = None,
) -> None:
    """Refuse what an engine could never serve. A bound that is not known here is `None`.

    Args:
        requests: what is to be submitted together.
        pending: keys that are taken.
        max_positions: ids of one context, prompt and generation together.
        vocab_size: ids are below it.

    Raises:
        PolicyError: for the first request that is empty, too long, out of range, or whose key is taken.
    """
    taken = set(pending)
    for request in requests:
        context, new = len(request.context_ids), request.max_new_tokens
        what = f"request {request.key!r}"
        if request.key in taken:
            raise PolicyError(f"{what} is already pending; give every request its own key")
        taken.add(request.key)
        if not context:
            raise PolicyError(f"{what} has an empty context; send at least one id, such as the opening token")
        if new < 1:
            raise PolicyError(f"{what} has max_new_tokens = {new}, expected at least 1; do not send it")
        if max_positions is not None and context + new > max_positions:
            raise PolicyError(
                f"{what} has {context} context ids and max_new_tokens = {new}, together {context + new}, but the model "
                f"holds {max_positions} positions; lower limits.context_tokens or use a model with more"
            )
        if min(request.context_ids) < 0 or max(request.context_ids) >= (vocab_size or inf):
            raise PolicyError(
                f"{what} has context ids from {min(request.context_ids)} to {max(request.context_ids)}, but the model "
                f"knows 0 to {'?' if vocab_size is None else vocab_size - 1}; encode with the tokenizer of this model"
            )
        if not 0 <= request.temperature < inf:
            raise PolicyError(f"{what} has temperature {request.temperature}; expected a finite number >= 0")
        if request.seed < 0:
            raise PolicyError(f"{what} has seed {request.seed}; expected >= 0, as from selfcest_env.seeding")
