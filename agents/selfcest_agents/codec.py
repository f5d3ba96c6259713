"""Codecs convert messages to ids, append-only. A block is encoded once, when it is written, and never again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from selfcest_env.types import Boundary, Message, TokenCounter


@runtime_checkable
class Codec(TokenCounter, Protocol):
    """The encoding of a protocol for a model. As a `TokenCounter` it returns the exact number of encoded ids."""

    def encode(self, messages: Sequence[Message], boundary: Boundary) -> tuple[int, ...]:
        """Return the ids that extend a context: the separators of the boundary, the block and the generation prompt."""
        ...

    def encode_scripted(self, text: str) -> tuple[int, ...]:
        """Return the ids of a turn that a script wrote instead of the model, including its end-of-turn id."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of generated ids, as the protocol parses it."""
        ...


class PlainTokenizer(Protocol):
    """The interface of tokenizers for `TerseCodec`, such as `TinyTokenizer`."""

    def encode(self, text: str, trusted: bool) -> tuple[int, ...]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


class TerseCodec:
    """The codec of `TerseProtocol`, whose messages hold their own markers. A block is the sequence of its parts."""

    def __init__(self, tokenizer: PlainTokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = tokenizer.encode("<end>", True)

    def encode(self, messages: Sequence[Message], boundary: Boundary) -> tuple[int, ...]:
        # A turn that was cut by length has no end token. The environment writes it, so it is charged and not trained.
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
