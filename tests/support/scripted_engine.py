"""A server of random texts with the interfaces of vLLM: chat completions, and generation from ids with log-probs.

A text depends only on the seed and on the request. The texts are calls, answers, reads, noise and attacks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import numpy as np
from aiohttp import web
from random_texts import random_text

from selfcest_agents.chat import ChatCodec


class ScriptedEngine:
    """The server.

    Args:
        seed: random seed of the texts.
        codec: encodes the texts for generation from ids.
        obeys: whether it cuts a text at `max_tokens`. If not, it returns the whole text.
        write: writes the text of a turn from its messages, in place of a random one.

    Attributes:
        requests: the bodies of all requests, in the order of arrival.
    """

    def __init__(
        self,
        seed: int,
        codec: ChatCodec,
        *,
        obeys: bool = True,
        write: Callable[[str], str] | None = None,
    ) -> None:
        self.requests: list[dict] = []
        self._seed = seed
        self._codec = codec
        self._obeys = obeys
        self._write = write

    async def __aenter__(self) -> str:
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/inference/v1/generate", self._generate)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        return f"http://127.0.0.1:{port}/v1"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def draw(self, prompt: str, key: object, max_tokens: int) -> tuple[list[int], str]:
        """Return the ids of a turn and the reason of its end."""
        digest = hashlib.blake2b(f"{self._seed} {json.dumps(key)}".encode(), digest_size=8).digest()
        text = (
            random_text(np.random.default_rng(int.from_bytes(digest, "big")))
            if self._write is None
            else self._write(prompt)
        )
        ids = list(self._codec.encode_scripted(text))
        if self._obeys and len(ids) > max_tokens:
            return ids[:max_tokens], "length"
        return ids, "stop"

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted", "max_model_len": 100_000}]})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        prompt = self._codec.decode(body["token_ids"])
        ids, reason = self.draw(prompt, body["token_ids"], body["sampling_params"]["max_tokens"])
        logprobs = [{"token": f"token_id:{token}", "logprob": -0.5} for token in ids]
        choice = {"index": 0, "token_ids": ids, "finish_reason": reason, "logprobs": {"content": logprobs}}
        return web.json_response({"request_id": "r", "choices": [choice]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        prompt = "\n".join(message["content"] for message in body["messages"])
        ids, reason = self.draw(prompt, body["messages"], body["max_tokens"])
        message = {"role": "assistant", "content": self._codec.decode(ids)}
        usage = {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        body = {"id": "r", "object": "chat.completion", "created": 0, "model": "scripted"}
        return web.json_response({**body, "choices": [choice], "usage": usage})
