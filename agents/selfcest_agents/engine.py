"""The token-level interface: what the project asks of anything that turns a context of ids into new ids.

This module imports no torch, so that engines served elsewhere, and tests with fakes, stay light.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError
from selfcest_env.types import FinishReason

if TYPE_CHECKING:
    from torch import Tensor


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


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """What came of a `TokenRequest` that there was nothing wrong with: no completion, for a fault of a server.

    Attributes:
        key: the request's key.
        error: the cause.
    """

    key: str
    error: InfrastructureError


class Engine(Protocol):
    """Turns requests into completions, each exactly once, in whatever order they finish.

    Attributes:
        policy_version: age of the weights, copied into completions.
    """

    policy_version: int

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue requests; all of them or, when one is refused, none.

        Raises:
            PolicyError: a request the engine can never serve (empty, too long, key already pending).
        """
        ...

    def poll(self) -> Sequence[Completion | FailedRequest]:
        """Advance the work a little and return what has finished. An engine may answer `[]` while it is busy."""
        ...

    @property
    def pending(self) -> int:
        """Requests submitted and neither returned by `poll` nor cancelled."""
        ...

    def cancel(self, keys: Iterable[str]) -> None:
        """Forget these requests: no completion will come. Keys that are not pending (any more) are ignored."""
        ...


@runtime_checkable
class TrainableEngine(Engine, Protocol):
    """An engine that samples from whatever weights it was last given."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Put new weights in place of the old, whole or not at all, and forget what was computed with the old.

        Sequences in flight keep their ids and go on with the new weights, their context computed anew.

        Args:
            weights: every tensor of the model by its name, as from `model.named_parameters()`; any device and floating
                dtype. A tied tensor may come under each of its names.
            policy_version: their age.

        Raises:
            PolicyError: a tensor is missing, unknown or of another shape; the old weights then still stand.
        """
        ...


def check_trainable(player: object) -> TrainableEngine:
    """The engine itself, if a trainer can send it weights; to be asked before any work.

    Raises:
        ConfigError: an engine or a policy that samples from weights of its own, such as a server's.
    """
    if isinstance(player, TrainableEngine):
        return player
    raise ConfigError(
        f"{type(player).__name__} takes no weights, so what is learned would never be played; train with a "
        "TransformersEngine or a VllmEngine, and use this one to evaluate and to solve"
    )


def check_weights(found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    """Refuse weights that are not those of the model, tensor by tensor.

    Args:
        found: shapes of what was sent, by name.
        expected: shapes of what the model has, by name.

    Raises:
        PolicyError: a tensor is missing, unknown or of another shape.
    """
    if wrong := mismatch(found, expected, "the model"):
        raise PolicyError(f"{wrong}; send every tensor of the model that this engine was started with")


def mismatch(found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]], what: str) -> str:
    """How many tensors differ in name or shape, and how the first does, in words; empty if none does.

    As `2 tensors do not match the model, the first is 'a.weight': got shape None, expected (3, 4)`.
    """
    got, want = ({name: tuple(shape) for name, shape in side.items()} for side in (found, expected))
    wrong = sorted(name for name in got.keys() | want if got.get(name) != want.get(name))
    if not wrong:
        return ""
    return (
        f"{len(wrong)} tensors do not match {what}, the first is {wrong[0]!r}: got shape {got.get(wrong[0])}, expected "
        f"{want.get(wrong[0])}"
    )


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
