"""The codec of chat models of Hugging Face: it encodes messages with a model's own template, append-only.

The template is rendered only at construction (see `chat_template`). After that a block consists of constant texts and
the contents between them, so no context is rendered or tokenised twice.

The protocol's help text is part of the system message even if the template could list tools. Templates without tools
drop them silently, and the others ask for calls in a syntax of their own. One text suits all, and is priced like any
other text.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from selfcest_agents.chat_template import Render, find_frame
from selfcest_agents.text_encoder import TextEncoder
from selfcest_env.errors import ConfigError
from selfcest_env.text.markers import Markers
from selfcest_env.types import Boundary, Message, MessageRole, Part, Scalar

if TYPE_CHECKING:  # slow to import
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ChatConfig:
    """Options for rendering a chat template.

    Attributes:
        date: current date for templates that write it into the system message. It is fixed, so that runs repeat.
        template_options: variables of the template, such as `{"enable_thinking": False}`.
    """

    date: str = "2025-01-01"
    template_options: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise ConfigError(f"chat.date is {self.date!r}; expected a date such as 2025-01-01") from error

    def strftime(self, pattern: str) -> str:
        """Return the fixed date in a format that the template chooses."""
        return datetime.date.fromisoformat(self.date).strftime(pattern)


class ChatCodec:
    """The `Codec` of a chat model's tokenizer and template, for `HermesProtocol`.

    Trusted text of the environment may hold special tokens. Untrusted text is encoded without them, whatever it says.
    Every untrusted part is encoded separately, so that the prices of the parts add up.

    Args:
        tokenizer: fast tokenizer with a chat template.
        config: options for rendering the template.
        stop_ids: further ids that end a turn of this model, as in its generation config.

    Attributes:
        frame: constant texts that the template writes around contents.
        stop_ids: ids that end a turn. The template's end-of-turn comes first.
        markers: texts of the added tokens, and of roles that the template writes in plain text. Plain text that is sent
            to a model must not hold them. Roles in plain text are broken in untrusted parts (see `Markers`).

    Raises:
        ConfigError: the tokenizer is not a fast one or has no template, or the template cannot be extended turn by
            turn.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, config: ChatConfig | None = None, stop_ids: Iterable[int] = ()
    ) -> None:
        name = tokenizer.name_or_path or "this model"
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ConfigError(f"the tokenizer of {name} is a {type(tokenizer).__name__}; expected a fast tokenizer")
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of {name} has no chat template; use an instruction-tuned model, or set "
                "tokenizer.chat_template"
            )
        self._encoder = TextEncoder(backend)
        self.frame = find_frame(_make_renderer(tokenizer, config or ChatConfig()), self._encoder.markers)
        self._end_of_turn = self._encoder.encode_trusted(self.frame.end)
        roles = self.frame.find_plain_roles(self._encoder.markers)
        self._plain_markers = Markers(roles) if roles else None
        self.markers = (*self._encoder.markers, *roles)
        self.stop_ids = tuple(dict.fromkeys((*self._end_of_turn, *stop_ids)))
        self._check_piecewise_encoding()

    def encode(self, messages: Sequence[Message], boundary: Boundary) -> tuple[int, ...]:
        """See `Codec`. Raises `ConfigError` if the messages are neither an opening nor replies."""
        ids: list[int] = []
        parts = self.frame.split_into_parts(messages, boundary)
        for trusted, neighbours in itertools.groupby(parts, key=lambda part: part.trusted):
            texts = [part.text for part in neighbours]
            if trusted:
                # Adjacent texts of the template are encoded as one text, as in the whole conversation.
                ids += self._encoder.encode_trusted("".join(texts))
            else:
                for text in texts:
                    ids += self._encode_plain(text)
        return tuple(ids)

    def encode_scripted(self, text: str) -> tuple[int, ...]:
        return (*self._encoder.encode_scripted(self.frame.lead + text), *self._end_of_turn)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of generated ids without the stop id, after `<think>` if the prompt ended with it."""
        generated = list(ids)
        if generated and generated[-1] in self.stop_ids:
            generated.pop()
        opening = "<think>" if self.frame.opens_thinking else ""
        return opening + self._encoder.decode(generated)

    def count(self, messages: Sequence[Message], boundary: Boundary) -> int:
        return len(self.encode(messages, boundary))

    def count_text(self, text: str) -> int:
        return len(self._encode_plain(text))

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        if self._plain_markers is not None:
            text = self._plain_markers.neutralise(text)
        return self._encoder.encode_plain(text)

    def _check_piecewise_encoding(self) -> None:
        """Raise `ConfigError` if a conversation that is encoded in pieces decodes to another text than as a whole."""
        system = "Probe of system."
        task = "Probe of task?"
        call = "Probe of a call"
        reply = "Probe of a reply."
        opening = (Message(MessageRole.SYSTEM, (Part(system, True),)), Message(MessageRole.USER, (Part(task),)))
        block = (Message(MessageRole.TOOL, (Part(reply),)),)
        frame = self.frame
        before_call = (frame.before_system, system, frame.before_user, task, frame.after_user, frame.lead)
        text = "".join((*before_call, call, frame.end, frame.before_reply, reply, frame.after_reply))
        ids = (
            *self.encode(opening, Boundary.OPENING),
            *self.encode_scripted(call),
            *self.encode(block, Boundary.AFTER_STOP),
        )
        expected = self._encoder.decode(self._encoder.encode_trusted(text))
        decoded = self._encoder.decode(ids)
        if decoded != expected:
            raise ConfigError(
                f"this tokenizer does not encode piecewise: the pieces of a probe decode to {decoded!r}, the whole "
                f"decodes to {expected!r}; use a byte-level or byte-fallback tokenizer"
            )


def _make_renderer(tokenizer: PreTrainedTokenizerBase, config: ChatConfig) -> Render:
    """Return the template as a function. Raises `ConfigError` for an option that the template does not use."""
    unknown = [name for name in config.template_options if not re.search(rf"\b{name}\b", str(tokenizer.chat_template))]
    if unknown:
        raise ConfigError(f"chat.template_options has {unknown[0]!r}, which this model's template does not use")
    variables: dict[str, Any] = {
        "strftime_now": config.strftime,
        "date_string": config.strftime("%d %b %Y"),  # the variable of Llama 3, in its format
        **config.template_options,
    }

    def render(messages: Sequence[dict[str, str]]) -> str:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **variables)
        assert isinstance(text, str)
        return text

    return render
