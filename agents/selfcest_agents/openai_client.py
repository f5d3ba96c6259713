"""A client that sends named JSON requests to one HTTP server, with a concurrency limit, time-outs and retries."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import math
import os
import random
import re
import threading
import warnings
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Generic, TypeVar
from urllib.parse import quote, unquote

import httpx2

from selfcest_agents.server_counts import ServerCounts, ServerModel, add_to_tallies
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError, is_integer_within
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import Checked, Count, Positive, Size

T = TypeVar("T")

RETRIED_STATUS = frozenset({408, 409, 425, 429})  # all statuses from 500 on are retried too
EXCERPT_CHARS = 300  # of a server's text in an error message
COUNT_BOUND = 2**31  # exclusive bound of the token counts that a server may report
MAX_TOKEN_CHARS = 256  # of one token; some vocabularies have runs of 128 spaces
# Shorter keys are placeholders such as EMPTY. Answers may hold them as ordinary words, so they are not masked.
MIN_MASKED_KEY_CHARS = 16
# A config from an untrusted author could name any variable and send its value to the author's server.
KEY_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*_)?API_KEY|SELFCEST_[A-Z0-9_]+")
# Providers name the version of a hosted model by a date, as -2026-05-01, -20260501, @20260501 and -0501.
_DATE = re.compile(r"[-@](?:20[0-9]{2}(?P<dash>-?))?(?:0[1-9]|1[0-2])(?(dash)(?P=dash))(?:0[1-9]|[12][0-9]|3[01])")
_JSON_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
CONNECT_TIMEOUT_S = 10.0  # of the check before the first request
HEAD_TIMEOUT_S = 2.0  # short, because a busy server that accepts the connection passes the check
_CONNECTION_ERRORS = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.InvalidURL,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerConfig(Checked):
    """Address of an OpenAI-compatible server, with the limits and retries of requests to it.

    Attributes:
        base_url: address up to the version, as in `http://127.0.0.1:8000/v1`. It must hold no password or query,
            because error messages show it.
        model: name of the model on the server.
        api_key_variable: name of the environment variable that holds the key. It must end in `API_KEY` or begin with
            `SELFCEST_`. No key is sent if the variable is not set.
        max_concurrent: maximum number of requests in flight. Further requests wait in the client.
        timeout_s: maximum seconds from the start of a request to the last byte of its answer.
        max_answer_bytes: maximum size of one answer. A longer answer counts as a failed attempt.
        max_retries: attempts after the first one. An attempt is repeated after a time-out, a broken connection or
            answer, a content filter, or a status such as 429 or 503.
        backoff_s, max_backoff_s: the wait before retry k is min(backoff_s * 2**k, max_backoff_s), times a factor from
            [0.5, 1) that is drawn by the request's name. `Retry-After` can lengthen it up to max_backoff_s.
        max_tokens_field: name of the length limit in a chat request. Some hosted models need max_completion_tokens.
        extra: additional fields of every request body. It holds no limit of tokens and no prompt, and for a player no
            field of sampling.
    """

    base_url: str
    model: str
    api_key_variable: str = "OPENAI_API_KEY"
    max_concurrent: Count = 16
    timeout_s: Positive = 120.0
    max_answer_bytes: Count = 2**24
    max_retries: Size = 5
    backoff_s: Positive = 0.5
    max_backoff_s: Positive = 30.0
    max_tokens_field: str = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"base_url is {self.base_url!r}; expected http:// or https://, as in http://127.0.0.1:8000/v1"
            )
        if any(char in self.base_url for char in "@?#"):
            # The message does not show the address, which may hold a password.
            raise ConfigError(
                "base_url holds an @, ? or #, as of a password or a query; expected an address without them, as in "
                "http://127.0.0.1:8000/v1; put the key into the variable that api_key_variable names"
            )
        if not KEY_VARIABLE.fullmatch(self.api_key_variable):
            raise ConfigError(
                f"api_key_variable is {self.api_key_variable!r}, whose value would be sent to {self.base_url}; "
                "expected a name that ends in API_KEY or begins with SELFCEST_; to send another variable's value, "
                "copy it, as SELFCEST_KEY=$NAME, and name that"
            )
        refused = {"max_tokens", "max_completion_tokens", self.max_tokens_field, "messages", "prompt", "n", "stream"}
        self.check_extra(refused, "each request has its own: limits.turn_tokens bounds the tokens of a turn")

    def check_extra(self, refused: Collection[str], why: str) -> None:
        """Raise `ConfigError` if `extra` sets one of these fields. With `None` it leaves a field to the server."""
        found = [name for name in refused if self.extra.get(name) is not None]
        if found:
            raise ConfigError(f"extra has {min(found)}; remove it: {why}")


def check_reachable(config: ServerConfig) -> None:
    """Check that a server accepts connections at `base_url`, before the first request.

    Raises:
        ConfigError: the connection failed. Before the first request the address is wrong or the server was not started,
            so a retry would not help.
    """
    try:
        httpx2.head(config.base_url, timeout=httpx2.Timeout(HEAD_TIMEOUT_S, connect=CONNECT_TIMEOUT_S))
    except _CONNECTION_ERRORS as error:
        raise ConfigError(
            f"cannot connect to {config.base_url} ({type(error).__name__}: {error}); start the server, or correct "
            "its address (base_url or --server)"
        ) from error
    except httpx2.HTTPError:
        pass  # The server accepted the connection. The first request reports any further problem.


class _RetriedStatusError(InfrastructureError):
    """The server answered with a status that is retried.

    Attributes:
        retry_after_s: seconds that the server asked to wait, 0 if it did not ask.
    """

    retry_after_s = 0.0


class Client(Generic[T]):
    """Sends JSON requests by POST from a background thread, at most `max_concurrent` at once, and retries them.

    The wait before a retry is logged as a warning. Further failures are not logged until that wait has passed.

    Attributes:
        counts: counts of all requests that ended, see `ServerCounts`. They are also added to every open tally.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.counts = ServerCounts()
        self._key = _read_key(config.api_key_variable)
        self._key_spellings = _spell_key(self._key)
        _warn_of_plain_http(config.base_url)
        # A compressed answer could be short enough for max_answer_bytes and unpack to a long one.
        headers = {"Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._http = httpx2.AsyncClient(
            base_url=config.base_url.rstrip("/") + "/",
            headers=headers,
            timeout=None,  # _send sets one deadline for the whole attempt
            limits=httpx2.Limits(max_connections=config.max_concurrent),
        )
        self._semaphore = asyncio.Semaphore(config.max_concurrent)
        self._logged_wait_end = 0.0  # time of the event loop at which the wait that was last logged ends
        self._name_by_future: dict[Future[tuple[T | InfrastructureError, ServerCounts]], str] = {}
        # Players are synchronous, so the event loop of the HTTP client runs in a thread. It is a daemon thread, because
        # a client that was not closed must not keep the process alive.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="selfcest-client", daemon=True)
        self._thread.start()

    def submit(self, name: str, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> None:
        """Queue one request.

        Args:
            name: name of the request. It also keys the jitter of its retries.
            path: path below the base URL.
            body: JSON object to send. The fields of `ServerConfig.extra` are added.
            read: converts the answer's JSON value into the value that `poll` returns. It raises `InfrastructureError`
                for an answer that a retry may improve, and `PolicyError` for any other invalid answer.

        Raises:
            PolicyError: the body holds half of a surrogate pair, which cannot be encoded.
        """
        complete_body = {**body, **self.config.extra}
        max_tokens = body.get(self.config.max_tokens_field, body.get("max_tokens"))

        def read_and_count(answer: Any) -> tuple[T, ServerCounts]:
            # The answer is read first, because its counts can be checked only if it is a valid completion.
            value = read(answer)
            return value, _count_discrepancies(answer, complete_body.get("model"), max_tokens)

        try:
            content = json.dumps(complete_body, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            surrogate = error.object[error.start : error.end]
            raise PolicyError(
                f"request {name!r} has half of a surrogate pair in it, {surrogate!a}; clean the texts"
            ) from error
        future = asyncio.run_coroutine_threadsafe(self._send(name, path, content, read_and_count), self._loop)
        self._name_by_future[future] = name

    def poll(self) -> list[tuple[str, T | InfrastructureError]]:
        """Wait until a request ends, and return all that have ended by name; `[]` if none is pending.

        The value of a request is an `InfrastructureError` if the first attempt and all retries failed.

        Raises:
            PolicyError: the server refused a request, or its answer shows that it is not a suitable server.
        """
        ended, _ = wait(self._name_by_future, return_when=FIRST_COMPLETED)
        answers = []
        for future in ended:
            name = self._name_by_future.pop(future)
            answer, counts = future.result()
            self.counts += counts
            add_to_tallies({ServerModel(self.config.base_url, self.config.model): counts})
            answers.append((name, answer))
        return answers

    def cancel(self, names: Collection[str]) -> None:
        """Drop these requests and close their connections. The server may still work on them."""
        for future, name in list(self._name_by_future.items()):
            if name in names:
                future.cancel()
                del self._name_by_future[future]

    def close(self) -> None:
        """Drop all pending requests and end the background thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._cancel_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._name_by_future.clear()

    async def _cancel_tasks(self) -> None:
        requests = asyncio.all_tasks() - {asyncio.current_task()}
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await self._http.aclose()

    async def _send(
        self, name: str, path: str, content: bytes, read: Callable[[Any], tuple[T, ServerCounts]]
    ) -> tuple[T | InfrastructureError, ServerCounts]:
        """Send a request until an attempt succeeds or the retries are used up; return its value and counts."""
        max_retries = self.config.max_retries
        attempt = 0
        async with self._semaphore:
            while True:
                try:
                    async with asyncio.timeout(self.config.timeout_s):
                        answer = await self._post(path, content)
                    value, counts = read(answer)
                    return value, counts + ServerCounts(answers=1, retries=attempt)
                except TimeoutError:
                    failure = InfrastructureError(f"no complete answer in {self.config.timeout_s:g} s")
                except InfrastructureError as error:
                    failure = error
                if attempt == max_retries:
                    return InfrastructureError(
                        f"request {name!r} to {self._http.base_url}{path} failed {attempt + 1} times; last error: "
                        f"{failure}; check the server, or raise timeout_s or max_retries"
                    ), ServerCounts(retries=attempt, failures=1)
                retry_after_s = failure.retry_after_s if isinstance(failure, _RetriedStatusError) else 0.0
                delay = self._compute_delay(name, attempt, retry_after_s)
                attempt += 1
                if self._loop.time() >= self._logged_wait_end:
                    self._logged_wait_end = self._loop.time() + delay
                    _log.warning(
                        f"request {name!r} to {self._http.base_url} failed ({failure}); attempt {attempt + 1} of "
                        f"{max_retries + 1} in {delay:.1f} s"
                    )
                # The request keeps its place in the semaphore, so that a busy server does not get another one instead.
                await asyncio.sleep(delay)

    async def _post(self, path: str, content: bytes) -> Any:
        """Make one attempt; return the JSON value of the answer, with the key masked."""
        body = bytearray()
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.stream("POST", path, content=content, headers=headers) as response:
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > self.config.max_answer_bytes:
                        raise InfrastructureError(
                            f"an answer has more than max_answer_bytes = {self.config.max_answer_bytes}"
                        )
        except httpx2.HTTPError as error:
            # A trace would show the cause, which quotes the server, and the server may quote the key.
            raise InfrastructureError(self._mask_key(f"{type(error).__name__}: {error}")) from None
        if response.status_code in RETRIED_STATUS or response.status_code >= 500:
            retried = _RetriedStatusError(f"status {response.status_code}: {self._excerpt(body)!r}")
            retried.retry_after_s = _parse_retry_after(response.headers.get("retry-after"))
            raise retried
        if not response.is_success:
            raise PolicyError(
                f"{response.url} answered {response.status_code} for model {self.config.model!r}: "
                f"{self._excerpt(body)!r}; it refuses this request, and a retry would not help"
            )
        try:
            answer = json.loads(body)
            if len(self._key) >= MIN_MASKED_KEY_CHARS:
                # The text of the value, because the body may hold the key with JSON escapes.
                text = json.dumps(answer, ensure_ascii=False)
                masked = self._mask_key(text)
                if masked != text:
                    answer = json.loads(masked)
            return answer
        except (ValueError, RecursionError) as error:  # RecursionError: nested too deep for the JSON parser
            raise InfrastructureError(
                f"an answer is not valid JSON: {self._excerpt(body)!r} ({type(error).__name__})"
            ) from error

    def _mask_key(self, text: str) -> str:
        """Replace the key in a text of the server, which may echo the header. Errors are printed and logged."""
        for spelling in self._key_spellings:
            text = text.replace(spelling, "[key]")
        return text

    def _excerpt(self, body: bytes | bytearray) -> str:
        """Return the beginning of an answer. It is cut after the key is masked, so that no part of the key is left."""
        text = self._mask_key(body.decode(errors="replace"))
        for decode in (_decode_json_escapes, unquote, html.unescape):
            decoded = decode(text)
            masked = self._mask_key(decoded)
            if masked != decoded:  # the text held the key in an escaped form
                text = masked
        return text[:EXCERPT_CHARS]

    def _compute_delay(self, name: str, attempt: int, retry_after_s: float) -> float:
        """Return the seconds to wait after attempt number `attempt` (from 0) failed."""
        # The jitter spreads requests that failed together. It is keyed by the name, so that runs repeat.
        jitter = random.Random(stream_seed("backoff", name, attempt)).uniform(0.5, 1.0)
        backoff: float = min(self.config.backoff_s * 2**attempt, self.config.max_backoff_s) * jitter
        return max(backoff, min(retry_after_s, self.config.max_backoff_s))


def _read_key(variable: str) -> str:
    """Return the key in an environment variable, stripped of white space; empty if the variable is not set.

    Raises:
        ConfigError: the value cannot stand in a header. The message does not show the value.
    """
    key = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[!#-\[\]-~]*", key):
        raise ConfigError(
            f"the environment variable {variable} holds spaces, line breaks, quotes or letters that are not ASCII; "
            "expected a key of printable ASCII characters: set it again"
        )
    return key


def _decode_json_escapes(text: str) -> str:
    return _JSON_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def _spell_key(key: str) -> tuple[str, ...]:
    """Return the forms in which an answer may hold a key, longest first: plain, escaped, or in Base64.

    Of a placeholder, which has fewer than `MIN_MASKED_KEY_CHARS`, this is only the plain form.
    """
    if len(key) < MIN_MASKED_KEY_CHARS:
        return (key,) if key else ()
    spellings = {key, quote(key), quote(key, safe=""), html.escape(key), key.replace("/", "\\/"), key.encode().hex()}
    # In Base64 the letters of a key depend on the number of bytes before it modulo 3, as in "Bearer KEY" or "user:KEY".
    # The first and last letters also hold bits of the neighbouring bytes, and are left out.
    for offset in range(3):
        data = bytes(offset) + key.encode()
        # A letter holds 6 bits of the data. These are the letters that hold only bits of the key.
        complete_letters = slice(math.ceil(offset * 8 / 6), len(data) * 8 // 6)
        spellings.add(b64encode(data)[complete_letters].decode())
        spellings.add(urlsafe_b64encode(data)[complete_letters].decode())
    return tuple(sorted(spellings, key=lambda spelling: (-len(spelling), spelling)))


def _warn_of_plain_http(base_url: str) -> None:
    """Warn if texts and the key go to another machine without encryption."""
    url = httpx2.URL(base_url)
    try:
        address = ip_address(url.host)
        is_local = address.is_loopback or address.is_unspecified
    except ValueError:  # the host is a name
        is_local = url.host == "localhost" or url.host.endswith(".localhost")
    if url.scheme == "http" and not is_local:
        warnings.warn(
            f"base_url {base_url} is plain http to another machine: the network in between can read the texts and the "
            "key; use https, or a tunnel to 127.0.0.1",
            stacklevel=3,
        )


def _parse_retry_after(text: str | None) -> float:
    """Return the seconds of a `Retry-After` header; 0 if there is none, or if it holds a date."""
    return float(text) if text is not None and text.strip().isdecimal() else 0.0


def _count_discrepancies(answer: Any, model: object, max_tokens: int | None) -> ServerCounts:
    """Count an answer that names another model than the requested one, or reports an impossible usage."""
    answered_model = answer.get("model")
    is_other = answered_model is not None and not is_version_of(answered_model, model)
    usage_fault = find_usage_fault(answer, max_tokens)
    return ServerCounts(
        other_model=int(is_other),
        false_usage=int(bool(usage_fault)),
        first_model=make_excerpt(answered_model) if is_other else "",
        first_usage=usage_fault,
    )


def is_version_of(answered_model: object, model: object) -> bool:
    """Whether a model's name in an answer is the requested name, or has a date in addition.

    As `gpt-x-2026-05-01` for `gpt-x` or `gpt-x-latest`.
    """
    if answered_model == model:
        return True
    if not isinstance(answered_model, str) or not isinstance(model, str):
        return False
    alias = model.removesuffix("-latest")
    return answered_model.startswith(alias) and _DATE.fullmatch(answered_model[len(alias) :]) is not None


def find_usage_fault(answer: Mapping[str, Any], max_tokens: int | None) -> str:
    """Return the reason why an answer's `usage` cannot be true; empty if it can be true or is missing.

    Args:
        answer: a completion with a valid first choice.
        max_tokens: maximum number of tokens that the request allowed.
    """
    usage = answer.get("usage")
    if usage is None:
        return ""
    if not isinstance(usage, dict):
        return f"usage is {make_excerpt(usage)}"
    counts: dict[str, int] = {}
    for name, minimum in (("prompt_tokens", 1), ("completion_tokens", 0), ("total_tokens", 1)):
        value = usage.get(name)
        if value is None:
            continue
        if not is_integer_within(value, minimum, COUNT_BOUND):
            return f"{name} is {make_excerpt(value)}"
        counts[name] = int(value)
    generated = counts.get("completion_tokens")
    if generated is None:
        return ""
    if max_tokens is not None and generated > max_tokens:
        return f"completion_tokens is {generated} of {max_tokens} granted"
    message = answer["choices"][0].get("message")
    text = (message.get("content") or "") if isinstance(message, dict) else ""
    if generated < math.ceil(len(text) / MAX_TOKEN_CHARS):
        return f"completion_tokens is {generated} for {len(text)} characters"
    if len(counts) == 3 and counts["total_tokens"] != counts["prompt_tokens"] + generated:
        return f"total_tokens is {counts['total_tokens']} of {counts['prompt_tokens']} + {generated}"
    return ""


def get_choice(answer: Any, label: str) -> dict[str, Any]:
    """Return the first choice of a completion.

    Args:
        answer: JSON value of the answer.
        label: name of the answer in error messages, such as "the judge's answer".

    Raises:
        InfrastructureError: the answer has no choice.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise InfrastructureError(f"{label} is {make_excerpt(answer)}; expected an object with one choice")
    return choices[0]


def get_message_text(message: Any, label: str) -> str:
    """Return the text of a choice's message, empty if it is null.

    Args:
        message: JSON value of the message.
        label: name of the answer in error messages, such as "the judge's answer".

    Raises:
        InfrastructureError: the message has no text, or a text with half of a surrogate pair, which no file can hold.
    """
    content = message.get("content", "") if isinstance(message, dict) else message
    if not isinstance(message, dict) or not isinstance(content, str | None):
        raise InfrastructureError(f"{label} has the message {make_excerpt(message)}; expected an object with content")
    try:
        (content or "").encode()
    except UnicodeEncodeError as error:
        raise InfrastructureError(f"{label} has half of a surrogate pair in it: {make_excerpt(content)}") from error
    return content or ""


def make_excerpt(value: Any) -> str:
    """Return the beginning of a JSON value, in quotes and ASCII."""
    return ascii(str(value)[:EXCERPT_CHARS])
