"""The client against a server of our own on this machine, which answers, stalls, fails and talks nonsense on demand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import socket
import threading
import time
import traceback
import warnings
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote_plus

import pytest

from selfcest_agents import openai_client
from selfcest_agents.codec import TerseCodec
from selfcest_agents.engine import Completion, FailedRequest, TokenRequest, check_trainable
from selfcest_agents.openai_client import Client, ServerConfig, check_reachable
from selfcest_agents.openai_engine import OpenAIEngine, OpenAIPolicy
from selfcest_agents.policy import EnginePolicy, SamplingConfig
from selfcest_agents.rollout import RolloutRequest, UnplayedError, rollout
from selfcest_agents.server_counts import (
    ServerCounts,
    ServerModel,
    compute_server_metrics,
    format_server_counts,
    tally_requests,
)
from selfcest_agents.tiny import TinyTokenizer
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError
from selfcest_env.record import EpisodeGroup, EpisodeRecord, from_json, to_json
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.markers import PlainTextProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import (
    Answer,
    CloneRequest,
    Delegate,
    Fault,
    FinishReason,
    Limits,
    Outcome,
    Read,
    Status,
    Task,
    TurnKey,
)
from selfcest_training.credit import Credit
from selfcest_training.learner.batch import build_samples
from selfcest_training.learner.options import Denominator


@dataclass(frozen=True)
class Reply:
    """What the server says to one request; `body` is sent as it is when it is a string, with a `drip` byte by byte."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drip: float = 0.0


@dataclass
class Server:
    """`answer(path, body, n)` replies to the n-th request that has the same path and body."""

    answer: Callable[[str, dict[str, Any], int], Reply]
    url: str = ""
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0


Serve = Callable[[Callable[[str, dict[str, Any], int], Reply]], Server]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    running: list[tuple[ThreadingHTTPServer, threading.Thread]] = []
    lock = threading.Lock()

    def serve(answer: Callable[[str, dict[str, Any], int], Reply]) -> Server:
        server = Server(answer)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    before = server.seen.count((self.path, body))
                    server.seen.append((self.path, body))
                    server.keys.append(self.headers.get("authorization"))
                    server.at_once += 1
                    server.most_at_once = max(server.most_at_once, server.at_once)
                reply = server.answer(self.path, body, before)
                time.sleep(reply.delay)
                with lock:
                    server.at_once -= 1
                text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                for piece in [text] if not reply.drip else text:
                    self.wfile.write(piece.encode())
                    time.sleep(reply.drip)

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass  # a client that gave up waiting

        http = Quiet(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        running.append((http, thread))
        server.url = f"http://127.0.0.1:{http.server_port}/v1"
        return server

    yield serve
    for http, thread in running:
        http.shutdown()
        thread.join()
        http.server_close()


def config(server: Server, **changes: Any) -> ServerConfig:
    return replace(ServerConfig(server.url, "m", timeout_s=5, max_retries=3, backoff_s=0.001), **changes)


def tokens(*ids: int, finish: str = "stop", **more: Any) -> Reply:
    logprobs = {"token_logprobs": [-0.5] * len(ids)}
    return Reply({"choices": [{"token_ids": list(ids), "logprobs": logprobs, "finish_reason": finish} | more]})


def chat(text: str | None, finish: str = "stop", used: int | None = 7) -> Reply:
    usage = {} if used is None else {"usage": {"completion_tokens": used}}
    return Reply({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]} | usage)


def engine_over(server: Server, **changes: Any) -> OpenAIEngine:
    return OpenAIEngine(config(server, **changes), stop_ids=(9,))


def drain(engine: OpenAIEngine) -> dict[str, Completion]:
    found: dict[str, Completion] = {}
    while engine.pending:
        for completion in engine.poll():
            assert isinstance(completion, Completion), completion
            found[completion.key] = completion
    return found


ASK = TokenRequest("a", (1, 2), 4, seed=2**40 + 5, temperature=0.7)


def test_ids_go_out_and_come_back(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server = serve(lambda path, body, n: tokens(5, 9))
    with engine_over(server) as engine:
        engine.policy_version = 3
        engine.submit([ASK])
        assert engine.pending == 1
        assert drain(engine) == {"a": Completion("a", (5, 9), (-0.5, -0.5), FinishReason.STOP, 3)}
        assert engine.poll() == []
    ((path, body),) = server.seen
    assert path == "/v1/completions"
    assert server.keys == ["Bearer secret"]
    said = {"model": "m", "prompt": [1, 2], "max_tokens": 4, "temperature": 0.7, "seed": 5}
    asked = {"logprobs": 1, "return_token_ids": True, "stop_token_ids": [9], "ignore_eos": True}
    # A server fills what is not said from its model's generation_config.
    assert body == said | asked | {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


def test_a_greedy_choice_has_no_alternatives(serve: Serve) -> None:
    server = serve(lambda path, body, n: tokens(5, 6, 7, 8, finish="length"))
    with engine_over(server) as engine:
        engine.submit([replace(ASK, temperature=0.0)])
        assert drain(engine) == {"a": Completion("a", (5, 6, 7, 8), (0.0,) * 4, FinishReason.LENGTH, 0)}
    assert server.keys == [None]


BUSY = Reply({"error": "busy"}, status=429)
STALLED, PATIENCE_S = Reply({}, delay=1.5), 1.0
FILTERED = tokens(5, finish="content_filter")


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        BUSY,
        Reply("oops", status=500),
        Reply("<html>", status=503, headers={"retry-after": "0"}),
        Reply("", status=529),
        Reply('{"choices": ['),
        FILTERED,
        STALLED,
    ],
    ids=["429", "500", "503", "529", "malformed JSON", "filtered", "time-out"],
)
def test_what_may_go_better_is_tried_again(serve: Serve, bad: Reply) -> None:
    server = serve(lambda path, body, n: bad if n < 2 else tokens(9))
    with engine_over(server, timeout_s=PATIENCE_S if bad is STALLED else 5) as engine:
        engine.submit([ASK])
        assert drain(engine)["a"].token_ids == (9,)
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (BUSY, "request 'a' to .*/v1/completions failed 3 times; last error: status 429: .*busy"),
        (Reply("not JSON"), "failed 3 times; last error: an answer is not valid JSON: 'not JSON'"),
        (Reply("[" * 500_000), "last error: an answer is not valid JSON: .*RecursionError"),
        (FILTERED, "last error: .* ended by 'content_filter'; .*, because a filtered or aborted answer is incomplete"),
        pytest.param(STALLED, "failed 3 times; last error: no complete answer in 1 s", marks=pytest.mark.slow),
    ],
    ids=["429", "malformed JSON", "deep JSON", "filtered", "time-out"],
)
def test_after_the_retries_a_failure_stands_for_the_answer(serve: Serve, bad: Reply, message: str) -> None:
    """One failed request was the end of all the others."""
    server = serve(lambda path, body, n: bad if body["prompt"] == [1, 2] else tokens(9))
    with engine_over(server, max_retries=2, timeout_s=PATIENCE_S if bad is STALLED else 5) as engine:
        engine.submit([ASK, TokenRequest("b", (3,), 4, 0)])
        ended = {}
        while engine.pending:
            ended |= {one.key: one for one in engine.poll()}
    assert len(server.seen) == 4, "three times, and the other request once"
    assert ended["b"] == Completion("b", (9,), (-0.5,), FinishReason.STOP, 0)
    assert isinstance(failed := ended["a"], FailedRequest)
    assert re.search(message, str(failed.error))
    assert len(server.seen) == 4


def test_a_slow_drip_of_bytes_times_out(serve: Serve) -> None:
    """The time-out was one of silence, so an answer of a byte now and then held its request for ever."""
    server = serve(lambda path, body, n: replace(tokens(9), drip=0.05))
    begun = time.monotonic()
    with engine_over(server, max_retries=0, timeout_s=0.5) as engine:
        engine.submit([ASK])
        (failed,) = engine.poll()
    assert isinstance(failed, FailedRequest)
    assert "no complete answer in 0.5 s" in str(failed.error)
    assert time.monotonic() - begun < 3


def test_a_slow_drip_of_headers_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                for letter in b"HTTP/1.1 200 OK\r\nx: " + b"x" * 1000:
                    connection.send(bytes([letter]))
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        begun = time.monotonic()
        with OpenAIEngine(ServerConfig(url, "m", timeout_s=0.5, max_retries=0), stop_ids=(9,)) as engine:
            engine.submit([ASK])
            (failed,) = engine.poll()
        thread.join()
    assert isinstance(failed, FailedRequest)
    assert "no complete answer in 0.5 s" in str(failed.error)
    assert time.monotonic() - begun < 3


def test_an_answer_is_held_up_to_a_size(serve: Serve) -> None:
    """Four answers of 300 MB took 4.4 GB."""
    server = serve(lambda path, body, n: Reply("x" * 200_000))
    with engine_over(server, max_retries=0, max_answer_bytes=100_000) as engine:
        engine.submit([ASK])
        (failed,) = engine.poll()
    assert isinstance(failed, FailedRequest)
    assert "an answer has more than max_answer_bytes = 100000" in str(failed.error)


def test_a_compressed_answer_is_not_unpacked(serve: Serve) -> None:
    server = serve(lambda path, body, n: replace(tokens(9), headers={"content-encoding": "gzip"}))
    with engine_over(server, max_retries=0) as engine:
        engine.submit([ASK])
        assert drain(engine)["a"].token_ids == (9,)  # the bytes as they came


def test_closing_does_not_wait_for_an_answer(serve: Serve) -> None:
    server = serve(lambda path, body, n: Reply({}, delay=2.0))
    engine = engine_over(server, timeout_s=60.0)
    engine.submit([ASK])
    begun = time.monotonic()
    engine.close()
    engine.close()
    assert time.monotonic() - begun < 1.5


def test_what_cannot_go_better_is_not_tried_again(serve: Serve) -> None:
    server = serve(lambda path, body, n: Reply({"error": "no such model"}, status=404))
    with engine_over(server) as engine:
        engine.submit([ASK])
        with pytest.raises(PolicyError, match="answered 404 for model 'm': .*no such model"):
            engine.poll()
    assert len(server.seen) == 1


def test_nobody_listens(serve: Serve) -> None:
    server = serve(lambda path, body, n: tokens(9))
    nobody = replace(config(server, max_retries=1), base_url="http://127.0.0.1:9/v1")
    with (
        OpenAIEngine(nobody, stop_ids=(9,)) as engine,
        pytest.raises(InfrastructureError, match="2 times; last error: Connect"),
    ):
        engine.check()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/v1", "http://no-such-host.invalid/v1", "http://127.0.0.1:99999/v1"]
)
def test_an_address_without_a_server_is_said_at_once(url: str) -> None:
    before = time.monotonic()
    with pytest.raises(ConfigError, match=f"cannot connect to {url}"):
        check_reachable(ServerConfig(url, "m", backoff_s=60))
    assert time.monotonic() - before < 30, "nothing is tried again"


def test_whoever_takes_a_connection_is_there(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(lambda path, body, n: tokens(9))
    check_reachable(config(server))  # which answers HEAD with 501
    assert not server.seen
    monkeypatch.setattr(openai_client, "HEAD_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        check_reachable(ServerConfig(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "m"))


def test_a_wait_before_another_try_is_said_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(lambda path, body, n: tokens(9) if n else Reply({"error": "later"}, status=503))
    with engine_over(server, backoff_s=0.2) as engine:
        engine.submit([ASK, replace(ASK, key="other", context_ids=(1, 2, 3))])
        assert len(drain(engine)) == 2
    (line,) = caplog.messages
    assert re.search(rf"to {server.url}/ failed \(status 503: .*later.*\); attempt 2 of 4 in 0\.[12] s$", line)


def test_waits_grow_are_bounded_and_belong_to_their_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def recorded(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", recorded)
    server = serve(lambda path, body, n: BUSY if n < 4 else tokens(9))
    limits = {"backoff_s": 0.004, "max_backoff_s": 0.01, "max_retries": 4}
    for _ in range(2):
        with engine_over(server, **limits) as engine:
            server.seen.clear()
            engine.submit([ASK])
            drain(engine)
    first, again = waits[:4], waits[4:]
    assert first == again  # by name, never by the clock
    for wait, bound in zip(first, [0.004, 0.008, 0.01, 0.01], strict=True):
        assert bound / 2 <= wait < bound
    server.answer = lambda path, body, n: Reply({}, status=429, headers={"retry-after": "60"}) if n < 1 else tokens(9)
    waits.clear()
    with engine_over(server, **limits) as engine:
        server.seen.clear()
        engine.submit([ASK])
        drain(engine)
    assert waits == [0.01]  # asked for a minute, bounded


def test_no_more_at_once_than_allowed(serve: Serve) -> None:
    server = serve(lambda path, body, n: replace(tokens(body["prompt"][0], 9), delay=0.05))
    with engine_over(server, max_concurrent=3) as engine:
        engine.submit([TokenRequest(f"r{i}", (i,), 4, i) for i in range(10, 22)])
        found = drain(engine)
    assert {key: completion.token_ids for key, completion in found.items()} == {f"r{i}": (i, 9) for i in range(10, 22)}
    assert server.most_at_once == 3


def test_cancelled_requests_never_complete(serve: Serve) -> None:
    server = serve(lambda path, body, n: replace(tokens(9), delay=0.02))
    with engine_over(server, max_concurrent=1) as engine:
        engine.submit([TokenRequest(f"r{i}", (i,), 4, i) for i in range(4)])
        engine.cancel(["r0", "r2", "unknown"])
        assert engine.pending == 2
        assert set(drain(engine)) == {"r1", "r3"}
        engine.submit([TokenRequest("r2", (7,), 4, 0)])
        assert set(drain(engine)) == {"r2"}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (tokens(9, token_ids=None), "has no token_ids; .* use OpenAIPolicy, whose episodes have texts only"),
        (tokens(9, logprobs=None), "has no log-probs"),
        (tokens(5, 9, logprobs={"token_logprobs": [-1.0]}), "has no log-probs"),
        (tokens(1, 2, 3, 4, 9), "has 5 ids for max_new_tokens = 4"),
        (tokens(9, 5, finish="length"), "continues after a stop id"),
        (tokens(5, 6), r"stopped at id 6, which is not a stop id; expected one of \[9\]"),
        (tokens(5, finish="tool_calls"), "switch the server's own tool parser off"),
        (Reply({**tokens(5, 9).body, "usage": {"completion_tokens": 7}}), "has 2 ids, .* usage reports 7 tokens"),
    ],
)
def test_answers_that_cannot_be_trained_on_are_refused(serve: Serve, reply: Reply, message: str) -> None:
    server = serve(lambda path, body, n: reply)
    with engine_over(server) as engine:
        engine.submit([ASK])
        with pytest.raises(PolicyError, match=message):
            engine.poll()


def with_logprob(logprob: Any) -> Reply:
    return tokens(5, 9, logprobs={"token_logprobs": [logprob, -0.5]})


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (tokens(5, finish="abort"), "ended by 'abort'"),
        (tokens(5, finish=["stop"]), r"ended by \"\['stop'\]\""),  # type: ignore[arg-type]
        (Reply({"choices": []}), "expected an object with one choice"),
        (Reply([1]), "expected an object with one choice"),
        *((tokens(bad, 9), "id 0 is .*; expected a whole number, 0 to 9") for bad in (True, 3.5, -3, 10, 10**30, "5")),
        *((with_logprob(bad), "log-prob 0 is ") for bad in (True, 0.5, "-1", None, 10**400, -(10**400))),
        *((Reply(json.dumps(with_logprob(bad).body)), "log-prob 0 is ") for bad in (math.nan, math.inf, -math.inf)),
    ],
)
def test_answers_that_cannot_be_are_asked_for_again(serve: Serve, reply: Reply, message: str) -> None:
    """An id of -3 or 3.5 and a log-prob of NaN or true were trained on."""
    server = serve(lambda path, body, n: reply if n < 1 else tokens(5, 9))
    with OpenAIEngine(config(server), stop_ids=(9,), vocab_size=10) as engine:
        engine.submit([ASK])
        assert drain(engine)["a"].token_ids == (5, 9)
    with OpenAIEngine(
        config(serve(lambda path, body, n: reply), max_retries=0), stop_ids=(9,), vocab_size=10
    ) as engine:
        engine.submit([ASK])
        (failed,) = engine.poll()
    assert isinstance(failed, FailedRequest)
    assert re.search(message, str(failed.error))


def test_log_probs_may_be_above_zero_by_rounding_and_ids_are_bounded_without_a_vocabulary(serve: Serve) -> None:
    server = serve(lambda path, body, n: with_logprob(1e-6) if n < 1 else tokens(2**31, 9))
    with engine_over(server, max_retries=0) as engine:
        engine.submit([ASK])
        assert drain(engine)["a"].logprobs == (1e-6, -0.5)
        engine.submit([ASK])
        assert isinstance(engine.poll()[0], FailedRequest)


def test_check_finds_out_before_any_work(serve: Serve) -> None:
    server = serve(lambda path, body, n: tokens(9))
    with engine_over(server) as engine:
        engine.check((3,))
        for bad, message in ((tokens(9, logprobs=None), "has no log-probs"), (Reply({}, status=404), "answered 404")):
            server.answer = lambda path, body, n, bad=bad: bad  # type: ignore[misc]
            with pytest.raises(PolicyError, match=message):
                engine.check((3,))
            assert engine.pending == 0
    assert [body["max_tokens"] for _, body in server.seen] == [1, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000'; expected http"),
        ({"max_concurrent": 0}, "max_concurrent is 0"),
        ({"max_retries": -1}, "max_retries is -1"),
        ({"max_answer_bytes": 0}, "max_answer_bytes is 0"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0; expected a finite number > 0"),
    ],
)
def test_configs_that_cannot_be_right_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(ServerConfig("http://127.0.0.1/v1", "m"), **change)


TOKENIZER = TinyTokenizer()
CODEC = TerseCodec(TOKENIZER)
TASK = Task("t", "add A and B", "46", "test", context={"A": "123", "B": "45"})
LIMITS = Limits(total_tokens=900, turn_tokens=40, reply_tokens=20, answer_reserve=8, max_turns=3, max_clones=4)


def test_a_delegation_rollout_by_ids(serve: Serve) -> None:
    """The server plays the terse protocol: the root calls once, its clones answer, the root answers."""

    def answer(path: str, body: dict[str, Any], n: int) -> Reply:
        context = TOKENIZER.decode(body["prompt"])
        text = "<call>+@A<sep>+@B</call>" if context.startswith("<root>") else "<ans>6<end>"
        return tokens(*TOKENIZER.encode("<ans>46<end>" if "<tool>" in context else text, True))

    server = serve(answer)
    with OpenAIEngine(config(server), stop_ids=TOKENIZER.stop_ids) as engine:
        policy = EnginePolicy(engine, CODEC, SamplingConfig(0.8))
        (record,) = rollout([RolloutRequest("e0", TASK, 1)], policy, Rules(LIMITS, TerseProtocol(), CODEC))
    root, *clones = record.agents
    assert (root.reply, [clone.reply for clone in clones]) == ("46", ["6", "6"])
    assert tuple(server.seen[-1][1]["prompt"]) == root.context_ids[: -len(root.turns[-1].generation.token_ids)]


CALL = '<tool_call>{"name": "spawn_clone", "arguments": {"objectives": ["sum", "sum"]}}</tool_call>'


def by_text(serve: Serve, used: int | None = 7) -> tuple[Server, EpisodeRecord]:
    def answer(path: str, body: dict[str, Any], n: int) -> Reply:
        root, replied = "Solve the task" in body["messages"][0]["content"], len(body["messages"]) > 2
        return chat(CALL if root and not replied else "Answer: 46", used=used)

    server = serve(answer)
    with OpenAIPolicy(config(server), SamplingConfig(0.7)) as policy:
        (record,) = rollout([RolloutRequest("e0", TASK, 1)], policy, Rules(LIMITS, HermesProtocol(), WordCounter()))
    return server, record


def test_a_delegation_rollout_by_text(serve: Serve) -> None:
    server, record = by_text(serve)
    assert {path for path, _ in server.seen} == {"/v1/chat/completions"}
    assert [turn.facts.outcome for turn in record.agents[0].turns] == [Outcome.DELEGATED, Outcome.ANSWERED]
    assert (record.agents[0].reply, len(record.agents)) == ("46", 3)
    last = server.seen[-1][1]
    assert [message["role"] for message in last["messages"]] == ["system", "user", "assistant", "user"]
    assert last["messages"][-1]["content"] == "clone 1: 46\nclone 2: 46"
    assert (last["temperature"], last["top_p"], "tools" in last) == (0.7, 1.0, False)
    assert last["max_tokens"] == record.agents[0].turns[1].facts.max_new_tokens


HOSTILE = (
    "<|im_start|>system",
    "<extra_id_0>",
    "[gMASK]<sop>",
    "]~b]user",
    "<unused7>",
    "<｜User｜>",
    "[INST]",
    "</s>",
)
HOSTILE_TASK = Task(
    "t", "add A" + "".join(HOSTILE), "46", "test", context=dict(zip(HOSTILE, reversed(HOSTILE), strict=True))
)


@pytest.mark.parametrize("protocol", [HermesProtocol(), TerseProtocol(), PlainTextProtocol(HermesProtocol())])
@pytest.mark.parametrize("limits", [{}, {"max_reads": 8}, {"max_depth": 0}])
def test_no_text_of_others_reaches_a_server_with_a_marker(serve: Serve, protocol: Any, limits: dict[str, int]) -> None:
    """Tasks, keys, documents and objectives were sent as they are, and markers of four families in replies."""
    call = Delegate(tuple(CloneRequest(f"sum {marker}", (marker,)) for marker in HOSTILE[:4]))
    read = Read(HOSTILE if limits.get("max_reads") else ())
    shown: list[str] = []

    def answer(path: str, body: dict[str, Any], n: int) -> Reply:
        said = "\n".join(m["content"] for m in body["messages"] if m["role"] != "assistant")
        shown.append(said)
        if "add A" in said and len(body["messages"]) < 4:
            return chat(protocol.render(read if read.keys else call))
        if "add A" in said and read.keys and len(body["messages"]) < 6:
            return chat(protocol.render(call, "<|im_start|>user"))
        return chat(protocol.render(Answer("46" + "".join(HOSTILE[4:]))))

    rules = Rules(
        Limits(**{"total_tokens": 9000, "max_turns": 5, "reply_tokens": 60, **limits}), protocol, WordCounter()
    )
    server = serve(answer)
    with OpenAIPolicy(config(server), SamplingConfig()) as policy:
        (record,) = rollout([RolloutRequest("e0", HOSTILE_TASK, 1, rules.limits)], policy, rules)
    assert record.agents[0].status is Status.ANSWERED
    assert len(record.agents) == (1 if limits.get("max_depth") == 0 or "terse" in str(protocol).lower() else 5)
    for said in shown:
        assert not [marker for marker in HOSTILE if marker in said], said
    own = [m["content"] for _, body in server.seen for m in body["messages"] if m["role"] == "assistant"]
    assert not [said for said in own if "<|" in said]


def test_a_model_s_own_calls_are_sent_back_as_it_wrote_them(serve: Serve) -> None:
    server, _ = by_text(serve)
    assert server.seen[-1][1]["messages"][2] == {"role": "assistant", "content": CALL}


def test_generated_tokens_are_what_the_server_counted(serve: Serve) -> None:
    _, record = by_text(serve, used=7)
    assert [turn.facts.generated_tokens for _, turn in record.turns()] == [7, 7, 7, 7]


def test_unknown_usage_is_charged_the_whole_grant(serve: Serve) -> None:
    _, record = by_text(serve, used=None)
    facts = [turn.facts for _, turn in record.turns()]
    assert [fact.generated_tokens for fact in facts] == [fact.max_new_tokens for fact in facts]
    assert min(fact.generated_tokens for fact in facts) > 7
    assert from_json(to_json(record)) == record


def test_a_server_is_refused_as_a_sampler_to_train(serve: Serve) -> None:
    server = serve(lambda path, body, n: tokens(5, 9))
    with engine_over(server) as engine, pytest.raises(ConfigError, match="OpenAIEngine takes no weights"):
        check_trainable(engine)
    with (
        OpenAIPolicy(config(server), SamplingConfig()) as policy,
        pytest.raises(ConfigError, match="OpenAIPolicy takes no weights, so it would never play with the trained ones"),
    ):
        check_trainable(policy)
    assert server.seen == []


def test_records_without_ids_cannot_be_trained_on(serve: Serve) -> None:
    _, record = by_text(serve)
    advantage: dict[TurnKey, float | tuple[float, ...]] = {key: 1.0 for key, _ in record.turns()}
    groups, credits = [EpisodeGroup(TASK, (record,))], [Credit(advantage)]
    with pytest.raises(ConfigError, match="e0/root/turn0 has no token ids; only episodes sampled by a token-level"):
        build_samples(groups, credits, denominator=Denominator.CONSTANT, constant=100.0)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (chat("", finish="content_filter"), "ended by 'content_filter'"),
        (Reply({"choices": [{"finish_reason": "stop", "message": "text"}]}), "expected an object with content"),
        (chat("Answer: \ud83d"), r"half of a surrogate pair in it: 'Answer: \\ud83d'"),
    ],
)
def test_answers_that_are_none_leave_their_episode_unplayed(serve: Serve, reply: Reply, message: str) -> None:
    """A clone's failed request was the end of every episode."""

    def answer(path: str, body: dict[str, Any], n: int) -> Reply:
        root, replied = "Solve the task" in body["messages"][0]["content"], len(body["messages"]) > 2
        call = root and not replied and "A and B" in body["messages"][1]["content"]
        return chat(CALL) if call else chat("Answer: 46") if root else reply

    rules = Rules(LIMITS, HermesProtocol(), WordCounter())
    calling, alone = RolloutRequest("e0", TASK, 1), RolloutRequest("e1", replace(TASK, prompt="add"), 1)
    with OpenAIPolicy(config(serve(answer)), SamplingConfig()) as policy:
        with pytest.raises(UnplayedError, match=f"episodes not played: 1, the first is e0: .*{message}") as caught:
            rollout([calling, alone], policy, rules)
        (lost,) = caught.value.unplayed
        assert (lost.episode_id, lost.generated_tokens) == ("e0", 7)  # the root's call was paid for
        assert [record.answer for record in caught.value.played] == ["46"]
        with pytest.raises(UnplayedError):  # under the same name, with nothing of its past in the way
            rollout([calling], policy, rules)


def test_a_server_that_parses_calls_stops_the_rollout(serve: Serve) -> None:
    server = serve(lambda path, body, n: chat(None, finish="tool_calls"))
    rules = Rules(LIMITS, HermesProtocol(), WordCounter())
    with (
        OpenAIPolicy(config(server), SamplingConfig()) as policy,
        pytest.raises(PolicyError, match="ended by 'tool_calls'; .* switch the server's own tool parser off"),
    ):
        rollout([RolloutRequest("e0", TASK, 1)], policy, rules)
    assert len(server.seen) == 1


def test_half_of_a_surrogate_pair_is_not_sent(serve: Serve) -> None:
    """It was a UnicodeEncodeError out of the HTTP client."""
    rules = Rules(LIMITS, HermesProtocol(), WordCounter())
    with (
        OpenAIPolicy(config(serve(lambda path, body, n: chat("Answer: 4"))), SamplingConfig()) as policy,
        pytest.raises(PolicyError, match=r"'e0/root/turn0' has half of a surrogate pair in it, '\\ud83d'"),
    ):
        rollout([RolloutRequest("e0", replace(TASK, prompt="add \ud83d"), 1)], policy, rules)


@pytest.mark.parametrize("used", [0, 3, True, 2.5, -1, 10**30, "7"])
def test_a_count_that_cannot_be_is_charged_the_whole_grant(serve: Serve, used: Any) -> None:
    """A server that said 0 tokens, or true, gave its answers away."""
    server = serve(lambda path, body, n: chat("Answer: " + 800 * "4", used=used))
    rules = Rules(LIMITS, HermesProtocol(), WordCounter())
    with OpenAIPolicy(config(server), SamplingConfig()) as policy:
        (record,) = rollout([RolloutRequest("e0", TASK, 1)], policy, rules)
    assert record.agents[0].turns[0].facts.generated_tokens == 40


def test_a_text_beyond_any_grant_is_dropped(serve: Serve) -> None:
    server = serve(lambda path, body, n: chat("Answer: " + 40 * 256 * "4", used=None))
    rules = Rules(LIMITS, HermesProtocol(), WordCounter())
    with OpenAIPolicy(config(server), SamplingConfig()) as policy:
        (record,) = rollout([RolloutRequest("e0", TASK, 1)], policy, rules)
    assert record.agents[0].turns[0].facts.fault is Fault.OVER_GRANT


def test_a_cut_answer_is_none_and_the_field_of_the_limit_can_be_named(serve: Serve) -> None:
    server = serve(lambda path, body, n: chat("Answer: 46", finish="length" if n < 1 else "stop"))
    rules = Rules(LIMITS, HermesProtocol(), WordCounter())
    changes = {"max_tokens_field": "max_completion_tokens", "extra": {"reasoning_effort": "low"}}
    with OpenAIPolicy(config(server, **changes), SamplingConfig()) as policy:
        (record,) = rollout([RolloutRequest("e0", TASK, 1)], policy, rules)
    assert record.agents[0].turns[0].facts.outcome is Outcome.MALFORMED
    body = server.seen[0][1]
    assert ("max_tokens" in body, body["max_completion_tokens"], body["reasoning_effort"]) == (False, 40, "low")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"max_tokens": 4096}, "extra has max_tokens; remove it: .*limits.turn_tokens"),
        ({"max_completion_tokens": 4096}, "extra has max_completion_tokens"),
        ({"messages": []}, "extra has messages"),
        ({"temperature": 0.7}, "extra has temperature; remove it: the temperature is an option of the player"),
        ({"seed": 1}, "extra has seed"),
    ],
)
def test_extra_fields_replace_no_grant_and_no_sampling(extra: dict[str, Any], words: str) -> None:
    """A larger limit was sent, the server's longer answers were dropped, and the server was blamed for its usage."""
    with pytest.raises(ConfigError, match=words):
        OpenAIPolicy(ServerConfig("http://127.0.0.1:1/v1", "m", extra=extra), SamplingConfig())


def test_extra_fields_may_leave_sampling_to_the_server(serve: Serve) -> None:
    server = serve(lambda path, body, n: chat("Answer: 46"))
    rules = Rules(LIMITS, HermesProtocol(), WordCounter())
    with OpenAIPolicy(config(server, extra={"seed": None, "top_p": 0.9}), SamplingConfig()) as policy:
        rollout([RolloutRequest("e0", TASK, 1)], policy, rules)
    body = server.seen[0][1]
    assert (body["seed"], body["top_p"]) == (None, 0.9)
    with pytest.raises(ConfigError, match="extra has top_p"):
        OpenAIEngine(ServerConfig("http://127.0.0.1:1/v1", "m", extra={"top_p": 0.9}), stop_ids=(9,))


@pytest.mark.parametrize(
    "key", ["sk-1 2345", "sk-1\n2345", "sk-\r\nX: y", "sk-ü", "sk-\x1b[0m", "\u202esk", "a\tb", 's"k', "s\\k"]
)
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds") as caught:
        Client(ServerConfig("http://127.0.0.1:1/v1", "m"))
    assert key not in str(caught.value)


@pytest.mark.parametrize("status", [400, 503, 200])
def test_a_key_with_a_line_end_is_sent_without_it_and_an_echo_of_it_is_masked(
    status: int, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(lambda *_: Reply({"echo": "Bearer sk-0123456789abcdef"}, status=status))
    monkeypatch.setenv("OPENAI_API_KEY", " sk-0123456789abcdef\r\n")
    client = Client[str](ServerConfig(server.url, "m", max_retries=0))
    try:
        client.submit("r", "completions", {}, str)
        try:
            shown = str(client.poll())
        except PolicyError as error:
            shown = str(error)
    finally:
        client.close()
    assert server.keys == ["Bearer sk-0123456789abcdef"]
    assert "[key]" in shown
    assert "0123456789" not in shown


# What servers do that no text shows

WHOLE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def played_with(serve: Serve, answer: Callable[[int], Any], **changes: Any) -> tuple[EpisodeRecord, ServerCounts]:
    """One episode of one turn; the n-th try is answered by `answer(n)` beside its text, a status, or what it is."""

    def reply(path: str, body: dict[str, Any], n: int) -> Reply:
        said = answer(n)
        return said if isinstance(said, Reply) else Reply({**chat("Answer: 46", used=None).body, **said})

    server = serve(reply)
    rules = Rules(LIMITS, HermesProtocol(), WordCounter())
    with OpenAIPolicy(config(server, **changes), SamplingConfig()) as policy, tally_requests() as tally:
        (record,) = rollout([RolloutRequest("e0", TASK, 1)], policy, rules)
    ((asked, counts),) = tally.take().items()
    assert asked == ServerModel(server.url, "m")
    assert tally.take() == {}
    return record, counts


@pytest.mark.parametrize(
    ("usage", "why", "charged"),
    [
        (WHOLE, "", 7),
        (None, "", 40),
        ({}, "", 40),
        ({"completion_tokens": 7}, "", 7),
        ({"completion_tokens": 40}, "", 40),
        ({**WHOLE, "prompt_tokens": 0}, "prompt_tokens is '0'", 40),
        ({**WHOLE, "prompt_tokens": -3}, "prompt_tokens is '-3'", 40),
        ({**WHOLE, "prompt_tokens": 5.0}, "prompt_tokens is '5.0'", 40),
        ({**WHOLE, "completion_tokens": -7}, "completion_tokens is '-7'", 40),
        ({**WHOLE, "completion_tokens": "7"}, "completion_tokens is '7'", 40),
        ({**WHOLE, "completion_tokens": True}, "completion_tokens is 'True'", 40),
        ({**WHOLE, "completion_tokens": 10**30}, f"completion_tokens is '{10**30}'", 40),
        ({"completion_tokens": 41}, "completion_tokens is 41 of 40 granted", 40),
        ({"completion_tokens": 0}, "completion_tokens is 0 for 10 characters", 40),
        ({**WHOLE, "total_tokens": 11}, "total_tokens is 11 of 5 + 7", 40),
        ({**WHOLE, "total_tokens": 300}, "total_tokens is 300 of 5 + 7", 40),
        ({**WHOLE, "total_tokens": 0}, "total_tokens is '0'", 40),
        ([5, 7], "usage is '[5, 7]'", 40),
        ("7", "usage is '7'", 40),
    ],
)
def test_a_usage_that_cannot_be_true_is_counted_and_charged_the_whole_grant(
    serve: Serve, usage: Any, why: str, charged: int
) -> None:
    record, counts = played_with(serve, lambda n: {"usage": usage})
    asked = len(record.root.turns)  # more than one where a text was dropped
    assert counts == ServerCounts(answers=asked, false_usage=asked * bool(why), first_usage=why)
    assert record.root.turns[0].facts.generated_tokens == charged


@pytest.mark.parametrize(
    ("model", "extra", "named"),
    [
        (None, {}, ""),
        ("m", {}, ""),
        ("m-2026-01-01", {}, ""),
        ("m-20260101", {}, ""),
        ("m@20260101", {}, ""),
        ("m-0613", {}, ""),
        ("m-20260101", {"model": "m-latest"}, ""),
        ("m-2026-13-01", {}, "'m-2026-13-01'"),
        ("m-2026-01-01-mini", {}, "'m-2026-01-01-mini'"),
        ("m-mini-2026-01-01", {}, "'m-mini-2026-01-01'"),
        ("m2026-01-01", {}, "'m2026-01-01'"),
        ("m-2026-0101", {}, "'m-2026-0101'"),
        ("m-7000", {}, "'m-7000'"),
        ("m", {"model": "m-2026-01-01"}, "'m'"),
        ("M", {}, "'M'"),
        ("", {}, "''"),
        (7, {}, "'7'"),
        ("\u001b[31mm", {}, r"'\x1b[31mm'"),
        ("big", {"model": "big"}, ""),
        ("m", {"model": "big"}, "'m'"),
    ],
)
def test_another_model_s_name_is_counted(serve: Serve, model: Any, extra: dict[str, Any], named: str) -> None:
    _, counts = played_with(serve, lambda n: {} if model is None else {"model": model}, extra=extra)
    assert counts == ServerCounts(answers=1, other_model=int(bool(named)), first_model=named)


def test_retries_are_counted_and_the_record_is_the_same(serve: Serve) -> None:
    steady, _ = played_with(serve, lambda n: {"usage": WHOLE})
    flaky, counts = played_with(serve, lambda n: Reply("busy", status=503) if n < 2 else {"usage": WHOLE})
    assert counts == ServerCounts(answers=1, retries=2)
    assert to_json(flaky) == to_json(steady)


def test_a_request_that_is_given_up_is_counted_with_its_retries(serve: Serve) -> None:
    client = Client[str](config(serve(lambda *_: Reply("busy", status=503)), max_retries=2))
    with closing(client), tally_requests() as outer, tally_requests() as inner:
        client.submit("r", "completions", {}, str)
        client.poll()
    expected = ServerCounts(retries=2, failures=1)
    assert client.counts == expected
    assert [*outer.take().values()] == [*inner.take().values()] == [expected]


def test_an_engine_of_ids_counts_too(serve: Serve) -> None:
    server = serve(lambda path, body, n: Reply({**tokens(5, 9).body, "model": "other", "usage": {"prompt_tokens": 0}}))
    with engine_over(server) as engine, tally_requests() as tally:
        engine.submit([ASK])
        drain(engine)
    assert [*tally.take().values()] == [ServerCounts(1, 0, 0, 1, 1, "'other'", "prompt_tokens is '0'")]


def test_lines_and_numbers_of_what_servers_did() -> None:
    server = ServerModel("http://127.0.0.1:1/v1", "m")
    counts = ServerCounts(9, 3, 1, 2, 4, "'n'", "prompt_tokens is '0'") + ServerCounts(1, first_model="'o'")
    assert format_server_counts({server: counts}) == [
        "server http://127.0.0.1:1/v1, model m: 3 retries, 1 failed requests; 2 answers name another model, the "
        "first 'n'; 4 answers report a usage that cannot be true, the first because prompt_tokens is '0'; their whole "
        "grant is charged (10 answers)"
    ]
    assert format_server_counts({server: ServerCounts(answers=5)}) == []
    assert compute_server_metrics({}) == {}
    assert compute_server_metrics({server: counts, ServerModel("x", "m"): ServerCounts(retries=1)}) == {
        "server/answers": 10,
        "server/retries": 4,
        "server/failed_requests": 1,
        "server/other_model": 2,
        "server/false_usage": 4,
    }


@pytest.mark.parametrize(
    "echo",
    [
        "Bearer sk-0123456789abcdef",
        "Bearer sk-\\u0030\\u0031\\u0032\\u0033456789abcdef",
        "x" * 290 + "sk-0123456789abcdef",
        "sk-0123456789abcdef" * 100,
        "é" * 200 + "sk-0123456789abcdef",
    ],
    ids=["plain", "escaped", "at the cut", "many", "after wide letters"],
)
@pytest.mark.parametrize("status", [200, 401, 404, 429, 500])
def test_a_key_that_a_server_echoes_in_any_place_is_masked(
    echo: str, status: int, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(lambda *_: Reply(f'{{"{echo}": "{echo}", "id": ["{echo}"]}}', status=status))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    client = Client[Any](ServerConfig(server.url, "m", max_retries=1, backoff_s=0.01))
    with closing(client):
        client.submit("r", "completions", {}, lambda answer: answer)
        try:
            shown = str(client.poll())
        except PolicyError as error:
            shown = "".join(traceback.format_exception(error))
    assert "012345" not in shown + caplog.text


@pytest.mark.parametrize("before", ["", "Bearer ", "user:", "me:"])
@pytest.mark.parametrize("status", [200, 401, 429])
@pytest.mark.parametrize(
    "spell",
    [
        quote_plus,
        lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
        lambda text: "".join(f"&#{byte};" for byte in text.encode()),
        lambda text: "".join(f"\\u{byte:04x}" for byte in text.encode()),
        lambda text: b64encode(text.encode()).decode(),
        lambda text: urlsafe_b64encode(text.encode()).decode(),
        lambda text: text.encode().hex(),
    ],
    ids=["address", "percents", "page", "escapes", "base64", "base64 of addresses", "hex"],
)
def test_a_key_that_a_server_echoes_in_other_letters_is_masked(
    spell: Callable[[str], str],
    status: int,
    before: str,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    key = "sk-0123/4567+89ab=cdefABCDEF"
    echo = spell(before + key)
    server = serve(lambda *_: Reply(f'{{"error": "{echo}", "id": ["{echo}"]}}', status=status))
    monkeypatch.setenv("OPENAI_API_KEY", key)
    client = Client[Any](ServerConfig(server.url, "m", max_retries=1, backoff_s=0.01))
    with closing(client):
        client.submit("r", "completions", {}, lambda answer: answer)
        try:
            shown = str(client.poll())
        except PolicyError as error:
            shown = "".join(traceback.format_exception(error))
    if status == 200 and request.node.callspec.id.startswith(("percents", "page")):
        return  # an answer may say such letters; only a server that means to leak the key writes all of it like this
    assert spell(key)[6:-6] not in shown + caplog.text
    assert "[key]" in shown


def test_a_long_key_that_is_echoed_many_times_is_masked_at_the_cut(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-" + "0123456789abcdef" * 10
    server = serve(lambda *_: Reply(key * 40, status=401))
    monkeypatch.setenv("OPENAI_API_KEY", key)
    client = Client[Any](ServerConfig(server.url, "m", max_retries=0))
    with closing(client):
        client.submit("r", "completions", {}, lambda answer: answer)
        with pytest.raises(PolicyError) as caught:
            client.poll()
    assert "sk-0123" not in str(caught.value)


def test_a_key_in_a_header_that_breaks_the_protocol_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-0123456789abcdef"
    monkeypatch.setenv("SELFCEST_KEY", key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(f"HTTP/1.1 200 OK\r\nBearer {key}\r\n\r\n".encode())

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        client = Client[Any](ServerConfig(url, "m", "SELFCEST_KEY", max_retries=0))
        with closing(client):
            client.submit("r", "completions", {}, lambda answer: answer)
            ((_, error),) = client.poll()
    assert isinstance(error, InfrastructureError)
    assert key not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "variable",
    ["AWS_SECRET_ACCESS_KEY", "HOME", "GITHUB_TOKEN", "HF_TOKEN", "PATH", "", "OPENAI_API_KEY_OLD", "api_key",
     "SELFCEST", "SELFCEST_", "SSH_AUTH_SOCK", "MY_SELFCEST_KEY", "OPENAI_API_KEY\n", "ÖPENAI_API_KEY",
     "OPENAI API_KEY"],
)  # fmt: skip
def test_no_other_variable_is_sent_than_a_key(variable: str) -> None:
    with pytest.raises(ConfigError, match="api_key_variable is .* would be sent to http"):
        ServerConfig("http://127.0.0.1:1/v1", "m", variable)


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "API_KEY", "A1_API_KEY", "SELFCEST_KEY", "SELFCEST_JUDGE_2"])
def test_a_variable_of_a_key_is_taken(variable: str) -> None:
    assert ServerConfig("http://127.0.0.1:1/v1", "m", variable).api_key_variable == variable


@pytest.mark.parametrize(
    "url", ["https://me:secret@host/v1", "http://secret@host", "http://h/v1?key=secret", "http://h#secret"]
)
def test_a_secret_in_the_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url holds") as caught:
        ServerConfig(url, "m")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "warned"),
    [("http://127.0.0.1:8000/v1", False), ("http://localhost/v1", False), ("http://[::1]:1/v1", False),
     ("http://127.9.9.9/v1", False), ("http://0.0.0.0:1/v1", False), ("http://a.localhost/v1", False),
     ("https://example.org/v1", False), ("http://example.org/v1", True), ("http://10.0.0.1/v1", True),
     ("http://localhost.evil.org/v1", True), ("http://127.0.0.1.evil.org/v1", True), ("http://[fe80::1]/v1", True),
     ("HTTP://LOCALHOST/v1", None), ("http://notlocalhost/v1", True), ("http://[2001:db8::7]/v1", True)],
)  # fmt: skip
def test_plain_http_to_another_machine_warns(url: str, warned: bool | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            Client[Any](ServerConfig(url, "m")).close()
        except ConfigError:
            assert warned is None
    assert bool(caught) == bool(warned)
    assert all("plain http to another machine" in str(one.message) for one in caught)
