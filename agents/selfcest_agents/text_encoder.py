"""Encode pieces of text with a fast tokenizer of Hugging Face, at three levels of trust."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from selfcest_env.errors import ConfigError

CACHED_TEXTS = 4096  # siblings share documents, and a block is encoded twice, first for its price


class TextEncoder:
    """Encodes pieces of a text, whose ids can be joined: a piece gets no prefix space and no beginning-of-text id.

    Args:
        backend: tokenizer, which is copied without its truncation and padding.

    Raises:
        ConfigError: plain text could be encoded as an added token.
    """

    def __init__(self, backend: Tokenizer) -> None:
        spec = _remove_prefix_space({**json.loads(backend.to_str()), "truncation": None, "padding": None})
        self._trusted = Tokenizer.from_str(json.dumps(spec))
        self._scripted = Tokenizer.from_str(json.dumps(spec))
        self._scripted.encode_special_tokens = True
        # A tokenizer that is made from the backend's model only has no added tokens.
        self._plain = Tokenizer(self._trusted.model)
        self._plain.normalizer = self._trusted.normalizer
        self._plain.pre_tokenizer = self._trusted.pre_tokenizer
        self._added = backend.get_added_tokens_decoder()
        unknown = spec["model"].get("unk_token")
        # White space may be an added token, but marks nothing. The unknown token stands for any ordinary text.
        self._marker_ids = {
            index for index, token in self._added.items() if token.content.strip() and token.content != unknown
        }
        self.encode_plain = lru_cache(CACHED_TEXTS)(self._encode_plain)
        for index in self._marker_ids:
            self._encode_plain(self._added[index].content)  # raises if plain text could become this token

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of the added tokens."""
        return tuple(token.content for token in self._added.values())

    def encode_trusted(self, text: str) -> tuple[int, ...]:
        """Return the ids of text of this project or of a template. Added tokens in it are encoded as such."""
        return tuple(self._trusted.encode(text, add_special_tokens=False).ids)

    def encode_scripted(self, text: str) -> tuple[int, ...]:
        """Return the ids of text that a script wrote instead of the model.

        Special tokens in it are encoded as plain text. Other added tokens, which include `<tool_call>` in some
        tokenizers, are encoded as added tokens.
        """
        return tuple(self._scripted.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, including special tokens."""
        return self._trusted.decode(list(ids), skip_special_tokens=False)

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        """Return the ids of untrusted text, without any added token."""
        ids = self._plain.encode(text, add_special_tokens=False).ids
        if self._marker_ids.isdisjoint(ids):
            return tuple(ids)
        # Some vocabularies hold the added tokens as ordinary pieces too. Single letters cannot be merged to them.
        letter_ids: list[int] = []
        for letter in text:
            ids = self._plain.encode(letter, add_special_tokens=False).ids
            if not self._marker_ids.isdisjoint(ids):
                raise ConfigError(
                    f"this tokenizer has an added token for the single letter {letter!r}, so text of a model could be "
                    "read as text of the environment; use a tokenizer without this token"
                )
            letter_ids += ids
        return tuple(letter_ids)


def _remove_prefix_space(spec: Any) -> Any:
    """Return the JSON of a tokenizer without the options that put a space before every text."""
    if isinstance(spec, list):
        return [_remove_prefix_space(item) for item in spec if not _is_prepend(item)]
    if not isinstance(spec, dict):
        return spec
    if _is_prepend(spec):
        return None
    changes = {"add_prefix_space": False, "prepend_scheme": "never"}
    return {key: changes[key] if key in changes else _remove_prefix_space(value) for key, value in spec.items()}


def _is_prepend(spec: Any) -> bool:
    return isinstance(spec, dict) and spec.get("type") == "Prepend"
