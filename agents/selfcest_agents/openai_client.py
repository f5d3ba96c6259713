"""Named requests to one HTTP server: how many at once, how long each may take, when to try again."""

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

from selfcest_agents.server_counts import ServerCounts, ServerModel, count
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError, is_integer_within
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import Checked, Count, Positive, Size

T = TypeVar("T")

RETRIED_STATUS = frozenset({408, 409, 425, 429})  # and all from 500 on
EXCERPT = 300  # characters of a server's own words in an error
COUNT_BOUND = 2**31  # of tokens that a server may say it counted
LONGEST_TOKEN = 256  # characters; vocabularies hold runs of 128 spaces
MASKED_KEY = 16  # characters; shorter keys are placeholders, as EMPTY, which answers may hold as words
# A config of a stranger may name a variable, and has its value sent to a server of theirs.
KEY_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*_)?API_KEY|SELFCEST_[A-Z0-9_]+")
# Providers name the version of a hosted model by a date, as -2026-05-01, -20260501, @20260501 and -0501.
_DATE = re.compile(r"[-@](?:20[0-9]{2}(?P<dash>-?))?(?:0[1-9]|1[0-2])(?(dash)(?P=dash))(?:0[1-9]|[12][0-9]|3[01])")
_JSON_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
REACH_S = 10.0  # for a connection, at the start
HEAD_S = 2.0  # for what is said to it: a server that is busy is there all the same
_UNREACHED = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.InvalidURL,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerConfig(Checked):
    """Where the server is, and how patient to be with it.

    Attributes:
        base_url: up to the version, as in `http://127.0.0.1:8000/v1`. No password or query can stand in it, since
            messages show it.
        model: the name the server knows it by.
        api_key_variable: environment variable with the key, so that no key stands in a config: a name that ends in
            `API_KEY` or begins with `SELFCEST_`. Unset: none is sent.
        max_concurrent: requests on their way at once; the others wait here.
        timeout_s: seconds from a request's being sent to the last byte of its answer, however it drips.
        max_answer_bytes: of one answer; what is longer is dropped as it comes.
        max_retries: further tries after a time-out, a broken connection or answer, a filter, or a status like 429 or
            503.
        backoff_s, max_backoff_s: the wait before retry k is backoff_s * 2**k, never above max_backoff_s, times a factor
            from [0.5, 1) drawn by the request's name. `Retry-After` can lengthen it up to max_backoff_s.
        max_tokens_field: name of the length limit in a chat request; some hosted models want max_completion_tokens.
        extra: further fields of every request body.
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
                f"base_url is {self.base_url!r}; expected http:// or https://, as http://127.0.0.1:8000/v1"
            )
        if any(char in self.base_url for char in "@?#"):  # not shown: it may be a password
            raise ConfigError(
                "base_url holds an @, ? or #, as of a password or a query; expected an address without them, as "
                "http://127.0.0.1:8000/v1: put the key into the variable that api_key_variable names"
            )
        if not KEY_VARIABLE.fullmatch(self.api_key_variable):
            raise ConfigError(
                f"api_key_variable is {self.api_key_variable!r}, whose value would be sent to {self.base_url}; "
                "expected a name that ends in API_KEY or begins with SELFCEST_; to send another variable's value, "
                "copy it, as SELFCEST_KEY=$NAME, and name that"
            )


def check_reachable(config: ServerConfig) -> None:
    """Look for a server before the first request. Whatever it answers, it is there.

    Raises `ConfigError` if nobody takes a connection at `base_url`: at the start that is a wrong address, or a server
    that was not started, and waiting helps neither.
    """
    try:
        httpx2.head(config.base_url, timeout=httpx2.Timeout(HEAD_S, connect=REACH_S))
    except _UNREACHED as error:
        raise ConfigError(
            f"nobody answers at {config.base_url} ({type(error).__name__}: {error}); start the server, or mend base_url"
        ) from error
    except httpx2.HTTPError:
        pass  # somebody took the connection: what is wrong with the answer the first request will say


class _Busy(InfrastructureError):
    """The server asked for a pause of `seconds`."""

    seconds = 0.0


class Client(Generic[T]):
    """POSTs JSON by name, at most `max_concurrent` at once, each tried until it is answered or hopeless.

    A wait before another try is logged as a warning, which Python prints to the standard error unless told otherwise;
    other requests that fail meanwhile are not.

    Attributes:
        counts: of all requests that ended, see `ServerCounts`; also added to every open tally.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.counts = ServerCounts()
        self._key = _read_key(config.api_key_variable)
        self._spellings = _spellings(self._key)
        _warn_of_plain_http(config.base_url)
        self._http = httpx2.AsyncClient(
            base_url=config.base_url.rstrip("/") + "/",
            # Not compressed: a short answer that unpacks to a long one would pass max_answer_bytes.
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            timeout=None,  # one deadline for the whole, in _send
            limits=httpx2.Limits(max_connections=config.max_concurrent),
        )
        self._gate = asyncio.Semaphore(config.max_concurrent)
        self._said_until = 0.0  # on the loop's clock: the end of the wait that was logged last
        self._futures: dict[Future[tuple[T | InfrastructureError, ServerCounts]], str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="selfcest-client", daemon=True)
        self._thread.start()

    def submit(self, name: str, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> None:
        """Queue one POST.

        Args:
            name: of the request; it also keys the jitter of its retries.
            path: under the base URL.
            body: what is sent, as JSON.
            read: makes of the answer's JSON value what `poll` returns. It raises `InfrastructureError` for an answer
                that may be better next time, `PolicyError` for one that will not.

        Raises:
            PolicyError: the body holds half of a surrogate pair, which is no text.
        """
        sent = {**body, **self.config.extra}
        grant = body.get(self.config.max_tokens_field, body.get("max_tokens"))

        def read_counted(answer: Any) -> tuple[T, ServerCounts]:
            value = read(answer)  # first: it says what is wrong with an answer that is none
            return value, _doubts(answer, sent.get("model"), grant)

        try:
            content = json.dumps(sent, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            found = error.object[error.start : error.end]
            raise PolicyError(
                f"request {name!r} has half of a surrogate pair in it, {found!a}; clean the texts"
            ) from error
        self._futures[asyncio.run_coroutine_threadsafe(self._send(name, path, content, read_counted), self._loop)] = (
            name
        )

    def poll(self) -> list[tuple[str, T | InfrastructureError]]:
        """Wait for an answer; return all that came by name, `[]` if none is awaited.

        An `InfrastructureError` stands for a request that failed once more than `max_retries`.

        Raises:
            PolicyError: a request that the server refuses, or an answer that shows it to be of the wrong kind.
        """
        done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
        answers = []
        for future in done:
            name = self._futures.pop(future)
            answer, counts = future.result()
            self.counts += counts
            count({ServerModel(self.config.base_url, self.config.model): counts})
            answers.append((name, answer))
        return answers

    def cancel(self, names: Collection[str]) -> None:
        """Forget these requests, and hang up on those on their way. A server may go on with them."""
        for future in [future for future, name in self._futures.items() if name in names]:
            future.cancel()
            del self._futures[future]

    def close(self) -> None:
        """Drop what waits and what is on its way."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._futures.clear()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._http.aclose()

    async def _send(
        self, name: str, path: str, content: bytes, read: Callable[[Any], tuple[T, ServerCounts]]
    ) -> tuple[T | InfrastructureError, ServerCounts]:
        config, attempt = self.config, 0
        async with self._gate:
            while True:
                try:
                    async with asyncio.timeout(config.timeout_s):
                        answer = await self._try(path, content)
                    value, counts = read(answer)
                    return value, counts + ServerCounts(answers=1, retries=attempt)
                except TimeoutError:
                    reason = InfrastructureError(f"no whole answer in {config.timeout_s:g} s")
                except InfrastructureError as error:
                    reason = error
                if attempt == config.max_retries:
                    return InfrastructureError(
                        f"request {name!r} to {self._http.base_url}{path} failed {attempt + 1} times, at last by "
                        f"{reason}; look at the server, or raise timeout_s or max_retries"
                    ), ServerCounts(retries=attempt, failures=1)
                delay = self._delay(name, attempt, reason.seconds if isinstance(reason, _Busy) else 0.0)
                attempt += 1
                if self._loop.time() >= self._said_until:
                    self._said_until = self._loop.time() + delay
                    _log.warning(
                        "request %r to %s failed (%s); try %d of %d in %.1f s",
                        *(name, self._http.base_url, reason, attempt + 1, config.max_retries + 1, delay),
                    )
                await asyncio.sleep(delay)

    async def _try(self, path: str, content: bytes) -> Any:
        body, headers = bytearray(), {"Content-Type": "application/json"}
        try:
            async with self._http.stream("POST", path, content=content, headers=headers) as response:
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > self.config.max_answer_bytes:
                        raise InfrastructureError(
                            f"an answer of more than max_answer_bytes = {self.config.max_answer_bytes}"
                        )
        except httpx2.HTTPError as error:
            # Without its cause, which a trace would show: it quotes the server, and the server may quote the key.
            raise InfrastructureError(self._masked(f"{type(error).__name__}: {error}")) from None
        if response.status_code in RETRIED_STATUS or response.status_code >= 500:
            busy = _Busy(f"status {response.status_code}: {self._excerpt(body)!r}")
            busy.seconds = _seconds(response.headers.get("retry-after"))
            raise busy
        if not response.is_success:
            raise PolicyError(
                f"{response.url} answered {response.status_code} for model {self.config.model!r}: "
                f"{self._excerpt(body)!r}; it will "
                "not take this request however often it is sent"
            )
        try:
            answer = json.loads(body)
            if len(self._key) >= MASKED_KEY:
                text = json.dumps(answer, ensure_ascii=False)
                masked = self._masked(text)
                if masked != text:
                    answer = json.loads(masked)
            return answer
        except (ValueError, RecursionError) as error:  # no JSON, or nested deeper than can be read
            raise InfrastructureError(
                f"an answer that is no JSON: {self._excerpt(body)!r} ({type(error).__name__})"
            ) from error

    def _masked(self, text: str) -> str:
        """A text of the server without the key: a server may echo the header, and errors are printed and logged."""
        for spelling in self._spellings:
            text = text.replace(spelling, "[key]")
        return text

    def _excerpt(self, body: bytes | bytearray) -> str:
        """The beginning of an answer. It is cut after the key is masked, so that no part of the key is left."""
        text = self._masked(body.decode(errors="replace"))
        for decode in (_decode_json_escapes, unquote, html.unescape):
            decoded = decode(text)
            masked = self._masked(decoded)
            if masked != decoded:  # the key stood there in other letters
                text = masked
        return text[:EXCERPT]

    def _delay(self, name: str, attempt: int, asked: float) -> float:
        config = self.config
        jitter = random.Random(stream_seed("backoff", name, attempt)).uniform(0.5, 1.0)
        own: float = min(config.backoff_s * 2**attempt, config.max_backoff_s) * jitter
        return max(own, min(asked, config.max_backoff_s))


def _read_key(variable: str) -> str:
    """The key in an environment variable without the spaces around it; empty: none is sent.

    Raises:
        ConfigError: what is there cannot stand in a header. The message does not show it.
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


def _spellings(key: str) -> tuple[str, ...]:
    """The ways in which an answer may spell a key, longest first: plain, escaped, or in Base64.

    A short key is a placeholder, and only its own spelling counts.
    """
    if len(key) < MASKED_KEY:
        return (key,) if key else ()
    spellings = {key, quote(key), quote(key, safe=""), html.escape(key), key.replace("/", "\\/"), key.encode().hex()}
    # In Base64 the letters of a key depend on how many bytes come before it, as in "Bearer KEY" or "user:KEY". The
    # first and last letters hold bits of its neighbours too, and are left out.
    for before in range(3):
        data = bytes(before) + key.encode()
        first = (0, 2, 3)[before]
        whole = slice(first, len(data) * 8 // 6)
        spellings |= {b64encode(data)[whole].decode(), urlsafe_b64encode(data)[whole].decode()}
    return tuple(sorted(spellings, key=lambda spelling: (-len(spelling), spelling)))


def _warn_of_plain_http(base_url: str) -> None:
    """Warn if texts and the key go to another machine without encryption."""
    url = httpx2.URL(base_url)
    try:
        address = ip_address(url.host)
        here = address.is_loopback or address.is_unspecified
    except ValueError:  # a name
        here = url.host == "localhost" or url.host.endswith(".localhost")
    if url.scheme == "http" and not here:
        warnings.warn(
            f"base_url {base_url} is plain http to another machine: whoever is on the way can read the texts and the "
            "key; use https, or a tunnel to 127.0.0.1",
            stacklevel=3,
        )


def _seconds(text: str | None) -> float:
    """`Retry-After` in seconds; its other form, a date, is taken for nothing asked."""
    return float(text) if text is not None and text.strip().isdecimal() else 0.0


def _doubts(answer: Any, model: object, grant: int | None) -> ServerCounts:
    """What an answer says of itself that is not as it was asked."""
    named = answer.get("model")
    fault = usage_fault(answer, grant)
    other = named is not None and not is_version_of(named, model)
    return ServerCounts(
        other_model=int(other),
        false_usage=int(bool(fault)),
        first_model=excerpt(named) if other else "",
        first_usage=fault,
    )


def is_version_of(named: object, model: object) -> bool:
    """Whether a server's name for a model is the one asked for, or that with a date: `gpt-x-2026-05-01` for `gpt-x`."""
    if named == model:
        return True
    if not isinstance(named, str) or not isinstance(model, str):
        return False
    alias = model.removesuffix("-latest")
    return named.startswith(alias) and _DATE.fullmatch(named[len(alias) :]) is not None


def usage_fault(answer: Mapping[str, Any], grant: int | None) -> str:
    """Why an answer's `usage` cannot be true; empty where it can, or where there is none.

    Args:
        answer: a completion whose first choice has been found right.
        grant: tokens that it was allowed to generate at most.
    """
    usage = answer.get("usage")
    if usage is None:
        return ""
    if not isinstance(usage, dict):
        return f"usage is {excerpt(usage)}"
    counts: dict[str, int] = {}
    for name, least in (("prompt_tokens", 1), ("completion_tokens", 0), ("total_tokens", 1)):
        value = usage.get(name)
        if value is not None and not is_integer_within(value, least, COUNT_BOUND):
            return f"{name} is {excerpt(value)}"
        if value is not None:
            counts[name] = int(value)
    generated = counts.get("completion_tokens")
    if generated is None:
        return ""
    if grant is not None and generated > grant:
        return f"completion_tokens is {generated} of {grant} granted"
    message = answer["choices"][0].get("message")
    text = (message.get("content") or "") if isinstance(message, dict) else ""
    if generated < math.ceil(len(text) / LONGEST_TOKEN):
        return f"completion_tokens is {generated} for {len(text)} characters"
    if len(counts) == 3 and counts["total_tokens"] != counts["prompt_tokens"] + generated:
        return f"total_tokens is {counts['total_tokens']} of {counts['prompt_tokens']} + {generated}"
    return ""


def choice_of(answer: Any, what: str) -> dict[str, Any]:
    """The first choice of a completion. Raises `InfrastructureError` where `what`, a name for the answer, has none."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise InfrastructureError(f"{what} is {excerpt(answer)}; expected an object with one choice")
    return choices[0]


def text_of(message: Any, what: str) -> str:
    """The text of a choice's message, empty where it is null.

    Raises `InfrastructureError` where there is none, or one with half of a surrogate pair, which no file can hold.
    """
    content = message.get("content", "") if isinstance(message, dict) else message
    if not isinstance(message, dict) or not isinstance(content, str | None):
        raise InfrastructureError(f"{what} has the message {excerpt(message)}; expected an object with content")
    try:
        (content or "").encode()
    except UnicodeEncodeError as error:
        raise InfrastructureError(f"{what} has half of a surrogate pair in it: {excerpt(content)}") from error
    return content or ""


def excerpt(value: Any) -> str:
    """The beginning of a JSON value, in quotes and ASCII."""
    return ascii(str(value)[:EXCERPT])
