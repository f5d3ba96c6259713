"""An engine and a policy over OpenAI-compatible servers: vllm serve, llama.cpp's server, hosted models.

`OpenAIEngine` sends and receives token ids. It needs a server that knows `return_token_ids`, such as vllm serve.
`OpenAIPolicy` sends chat messages to any server. Its generations have text and no ids: they can be played and graded,
but the trainer refuses them.

The server keeps the weights, so their version is not known here. Every request has a seed, but whether equal seeds give
equal texts depends on the server.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from selfcest_agents.engine import Completion, FailedRequest, TokenRequest, check_requests
from selfcest_agents.openai_client import (
    MAX_TOKEN_CHARS,
    Client,
    ServerConfig,
    find_usage_fault,
    get_choice,
    get_message_text,
    make_excerpt,
)
from selfcest_agents.policy import PolicyRequest, SamplingConfig
from selfcest_env.errors import InfrastructureError, PolicyError, is_integer_within
from selfcest_env.record import Generation
from selfcest_env.text.markers import Markers
from selfcest_env.types import FinishReason, Message, MessageRole, TurnKey

T = TypeVar("T")

SEED_BITS = 31  # the widest seed that every server accepts
ID_BOUND = 2**31  # exclusive bound of token counts, and of ids if the vocabulary size is not known
LOGPROB_ROUNDING = 1e-3  # a log-softmax in bfloat16 may exceed 0 by this much
# A server takes options that a request lacks from its model's folder, and would sample from another distribution.
NEUTRAL_SAMPLING = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}

_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class _ClientOwner(Generic[T]):
    """Base class of the engine and the policy: it owns a client and closes it."""

    def __init__(self, config: ServerConfig, *sampled: str) -> None:
        why = "the temperature is an option of the player, and each turn has its seed; null leaves it to the server"
        config.check_extra(("temperature", "seed", *sampled), why)
        self._client: Client[T] = Client(config)

    def close(self) -> None:
        """Drop the pending requests and close all connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class OpenAIEngine(_ClientOwner[Completion]):
    """An `Engine` over a server's `/completions`. The server must accept ids and answer with ids and log-probs.

    Start vllm serve with `--logprobs-mode processed_logprobs`. By default vLLM ignores the temperature in log-probs, so
    they would not belong to the distribution that was sampled from.

    Args:
        config: address of the server, and limits of the requests.
        stop_ids: ids that end a sequence. The end-of-turn ids of the server are switched off.
        vocab_size: number of ids of the tokenizer, which bounds the ids of an answer; `None` if it is not known.
    """

    def __init__(self, config: ServerConfig, *, stop_ids: Collection[int], vocab_size: int | None = None) -> None:
        super().__init__(config, "top_p", "logprobs", "return_token_ids", "stop_token_ids", *NEUTRAL_SAMPLING)
        self.policy_version = 0
        self._stop_ids = frozenset(stop_ids)
        self._vocab_size = vocab_size
        self._pending: set[str] = set()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def check(self, context_ids: tuple[int, ...] = (0,)) -> None:
        """Request one token, to check before any work that the server supports this engine.

        Raises:
            PolicyError: the server refuses the request, or its answer lacks ids or log-probs.
            InfrastructureError: the server gave no valid answer in all attempts.
        """
        request = TokenRequest("selfcest-check", context_ids, 1, 0)
        self.submit([request])
        try:
            while request.key in self._pending:
                for completion in self.poll():
                    if isinstance(completion, FailedRequest) and completion.key == request.key:
                        raise completion.error
        finally:
            # A later poll must not return the result of this request.
            self.cancel([request.key])

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue all requests, or none and raise `PolicyError` if one of them could never be served."""
        check_requests(requests, self._pending, vocab_size=self._vocab_size)
        for request in requests:
            read = partial(self._read_completion, request, self.policy_version)
            self._client.submit(request.key, "completions", self._make_body(request), read)
            self._pending.add(request.key)

    def poll(self) -> list[Completion | FailedRequest]:
        """Wait until a request ends; return the results of all that have ended, `[]` if none is pending."""
        results: list[Completion | FailedRequest] = []
        for key, answer in self._client.poll():
            self._pending.discard(key)
            results.append(FailedRequest(key, answer) if isinstance(answer, InfrastructureError) else answer)
        return results

    def cancel(self, keys: Iterable[str]) -> None:
        """Drop these requests; keys that are not pending are ignored."""
        cancelled = frozenset(keys)
        self._client.cancel(cancelled)
        self._pending -= cancelled

    def _make_body(self, request: TokenRequest) -> dict[str, Any]:
        return {
            "model": self._client.config.model,
            "prompt": list(request.context_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": 1.0,
            **NEUTRAL_SAMPLING,
            "seed": request.seed % 2**SEED_BITS,
            "logprobs": 1,
            "return_token_ids": True,
            # Only the given stop ids end a sequence, not the end-of-sequence id of the server's model.
            "stop_token_ids": sorted(self._stop_ids),
            "ignore_eos": True,
        }

    def _read_completion(self, request: TokenRequest, version: int, answer: Any) -> Completion:
        """Check an answer and convert it to a completion; see `Client.submit` for the errors."""
        label = f"the server's answer to {request.key!r}"
        choice = get_choice(answer, label)
        finish = _read_finish_reason(choice, label)
        ids = choice.get("token_ids")
        logprobs = choice.get("logprobs")
        logprobs = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not ids or not isinstance(ids, list) or not isinstance(logprobs, list) or len(ids) != len(logprobs):
            missing = "log-probs of its token_ids" if ids and isinstance(ids, list) else "token_ids"
            raise PolicyError(
                f"{label} has no {missing}; use a server that supports return_token_ids and logprobs, such as vllm "
                "serve, or use OpenAIPolicy, whose episodes have texts only and cannot be trained on"
            )
        _check_ids_and_logprobs(label, ids, logprobs, largest_id=(self._vocab_size or ID_BOUND) - 1)
        reported_tokens = _read_completion_tokens(answer)
        if reported_tokens is not None and reported_tokens != len(ids):
            raise PolicyError(
                f"{label} has {len(ids)} ids, and its usage reports {reported_tokens} tokens; expected the ids of all "
                "sampled tokens, including those of thinking"
            )
        stopped = ids[-1] in self._stop_ids
        if len(ids) > request.max_new_tokens or self._stop_ids & set(ids[:-1]):
            raise PolicyError(
                f"{label} has {len(ids)} ids for max_new_tokens = {request.max_new_tokens}, or continues after a stop "
                "id; use a server that obeys max_tokens and stop_token_ids"
            )
        if finish is FinishReason.STOP and not stopped:
            raise PolicyError(
                f"{label} stopped at id {ids[-1]}, which is not a stop id; expected one of {sorted(self._stop_ids)}"
            )
        # A greedy choice has probability 1, but servers report its log-prob at temperature 1.
        is_greedy = request.temperature == 0
        sampled_logprobs = (0.0,) * len(ids) if is_greedy else tuple(map(float, logprobs))
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Completion(request.key, tuple(ids), sampled_logprobs, reason, version)


class OpenAIPolicy(_ClientOwner[Generation]):
    """A `Policy` over a server's `/chat/completions`. It exchanges texts, so it can play and be graded only.

    Every turn sends the whole transcript of the agent. Replies and errors are user messages, because servers reserve
    the tool role for calls in their own format. The request has the temperature of `sampling` and no `tools`.

    A server parses special tokens in every message. Markers in texts of tasks, documents and agents are therefore
    broken before they are sent (see `Markers`). Rules over a `PlainTextProtocol` with equal markers price these texts.

    The ledger prices prompts by the counter of the rules, which only estimates the server's own count. The price of a
    generation is the server's `usage`, including thinking. If the server reports none, or fewer tokens than the text
    must have, the whole grant is charged.

    Args:
        config: address of the server, and limits of the requests.
        sampling: temperature of the requests.
        markers: special tokens of the served model; by default those that are known without its tokenizer.
    """

    def __init__(self, config: ServerConfig, sampling: SamplingConfig, markers: Markers | None = None) -> None:
        super().__init__(config)
        self._sampling = sampling
        self._markers = markers or Markers()
        self._key_by_name: dict[str, TurnKey] = {}

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for request in requests:
            observation = request.observation
            name = str(request.key)
            if observation.max_new_tokens is None:
                raise PolicyError(f"{name} has no max_new_tokens; set limits.turn_tokens to play with a model")
            body = {
                "model": self._client.config.model,
                "messages": [self._format_message(message) for message in observation.messages],
                self._client.config.max_tokens_field: observation.max_new_tokens,
                "temperature": self._sampling.temperature,
                "top_p": 1.0,
                "seed": request.seed % 2**SEED_BITS,
            }
            read = partial(read_generation, name, observation.max_new_tokens)
            self._client.submit(name, "chat/completions", body, read)
            self._key_by_name[name] = request.key

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:
        """Wait until a request ends; return the results of all that have ended, `[]` if none is pending."""
        return [(self._key_by_name.pop(name), answer) for name, answer in self._client.poll()]

    def _format_message(self, message: Message) -> dict[str, str]:
        role = MessageRole.USER if message.role is MessageRole.TOOL else message.role
        return {"role": str(role), "content": self._markers.clean(message).content}


def _check_ids_and_logprobs(label: str, ids: Sequence[Any], logprobs: Sequence[Any], largest_id: int) -> None:
    """Raise `InfrastructureError` for a JSON value that is not an id or not a log-prob."""
    for i, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        if not is_integer_within(token, 0, largest_id):
            raise InfrastructureError(
                f"{label}: id {i} is {make_excerpt(token)}; expected a whole number, 0 to {largest_id}"
            )
        # Comparisons, because math.isfinite overflows for a large JSON integer. They are false for NaN.
        is_number = isinstance(logprob, int | float) and not isinstance(logprob, bool)
        if not is_number or not -sys.float_info.max <= logprob <= LOGPROB_ROUNDING:
            raise InfrastructureError(
                f"{label}: log-prob {i} is {make_excerpt(logprob)}; expected a finite number <= 0"
            )


def read_generation(name: str, grant: int, answer: Any) -> Generation:
    """Check an answer and convert it to a generation, charged by the answer's usage or else by the grant."""
    label = f"the server's answer to {name}"
    choice = get_choice(answer, label)
    finish = _read_finish_reason(choice, label)
    text = get_message_text(choice.get("message"), label)
    fewest_tokens = math.ceil(len(text) / MAX_TOKEN_CHARS)
    reported_tokens = _read_completion_tokens(answer)
    # A usage above the grant is charged as reported, even if it cannot be true. The kernel drops the over-long turn.
    if reported_tokens is None or (reported_tokens <= grant and find_usage_fault(answer, grant)):
        charged_tokens = max(grant, fewest_tokens)
    else:
        charged_tokens = reported_tokens
    return Generation(text, finish, charged_tokens=charged_tokens)


def _read_completion_tokens(answer: Mapping[str, Any]) -> int | None:
    """Return the generated tokens that the server reports; `None` if it reports no valid count."""
    usage = answer.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if is_integer_within(tokens, 0, ID_BOUND) else None


def _read_finish_reason(choice: Mapping[str, Any], label: str) -> FinishReason:
    reason = choice.get("finish_reason")
    if reason in ("tool_calls", "function_call"):
        raise PolicyError(f"{label} ended by {reason!r}; expected a text, so switch the server's own tool parser off")
    if not isinstance(reason, str) or reason not in _FINISH_REASONS:
        raise InfrastructureError(
            f"{label} ended by {make_excerpt(reason)}; expected {' or '.join(_FINISH_REASONS)}, because a filtered or "
            "aborted answer is incomplete"
        )
    return _FINISH_REASONS[reason]
