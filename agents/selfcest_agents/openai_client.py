"""Named requests to one HTTP server: how many at once, how long each may take, when to try again."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import httpx2

from selfcest_env.errors import ConfigError, PolicyError
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import Checked, Count, Positive, Size

RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
EXCERPT = 300  # characters of a server's own words in an error


@dataclass(frozen=True)
class ServerConfig(Checked):
    """Where the server is, and how patient to be with it.

    Attributes:
        base_url: up to the version, as in `http://127.0.0.1:8000/v1`.
        model: the name the server knows it by.
        api_key_variable: environment variable with the key, so that no key stands in a config. Unset: none is sent.
        max_concurrent: requests on their way at once; the others wait here.
        timeout_s: seconds to wait for a connection, and then for an answer.
        max_retries: further tries after a time-out, a broken connection or answer, or a status like 429 or 503.
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


class _Retry(Exception):
    """The server may do better next time; `after` is how many seconds it asked for."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


class Client:
    """POSTs JSON by name, at most `max_concurrent` at once, each tried until it is answered or hopeless.

    Attributes:
        num_retries: tries beyond the first of all answers that came. A server may have charged for them.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.num_retries = 0
        key = os.environ.get(config.api_key_variable)
        self._http = httpx2.Client(
            base_url=config.base_url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(config.timeout_s, pool=None),
            limits=httpx2.Limits(max_connections=config.max_concurrent),
        )
        self._pool = ThreadPoolExecutor(config.max_concurrent, thread_name_prefix="selfcest-client")
        self._futures: dict[Future[tuple[Any, int]], str] = {}
        self._closing = threading.Event()

    def submit(self, name: str, path: str, body: Mapping[str, Any]) -> None:
        """Queue one POST to `path` under the base URL. The name also keys the jitter of its retries."""
        self._futures[self._pool.submit(self._send, name, path, {**body, **self.config.extra})] = name

    def poll(self) -> list[tuple[str, Any]]:
        """Wait for an answer; return all that came, as (name, JSON value), `[]` if none is awaited.

        Raises:
            PolicyError: a request that the server refuses, or that failed once more than `max_retries`.
        """
        done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
        answers = []
        for future in done:
            name = self._futures.pop(future)
            answer, retries = future.result()
            self.num_retries += retries
            answers.append((name, answer))
        return answers

    def cancel(self, names: Collection[str]) -> None:
        """Forget these requests. What is already on its way is not called back; its answer is dropped."""
        for future in [future for future, name in self._futures.items() if name in names]:
            future.cancel()
            del self._futures[future]

    def close(self) -> None:
        """Drop what waits, and let what is on its way end."""
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)
        self._futures.clear()
        self._http.close()

    def _send(self, name: str, path: str, body: Mapping[str, Any]) -> tuple[Any, int]:
        attempt = 0
        while True:
            try:
                return self._try(path, body), attempt
            except _Retry as reason:
                hopeless = attempt == self.config.max_retries
                if hopeless or self._closing.wait(self._delay(name, attempt, reason.after)):
                    raise PolicyError(
                        f"request {name!r} to {self._http.base_url}{path} failed {attempt + 1} times, at last by "
                        f"{reason}; look at the server, or raise timeout_s or max_retries"
                    ) from reason
            attempt += 1

    def _try(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            response = self._http.post(path, json=body)
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise _Retry(f"{type(error).__name__}: {error}") from error
        said = response.text[:EXCERPT]
        if response.status_code in RETRIED_STATUS:
            raise _Retry(f"status {response.status_code}: {said}", _seconds(response.headers.get("retry-after")))
        if not response.is_success:
            raise PolicyError(
                f"{response.url} answered {response.status_code} for model {self.config.model!r}: {said!r}; it will "
                "not take this request however often it is sent"
            )
        try:
            return response.json()
        except ValueError as error:
            raise _Retry(f"an answer that is no JSON: {said!r}") from error

    def _delay(self, name: str, attempt: int, asked: float) -> float:
        config = self.config
        jitter = random.Random(stream_seed("backoff", name, attempt)).uniform(0.5, 1.0)
        own: float = min(config.backoff_s * 2**attempt, config.max_backoff_s) * jitter
        return max(own, min(asked, config.max_backoff_s))


def _seconds(text: str | None) -> float:
    """`Retry-After` in seconds; its other form, a date, is taken for nothing asked."""
    return float(text) if text is not None and text.strip().isdecimal() else 0.0


def choice_of(answer: Any, what: str) -> dict[str, Any]:
    """The first choice of a completion. Raises `PolicyError` where `what`, a name for the answer, has none."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise PolicyError(f"{what} is {str(answer)[:EXCERPT]!r}; expected an object with one choice")
    return choices[0]
