"""Any OpenAI-compatible server as a player, for evaluation: vllm serve, llama.cpp's server, hosted models.

Two faces of one client. `OpenAIEngine` speaks ids to servers that answer with ids (`return_token_ids`, as vllm serve
does), and is an `Engine` like the others. `OpenAIPolicy` speaks chat messages to all other servers; its generations
have text and no ids, so they can be played and graded, and the trainer refuses them.

The server keeps the weights, so no version of them is known here. A seed is sent with every request; whether the same
one gives the same text depends on the server.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from selfcest_agents.engine import Completion, FailedRequest, TokenRequest, check_requests
from selfcest_agents.openai_client import LONGEST_TOKEN, Client, ServerConfig, choice_of, excerpt, text_of, usage_fault
from selfcest_agents.policy import PolicyRequest, SamplingConfig
from selfcest_env.errors import InfrastructureError, PolicyError, is_integer_within
from selfcest_env.record import Generation
from selfcest_env.text.markers import Markers
from selfcest_env.types import FinishReason, Message, MessageRole, TurnKey

T = TypeVar("T")

SEED_BITS = 31  # the widest integer that every server takes
ID_BOUND = 2**31  # of ids where the vocabulary is not known, and of counts
LOGPROB_ROUNDING = 1e-3  # a log-softmax in bfloat16 may end so far above 0
# Servers fill what is not said from their model's folder, and then sample from another distribution.
NEUTRAL_SAMPLING = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class _Served(Generic[T]):
    """What both faces share: a client of their own, closed with them."""

    def __init__(self, config: ServerConfig) -> None:
        self._client: Client[T] = Client(config)

    @property
    def num_retries(self) -> int:
        """Tries beyond the first, over all requests."""
        return self._client.counts.retries

    def close(self) -> None:
        """End the connections; what is pending is dropped."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class OpenAIEngine(_Served[Completion]):
    """`Engine` over a server's `/completions`, for servers that take ids and answer with ids and log-probs.

    The log-probs are the server's word: start vllm serve with `--logprobs-mode processed_logprobs`, else those of a
    temperature other than 1 are not those of the distribution sampled from.

    Args:
        config: the server.
        stop_ids: ids that end a sequence; the server's own end-of-turn ids are switched off.
        vocab_size: of the tokenizer; no id of an answer may lie above it. `None`: not known here.
    """

    def __init__(self, config: ServerConfig, *, stop_ids: Collection[int], vocab_size: int | None = None) -> None:
        super().__init__(config)
        self.policy_version = 0
        self._stop_ids, self._vocab_size = frozenset(stop_ids), vocab_size
        self._pending: set[str] = set()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def check(self, context_ids: tuple[int, ...] = (0,)) -> None:
        """Ask for one token, to learn before any work whether this server will do.

        Raises `PolicyError` if not, `InfrastructureError` if it cannot be reached.
        """
        request = TokenRequest("selfcest-check", context_ids, 1, 0)
        self.submit([request])
        try:
            while request.key in self._pending:
                for completion in self.poll():
                    if isinstance(completion, FailedRequest) and completion.key == request.key:
                        raise completion.error
        finally:
            self.cancel([request.key])

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue requests, all or none. Raises `PolicyError` for one that could never be served."""
        check_requests(requests, self._pending, vocab_size=self._vocab_size)
        for request in requests:
            read = partial(self._read, request, self.policy_version)
            self._client.submit(request.key, "completions", self._body(request), read)
            self._pending.add(request.key)

    def poll(self) -> list[Completion | FailedRequest]:
        """Wait until a completion arrives; return all that have, `[]` if none is pending."""
        answers = self._client.poll()
        self._pending.difference_update(name for name, _ in answers)
        return [FailedRequest(n, said) if isinstance(said, InfrastructureError) else said for n, said in answers]

    def cancel(self, keys: Iterable[str]) -> None:
        """Forget these requests; keys that are not pending are ignored."""
        gone = frozenset(keys)
        self._client.cancel(gone)
        self._pending -= gone

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
        finish = _finish(choice, what)
        ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
        logprobs = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not ids or not isinstance(ids, list) or not isinstance(logprobs, list) or len(ids) != len(logprobs):
            missing = "log-probs of its token_ids" if ids and isinstance(ids, list) else "token_ids"
            raise PolicyError(
                f"{what} has no {missing}; use a server that knows return_token_ids and logprobs, such as vllm serve, "
                "or OpenAIPolicy, which plays by text and cannot be trained on"
            )
        last = (self._vocab_size or ID_BOUND) - 1
        for i, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            if not is_integer_within(token, 0, last):
                raise InfrastructureError(f"{what}: id {i} is {excerpt(token)}; expected a whole number, 0 to {last}")
            # A comparison, since an integer may be beyond floating point, and NaN is no side's.
            known = isinstance(logprob, int | float) and not isinstance(logprob, bool)
            if not known or not -sys.float_info.max <= logprob <= LOGPROB_ROUNDING:
                raise InfrastructureError(f"{what}: log-prob {i} is {excerpt(logprob)}; expected a finite number <= 0")
        counted = _completion_tokens(answer)
        if counted is not None and counted != len(ids):
            raise PolicyError(
                f"{what} has {len(ids)} ids, and the server's usage says {counted} tokens; expected all that it "
                "sampled, thinking included"
            )
        stopped = ids[-1] in self._stop_ids
        if len(ids) > request.max_new_tokens or self._stop_ids & set(ids[:-1]):
            raise PolicyError(
                f"{what} has {len(ids)} ids where max_new_tokens = {request.max_new_tokens}, or goes on after a stop "
                "id; this server does not keep to max_tokens and stop_token_ids"
            )
        if finish is FinishReason.STOP and not stopped:
            raise PolicyError(f"{what} stopped at id {ids[-1]}, which is no stop id; expected {sorted(self._stop_ids)}")
        # A greedy choice has no alternatives, whatever the server says about the logits.
        certain = request.temperature == 0
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Completion(
            request.key, tuple(ids), (0.0,) * len(ids) if certain else tuple(map(float, logprobs)), reason, version
        )


class OpenAIPolicy(_Served[Generation]):
    """`Policy` over a server's `/chat/completions`: text in, text out, for playing and grading alone.

    Every turn sends the agent's whole transcript; replies and errors go in user messages, since servers give the tool
    role to calls of their own format only. `SamplingConfig.temperature` is sent, and no `tools`.

    A server parses special tokens wherever they stand, so what tasks, documents and agents said is sent with every
    marker in it broken (see `Markers`). Rules over a `PlainTextProtocol` with equal markers price what is sent.

    The game prices prompts by its rules' counter, which only estimates what a server counts. Generated tokens are the
    server's `usage`, thinking included; where it reports none, or fewer than the text can be, the grant is charged.

    Args:
        config: the server.
        sampling: how it draws.
        markers: of the served model; by default those that are known without its tokenizer.
    """

    def __init__(self, config: ServerConfig, sampling: SamplingConfig, markers: Markers | None = None) -> None:
        super().__init__(config)
        self._sampling, self._markers = sampling, markers or Markers()
        self._keys: dict[str, TurnKey] = {}

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for request in requests:
            observation, name = request.observation, str(request.key)
            if observation.max_new_tokens is None:
                raise PolicyError(f"{name} has no max_new_tokens; set limits.turn_tokens to play with a model")
            body = {
                "model": self._client.config.model,
                "messages": [self._message(message) for message in observation.messages],
                self._client.config.max_tokens_field: observation.max_new_tokens,
                "temperature": self._sampling.temperature,
                "top_p": 1.0,
                "seed": request.seed % 2**SEED_BITS,
            }
            self._client.submit(name, "chat/completions", body, partial(_read, name, observation.max_new_tokens))
            self._keys[name] = request.key

    def poll(self) -> list[tuple[TurnKey, Generation | InfrastructureError]]:
        """Wait until an answer arrives; return all that have, `[]` if none is pending."""
        return [(self._keys.pop(name), said) for name, said in self._client.poll()]

    def _message(self, message: Message) -> dict[str, str]:
        role = MessageRole.USER if message.role is MessageRole.TOOL else message.role
        return {"role": str(role), "content": self._markers.clean(message).content}


def _read(name: str, grant: int, answer: Any) -> Generation:
    what = f"the server's answer to {name}"
    choice = choice_of(answer, what)
    finish = _finish(choice, what)
    text = text_of(choice.get("message"), what)
    # A usage that cannot be true is as good as none. What no grant could hold is charged above it, and so dropped.
    least = math.ceil(len(text) / LONGEST_TOKEN)
    counted = _completion_tokens(answer)
    unknown = counted is None or (counted <= grant and usage_fault(answer, grant))
    charged = max(grant, least) if unknown else counted
    return Generation(text, finish, charged_tokens=charged)


def _completion_tokens(answer: Mapping[str, Any]) -> int | None:
    """What the server says that it generated; `None` if it says nothing that could be a count."""
    usage = answer.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return counted if is_integer_within(counted, 0, ID_BOUND) else None


def _finish(choice: Mapping[str, Any], what: str) -> FinishReason:
    reason = choice.get("finish_reason")
    if reason in ("tool_calls", "function_call"):
        raise PolicyError(f"{what} ended by {reason!r}; switch the server's own tool parser off")
    if not isinstance(reason, str) or reason not in _FINISH:
        raise InfrastructureError(
            f"{what} ended by {excerpt(reason)}; expected {' or '.join(_FINISH)}: a filtered or aborted answer is none"
        )
    return _FINISH[reason]
