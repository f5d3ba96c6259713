"""The interface of engines, which continue contexts of token ids.

This module does not import torch, because engines over servers and tests do not need it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError
from selfcest_env.types import FinishReason, Role

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A context to continue.

    Attributes:
        key: name of the request, unique among the pending requests of an engine, as in `e7/root.2/turn0`.
        context_ids: ids of the whole context, at least one. Engines add no ids to it.
        max_new_tokens: maximum number of ids to generate, at least 1.
        seed: seed of this request's random stream. The order and the batch of requests therefore do not matter.
        temperature: divisor of the logits; 0 is greedy.
        role: role of the agent. It matters only to an engine whose model has an adapter per role.
    """

    key: str
    context_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    role: Role = Role.ROOT


@dataclass(frozen=True, slots=True)
class Completion:
    """Result of a `TokenRequest`.

    Attributes:
        key: key of the request.
        token_ids: sampled ids, `1 <= len <= max_new_tokens`. With `STOP` the last one is the stop id.
        logprobs: log-probabilities of `token_ids` under the distribution that was sampled from, at its temperature.
            A greedy choice has no alternative, so its log-probability is 0.0.
        finish_reason: `STOP` after a stop id, even if it is the last id that was allowed; otherwise `LENGTH`.
        policy_version: version of the weights that sampled the first token, which is the oldest version involved.
    """

    key: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.token_ids):
            raise ValueError(
                f"completion {self.key!r}: found {len(self.logprobs)} logprobs for {len(self.token_ids)} tokens; "
                "expected one for each token"
            )


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """Result of a valid `TokenRequest` that failed because of the server.

    Attributes:
        key: key of the request.
        error: cause of the failure.
    """

    key: str
    error: InfrastructureError


class Engine(Protocol):
    """Continues contexts. Every request gets exactly one result, in any order.

    Attributes:
        policy_version: version of the weights, which is copied into completions.
    """

    policy_version: int

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue all requests, or none if one of them is refused.

        Raises:
            PolicyError: the engine can never serve a request: it is empty or too long, or its key is pending.
        """
        ...

    def poll(self) -> Sequence[Completion | FailedRequest]:
        """Advance the work and return the results of finished requests. An engine may return `[]` while it is busy."""
        ...

    @property
    def pending(self) -> int:
        """Number of submitted requests that were neither returned by `poll` nor cancelled."""
        ...

    def cancel(self, keys: Iterable[str]) -> None:
        """Drop these requests, which get no result. Keys that are not pending are ignored."""
        ...


@runtime_checkable
class TrainableEngine(Engine, Protocol):
    """An engine whose weights can be replaced."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Replace all weights, and drop everything that was computed with the old ones.

        Pending sequences keep their ids and continue with the new weights, for which their context is recomputed.

        Args:
            weights: every tensor of the model with its name, as from `model.named_parameters()`, on any device and in
                any floating dtype. A tied tensor may come with each of its names.
            policy_version: version of the new weights.

        Raises:
            PolicyError: a tensor is missing, unknown or of another shape. The old weights are then unchanged.
        """
        ...


def check_trainable(engine: object) -> TrainableEngine:
    """Return the engine if its weights can be replaced. Call this before any work.

    Raises:
        ConfigError: the engine or policy has fixed weights, such as those of a server.
    """
    if isinstance(engine, TrainableEngine):
        return engine
    raise ConfigError(
        f"{type(engine).__name__} takes no weights, so it would never play with the trained ones; train with a "
        "TransformersEngine or a VllmEngine, and use this one for evaluation and `selfcest solve`"
    )


def check_weights(sent: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    """Check that weights are those of the model.

    Args:
        sent: shapes of the sent tensors by name.
        expected: shapes of the model's tensors by name.

    Raises:
        PolicyError: a tensor is missing, unknown or of another shape.
    """
    mismatch = describe_mismatch(sent, expected, "the model")
    if mismatch:
        raise PolicyError(f"{mismatch}; send every tensor of the model that this engine was started with")


def describe_mismatch(sent: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]], target: str) -> str:
    """Return the number of tensors that differ in name or shape, with the first difference; empty if none differs.

    Example: `2 tensors do not match the model, the first is 'a.weight': got shape None, expected (3, 4)`, where the
    target is "the model".
    """
    sent_shapes = {name: tuple(shape) for name, shape in sent.items()}
    expected_shapes = {name: tuple(shape) for name, shape in expected.items()}
    names = sent_shapes.keys() | expected_shapes.keys()
    different = sorted(name for name in names if sent_shapes.get(name) != expected_shapes.get(name))
    if not different:
        return ""
    first = different[0]
    return (
        f"{len(different)} tensors do not match {target}, the first is {first!r}: got shape {sent_shapes.get(first)}, "
        f"expected {expected_shapes.get(first)}"
    )


def check_requests(
    requests: Iterable[TokenRequest],
    pending: Collection[str],
    *,
    max_positions: int | None = None,
    vocab_size: int | None = None,
) -> None:
    """Check that an engine can serve requests. A bound is `None` if it is not known.

    Args:
        requests: requests that are submitted together.
        pending: keys of the pending requests.
        max_positions: maximum number of ids of a context, including the generated ones.
        vocab_size: number of ids of the model.

    Raises:
        PolicyError: a request is empty, too long or out of range, or its key is pending.
    """
    keys = set(pending)
    for request in requests:
        num_context = len(request.context_ids)
        max_new_tokens = request.max_new_tokens
        label = f"request {request.key!r}"
        if request.key in keys:
            raise PolicyError(f"{label} is already pending; give every request its own key")
        keys.add(request.key)
        if not num_context:
            raise PolicyError(f"{label} has an empty context; send at least one id, such as the opening token")
        if max_new_tokens < 1:
            raise PolicyError(f"{label} has max_new_tokens = {max_new_tokens}, expected at least 1; do not send it")
        if max_positions is not None and num_context + max_new_tokens > max_positions:
            raise PolicyError(
                f"{label} has {num_context} context ids and max_new_tokens = {max_new_tokens}, together "
                f"{num_context + max_new_tokens}, but the model holds {max_positions} positions; lower "
                "limits.context_tokens or use a model with more"
            )
        if min(request.context_ids) < 0 or max(request.context_ids) >= (vocab_size or inf):
            raise PolicyError(
                f"{label} has context ids from {min(request.context_ids)} to {max(request.context_ids)}, but the model "
                f"knows 0 to {'?' if vocab_size is None else vocab_size - 1}; encode with the tokenizer of this model"
            )
        if not 0 <= request.temperature < inf:
            raise PolicyError(f"{label} has temperature {request.temperature}; expected a finite number >= 0")
        if request.seed < 0:
            raise PolicyError(f"{label} has seed {request.seed}; expected >= 0, as from selfcest_env.seeding")
