"""The renderer through which verifiers encodes the game for training: the codec that also prices it.

The ledger needs the exact price of a block before it is sent, and prices that add up. A renderer that encodes a message
as one text gives neither: tokens merge across the end of a reply, and a reply can hold special tokens. So training uses
this renderer, and a message arrives as parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from renderers import RenderedTokens
from renderers.base import ParsedResponse
from renderers.configs import BaseRendererConfig

from selfcest_agents.chat import ChatCodec
from selfcest_env.errors import PolicyError
from selfcest_env.types import Boundary, Message, MessageRole, Part

IMPORT_PATH = "selfcest_verifiers.renderer.DelegationRenderer"


def join_parts(message: Message) -> list[dict[str, str]]:
    """Return the content parts of a chat message. Their trust alternates, and the first one is trusted.

    Trusted neighbours become one part, as in `ChatCodec`. Between untrusted neighbours stands an empty part.
    """
    texts = [""]
    for part in message.parts:
        if part.trusted == bool(len(texts) % 2):  # the trust of the last text
            if part.trusted:
                texts[-1] += part.text
                continue
            texts.append("")
        texts.append(part.text)
    return [{"type": "text", "text": text} for text in texts]


def split_parts(message: dict[str, Any]) -> Message:
    """Return the message of which `join_parts` made a chat message."""
    role = MessageRole(message["role"])
    texts = [part["text"] for part in message["content"]]
    return Message(role, tuple(Part(text, index % 2 == 0) for index, text in enumerate(texts)))


class DelegationRendererConfig(BaseRendererConfig):  # type: ignore[misc]
    """The renderer has no options."""


class DelegationRenderer:
    """A renderer of the package `renderers` that encodes with `ChatCodec`, append-only.

    Set it as `renderer = {name = "custom", import_path = "selfcest_verifiers.renderer.DelegationRenderer"}`.
    """

    config_class = DelegationRendererConfig
    is_prefix_stable = False
    supports_tools = False

    def __init__(self, tokenizer: Any, config: DelegationRendererConfig | None = None) -> None:
        self.config = config or DelegationRendererConfig()
        self._codec = ChatCodec(tokenizer)

    def render(
        self, messages: Sequence[dict[str, Any]], *, tools: object = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """Encode a conversation: the opening, or one whose last turn was over its grant, so that its text is empty."""
        if not add_generation_prompt:
            raise PolicyError("a context of the game always ends before a turn; set add_generation_prompt")
        ids = list(self._codec.encode([split_parts(message) for message in messages[:2]], Boundary.OPENING))
        for message in messages[2:]:
            if message["role"] == "assistant":
                ids += self._codec.encode_scripted(message["content"] or "")
            else:
                ids += self._encode_block(message, Boundary.AFTER_STOP)
        return _attribute(ids, 0, messages)

    def render_ids(
        self, messages: Sequence[dict[str, Any]], *, tools: object = None, add_generation_prompt: bool = False
    ) -> list[int]:
        rendered = self.render(messages, add_generation_prompt=add_generation_prompt)
        return list(rendered.token_ids)

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Sequence[dict[str, Any]],
        *,
        tools: object = None,
    ) -> RenderedTokens:
        """Extend a context by the block after its last turn. All earlier ids stay as they were sampled."""
        ids = [*previous_prompt_ids, *previous_completion_ids]
        stopped = previous_completion_ids[-1] in self._codec.stop_ids
        boundary = Boundary.AFTER_STOP if stopped else Boundary.AFTER_LENGTH
        (message,) = new_messages
        return _attribute([*ids, *self._encode_block(message, boundary)], len(ids), new_messages)

    def parse_response(
        self, token_ids: list[int], *, tools: object = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        """Return the text that the game parses. Calls of the game are text for verifiers."""
        return ParsedResponse(content=self._codec.decode(token_ids))

    def get_stop_token_ids(self) -> list[int]:
        return list(self._codec.stop_ids)

    def _encode_block(self, message: dict[str, Any], boundary: Boundary) -> tuple[int, ...]:
        block = Message(MessageRole.TOOL, split_parts(message).parts)
        return self._codec.encode([block], boundary)


def _attribute(ids: list[int], start: int, messages: Sequence[dict[str, Any]]) -> RenderedTokens:
    """Attribute the ids from `start` on to the last message. None of them was sampled."""
    indices = [-1] * start + [len(messages) - 1] * (len(ids) - start)
    return RenderedTokens(token_ids=ids, message_indices=indices, message_roles=[m["role"] for m in messages])
