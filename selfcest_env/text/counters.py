"""Counts tokens without a model, for the text environment and for tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from selfcest_env.types import Boundary, Message

_WORD = re.compile(r"\w+|[^\w\s]")
CACHED_TEXTS = 1024  # siblings share instructions and documents


@lru_cache(CACHED_TEXTS)
def _count_words(text: str) -> int:
    return len(_WORD.findall(text))


class WordCounter:
    """A token is a word or a punctuation mark; white space is free. A message costs one token for its role."""

    message_tokens = 1

    def count(self, messages: Sequence[Message], boundary: Boundary) -> int:
        tokens = 0
        for message in messages:
            tokens += self.message_tokens
            for part in message.parts:
                tokens += self.count_text(part.text)
        return tokens

    def count_text(self, text: str) -> int:
        return _count_words(text)


class ByteCounter(WordCounter):
    """A token is a byte of UTF-8. A message costs one token for its role."""

    def count_text(self, text: str) -> int:
        if text.isascii():
            return len(text)
        # Half a surrogate pair, which a model can generate, has no other encoding.
        return len(text.encode("utf-8", errors="surrogatepass"))
