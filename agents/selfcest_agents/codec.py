"""Messages to ids, append-only. A block is encoded once, when it is first written, and never again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from selfcest_env.types import Boundary, Message, TokenCounter


@runtime_checkable
class Codec(TokenCounter, Protocol):
    """The model's side of a protocol. As a `TokenCounter` it prices exactly what it encodes."""

    def encode(self, messages: Sequence[Message], boundary: Boundary) -> tuple[int, ...]:
        """Ids to append to a context: separators that the boundary calls for, the block, the generation prompt."""
        ...

    def encode_scripted(self, text: str) -> tuple[int, ...]:
        """Ids of a turn that a script wrote in the model's stead, its end-of-turn id included."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of generated ids, as the protocol parses it."""
        ...


class PlainTokenizer(Protocol):
    """What `TerseCodec` asks of a tokenizer; `TinyTokenizer` is one."""

    def encode(self, text: str, trusted: bool) -> tuple[int, ...]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


class TerseCodec:
    """For `TerseProtocol`, whose messages carry their own markers: a block is its parts, one after the other."""

    def __init__(self, tokenizer: PlainTokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = tokenizer.encode("<end>", True)

    def encode(self, messages: Sequence[Message], boundary: Boundary) -> tuple[int, ...]:
        # A turn cut by length has no end of its own; the environment writes it, so it is charged and not trained.
        ids = list(self._end) if boundary is Boundary.AFTER_LENGTH else []
        for message in messages:
            for part in message.parts:
                ids += self._tokenizer.encode(part.text, part.trusted)
        return tuple(ids)

    def encode_scripted(self, text: str) -> tuple[int, ...]:
        return self._tokenizer.encode(text, True)

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(ids)

    def count(self, messages: Sequence[Message], boundary: Boundary) -> int:
        return len(self.encode(messages, boundary))

    def count_text(self, text: str) -> int:
        return len(self._tokenizer.encode(text, False))
