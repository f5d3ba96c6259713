"""Any OpenAI-compatible server as a player, for evaluation: vllm serve, llama.cpp's server, hosted models.

Two faces of one client. `OpenAIEngine` speaks ids to servers that answer with ids (`return_token_ids`, as vllm serve
does), and is an `Engine` like the others. `OpenAIPolicy` speaks chat messages to all other servers; its generations
have text and no ids, so they can be played and graded, and the trainer refuses them.

The server keeps the weights, so no version of them is known here. A seed is sent with every request; whether the same
one gives the same text depends on the server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeGuard

from selfcest_agents.engine import Completion, TokenRequest, check_requests
from selfcest_agents.openai_client import EXCERPT, Client, ServerConfig, choice_of
from selfcest_agents.policy import PolicyRequest, SamplingConfig
from selfcest_env.errors import PolicyError
from selfcest_env.record import Generation
from selfcest_env.types import FinishReason, Message, MessageRole, TurnKey

SEED_BITS = 31  # the widest integer that every server takes
# Servers fill what is not said from their model's folder, and then sample from another distribution.
NEUTRAL_SAMPLING = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class _Served:
    """What both faces share: a client of their own, closed with them."""

    def __init__(self, config: ServerConfig) -> None:
        self._client = Client(config)

    @property
    def num_retries(self) -> int:
        """Tries beyond the first, over all requests."""
        return self._client.num_retries

    def close(self) -> None:
        """End the connections; what is pending is dropped."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class OpenAIEngine(_Served):
    """`Engine` over a server's `/completions`, for servers that take ids and answer with ids and log-probs.

    The log-probs are the server's word: start vllm serve with `--logprobs-mode processed_logprobs`, else those of a
    temperature other than 1 are not those of the distribution sampled from.

    Args:
        config: the server.
        stop_ids: ids that end a sequence; the server's own end-of-turn ids are switched off.
    """

    def __init__(self, config: ServerConfig, *, stop_ids: Collection[int]) -> None:
        super().__init__(config)
        self.policy_version = 0
        self._stop_ids = frozenset(stop_ids)
        self._requests: dict[str, tuple[TokenRequest, int]] = {}

    @property
    def pending(self) -> int:
        return len(self._requests)

    def check(self, context_ids: tuple[int, ...] = (0,)) -> None:
        """Ask for one token, to learn before any work whether this server will do. Raises `PolicyError` if not."""
        request = TokenRequest("selfcest-check", context_ids, 1, 0)
        self.submit([request])
        try:
            while request.key in self._requests:
                self.poll()
        finally:
            self.cancel([request.key])

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue requests, all or none. Raises `PolicyError` for one that could never be served."""
        check_requests(requests, self._requests)
        for request in requests:
            self._requests[request.key] = request, self.policy_version
            self._client.submit(request.key, "completions", self._body(request))

    def poll(self) -> list[Completion]:
        """Wait until a completion arrives; return all that have, `[]` if none is pending."""
        return [self._read(*self._requests.pop(name), answer) for name, answer in self._client.poll()]

    def cancel(self, keys: Iterable[str]) -> None:
        """Forget these requests; keys that are not pending are ignored."""
        gone = frozenset(keys)
        self._client.cancel(gone)
        self._requests = {key: value for key, value in self._requests.items() if key not in gone}

    def _body(self, request: TokenRequest) -> dict[str, Any]:
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
            "stop_token_ids": sorted(self._stop_ids),
            "ignore_eos": True,
        }

    def _read(self, request: TokenRequest, version: int, answer: Any) -> Completion:
        what = f"the server's answer to {request.key!r}"
        choice = choice_of(answer, what)
        ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
        logprobs = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not _list_of(ids, int) or not _list_of(logprobs, (int, float)) or len(ids) != len(logprobs):
            missing = "log-probs of its token_ids" if _list_of(ids, int) else "token_ids"
            raise PolicyError(
                f"{what} has no {missing}; use a server that knows return_token_ids and logprobs, such as vllm serve, "
                "or OpenAIPolicy, which plays by text and cannot be trained on"
            )
        stopped = ids[-1] in self._stop_ids
        if len(ids) > request.max_new_tokens or self._stop_ids & set(ids[:-1]):
            raise PolicyError(
                f"{what} has {len(ids)} ids where max_new_tokens = {request.max_new_tokens}, or goes on after a stop "
                "id; this server does not keep to max_tokens and stop_token_ids"
            )
        if _finish(choice, what) is FinishReason.STOP and not stopped:
            raise PolicyError(f"{what} stopped at id {ids[-1]}, which is no stop id; expected {sorted(self._stop_ids)}")
        # A greedy choice has no alternatives, whatever the server says about the logits.
        certain = request.temperature == 0
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Completion(
            request.key, tuple(ids), (0.0,) * len(ids) if certain else tuple(map(float, logprobs)), reason, version
        )


class OpenAIPolicy(_Served):
    """`Policy` over a server's `/chat/completions`: text in, text out, for playing and grading alone.

    Every turn sends the agent's whole transcript; replies and errors go in user messages, since servers give the tool
    role to calls of their own format only. `SamplingConfig.temperature` is sent, and no `tools`.

    The game prices prompts by its rules' counter, which only estimates what a server counts. Generated tokens are the
    server's `usage`, thinking included; where it reports none, the whole grant is charged.
    """

    def __init__(self, config: ServerConfig, sampling: SamplingConfig) -> None:
        super().__init__(config)
        self._sampling = sampling
        self._requests: dict[str, tuple[TurnKey, int]] = {}

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for request in requests:
            observation, name = request.observation, str(request.key)
            if observation.max_new_tokens is None:
                raise PolicyError(f"{name} has no max_new_tokens; set limits.turn_tokens to play with a model")
            self._requests[name] = request.key, observation.max_new_tokens
            body = {
                "model": self._client.config.model,
                "messages": [_message(message) for message in observation.messages],
                self._client.config.max_tokens_field: observation.max_new_tokens,
                "temperature": self._sampling.temperature,
                "top_p": 1.0,
                "seed": request.seed % 2**SEED_BITS,
            }
            self._client.submit(name, "chat/completions", body)

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        """Wait until an answer arrives; return all that have, `[]` if none is pending."""
        return [self._read(*self._requests.pop(name), answer) for name, answer in self._client.poll()]

    def _read(self, key: TurnKey, grant: int, answer: Any) -> tuple[TurnKey, Generation]:
        what = f"the server's answer to {key}"
        choice = choice_of(answer, what)
        message = choice.get("message")
        if not isinstance(message, dict) or not isinstance(message.get("content", ""), str | None):
            raise PolicyError(f"{what} has the message {str(message)[:EXCERPT]!r}; expected an object with content")
        usage = answer.get("usage")
        used = usage.get("completion_tokens") if isinstance(usage, dict) else None
        charged = used if isinstance(used, int) and used >= 0 else grant
        return key, Generation(message.get("content") or "", _finish(choice, what), charged_tokens=charged)


def _message(message: Message) -> dict[str, str]:
    role = MessageRole.USER if message.role is MessageRole.TOOL else message.role
    return {"role": str(role), "content": message.content}


def _finish(choice: Mapping[str, Any], what: str) -> FinishReason:
    reason = choice.get("finish_reason")
    if reason not in _FINISH:
        raise PolicyError(
            f"{what} ended by {reason!r}; expected {' or '.join(_FINISH)}. Switch the server's own tool parser off; a "
            "filtered or aborted answer is no answer"
        )
    return _FINISH[reason]


def _list_of(value: Any, kind: type | tuple[type, ...]) -> TypeGuard[list[Any]]:
    return isinstance(value, list) and bool(value) and all(isinstance(item, kind) for item in value)
