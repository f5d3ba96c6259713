"""Text to ids at three levels of trust, over one fast tokenizer of Hugging Face, piece by piece."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from selfcest_env.errors import ConfigError

CACHED_TEXTS = 4096  # siblings share documents, and a block is priced before it is encoded


class TextEncoder:
    """Encodes pieces whose ids are then joined; no piece gains a prefix space or a beginning-of-text id of its own.

    Args:
        backend: the tokenizer; it is copied, truncation and padding left out.

    Raises:
        ConfigError: an added token that plain text cannot be kept from becoming.
    """

    def __init__(self, backend: Tokenizer) -> None:
        spec = _without_prefix({**json.loads(backend.to_str()), "truncation": None, "padding": None})
        written = json.dumps(spec)
        self._trusted, self._own = Tokenizer.from_str(written), Tokenizer.from_str(written)
        self._own.encode_special_tokens = True
        self._plain = Tokenizer(self._trusted.model)  # the same, without the added tokens
        self._plain.normalizer, self._plain.pre_tokenizer = self._trusted.normalizer, self._trusted.pre_tokenizer
        self._added = backend.get_added_tokens_decoder()
        unknown = spec["model"].get("unk_token")
        # Runs of white space may be added tokens too; they mark nothing.
        self._markers = {i for i, t in self._added.items() if t.content.strip() and t.content != unknown}
        self.encode_plain = lru_cache(CACHED_TEXTS)(self._encode_plain)
        for index in self._markers:
            self._encode_plain(self._added[index].content)

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of the added tokens."""
        return tuple(token.content for token in self._added.values())

    def encode_trusted(self, text: str) -> tuple[int, ...]:
        """Ids of text that this project or a template wrote: every added token counts as one."""
        return tuple(self._trusted.encode(text, add_special_tokens=False).ids)

    def encode_scripted(self, text: str) -> tuple[int, ...]:
        """Ids of text written in a model's stead: `<tool_call>` may be one id, the special tokens are plain text."""
        return tuple(self._own.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens included."""
        return self._trusted.decode(list(ids), skip_special_tokens=False)

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        """Ids of text that somebody else wrote: no added token is among them, whatever it says."""
        ids = self._plain.encode(text, add_special_tokens=False).ids
        if self._markers.isdisjoint(ids):
            return tuple(ids)
        # Some vocabularies list their markers among the ordinary pieces, where no single letter can reach them.
        letters = [self._plain.encode(letter, add_special_tokens=False).ids for letter in text]
        if wrong := [text[i] for i, ids in enumerate(letters) if not self._markers.isdisjoint(ids)]:
            raise ConfigError(
                f"this tokenizer has an added token for the single letter {wrong[0]!r}, so text that a model wrote "
                "could pass for the environment's; use a tokenizer without it"
            )
        return tuple(itertools.chain.from_iterable(letters))


def _without_prefix(spec: Any) -> Any:
    """The same tokenizer without the space that some put before every text they are given: a piece is no text."""
    if isinstance(spec, list):
        return [
            _without_prefix(item) for item in spec if not (isinstance(item, dict) and item.get("type") == "Prepend")
        ]
    if not isinstance(spec, dict):
        return spec
    if spec.get("type") == "Prepend":
        return None
    changes = {"add_prefix_space": False, "prepend_scheme": "never"}
    return {key: changes[key] if key in changes else _without_prefix(value) for key, value in spec.items()}
