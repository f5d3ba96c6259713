"""Chat models of Hugging Face at the table: messages to ids with a model's own template, append-only.

The template is consulted at construction alone (see `chat_template`); after that a block is a few constant texts with
contents between them, so no context is ever rendered, and none tokenised, twice. The protocol's help text goes into
the system message even where a template could list tools: templates without that support drop tools in silence, the
others ask for calls in a syntax of their own, and one text serves all and is priced like any other.
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

if TYPE_CHECKING:  # slow to import, and its tokenizer is given
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ChatConfig:
    """How a template is rendered.

    Attributes:
        date: today, for templates that write it into the system message; pinned, so that a run repeats.
        template_options: variables of the template, as `{"enable_thinking": False}`.
    """

    date: str = "2025-01-01"
    template_options: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise ConfigError(f"chat.date is {self.date!r}; expected a day as 2025-01-01") from error

    def strftime(self, pattern: str) -> str:
        """The pinned date in a template's own format."""
        return datetime.date.fromisoformat(self.date).strftime(pattern)


class ChatCodec:
    """`Codec` over a chat model's tokenizer and template, for `HermesProtocol`.

    Text of the environment may hold special tokens; an untrusted part never does, whatever it says. Every untrusted
    part is encoded on its own, so that prices add up.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        config: how to render the template.
        stop_ids: ids beside the template's end-of-turn at which this model ends a turn, as in its generation config.

    Attributes:
        frame: what the template writes around contents.
        stop_ids: ids that end a turn, the template's own end-of-turn first.
        markers: texts that no reader of plain text may be sent: added tokens, and roles that the template writes in
            plain text. Where there are such roles, untrusted parts are encoded with them broken (see `Markers`).

    Raises:
        ConfigError: no template, one that cannot be extended turn by turn, or a tokenizer that is not a fast one.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, config: ChatConfig | None = None, stop_ids: Iterable[int] = ()
    ) -> None:
        name = tokenizer.name_or_path or "this model"
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ConfigError(f"the tokenizer of {name} is a {type(tokenizer).__name__}; a chat needs a fast tokenizer")
        if not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of {name} has no chat template, so this is probably no chat model; use an "
                "instruction-tuned one, or set tokenizer.chat_template"
            )
        self._encoder = TextEncoder(backend)
        self.frame = find_frame(_renderer(tokenizer, config or ChatConfig()), self._encoder.markers)
        self._end = self._encoder.encode_trusted(self.frame.end)
        roles = self.frame.plain_roles(self._encoder.markers)
        self._plain_markers = Markers(roles) if roles else None
        self.markers = (*self._encoder.markers, *roles)
        self.stop_ids = tuple(dict.fromkeys((*self._end, *stop_ids)))
        self._check_pieces()

    def encode(self, messages: Sequence[Message], boundary: Boundary) -> tuple[int, ...]:
        """See `Codec`. Raises `ConfigError` for messages other than an opening or replies."""
        ids: list[int] = []
        parts = self.frame.parts(messages, boundary)
        for trusted, run in itertools.groupby(parts, key=lambda part: part.trusted):
            texts = [part.text for part in run]
            if trusted:
                ids += self._encoder.encode_trusted("".join(texts))
            else:
                ids += itertools.chain.from_iterable(map(self._encode_plain, texts))
        return tuple(ids)

    def encode_scripted(self, text: str) -> tuple[int, ...]:
        return (*self._encoder.encode_scripted(self.frame.lead + text), *self._end)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of generated ids without the id that ended the turn; `<think>` in front if the prompt opened it."""
        generated = list(ids)
        if generated and generated[-1] in self.stop_ids:
            generated.pop()
        return "<think>" * self.frame.opens_thinking + self._encoder.decode(generated)

    def count(self, messages: Sequence[Message], boundary: Boundary) -> int:
        return len(self.encode(messages, boundary))

    def count_text(self, text: str) -> int:
        return len(self._encode_plain(text))

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        return self._encoder.encode_plain(text if self._plain_markers is None else self._plain_markers.neutralise(text))

    def _check_pieces(self) -> None:
        """The rule of extension on ids: prompt, generated ids and block together read as the whole text does."""
        system, task, call, reply = "Probe of system.", "Probe of task?", "Probe of a call", "Probe of a reply."
        opening = Message(MessageRole.SYSTEM, (Part(system, True),)), Message(MessageRole.USER, (Part(task),))
        block = (Message(MessageRole.TOOL, (Part(reply),)),)
        frame, encoder = self.frame, self._encoder
        before_call = (frame.before_system, system, frame.before_user, task, frame.after_user, frame.lead)
        text = "".join((*before_call, call, frame.end, frame.before_reply, reply, frame.after_reply))
        ids = (
            *self.encode(opening, Boundary.OPENING),
            *self.encode_scripted(call),
            *self.encode(block, Boundary.AFTER_STOP),
        )
        expected = encoder.decode(encoder.encode_trusted(text))
        if encoder.decode(ids) != expected:
            raise ConfigError(
                f"this tokenizer does not encode piecewise: the pieces of a probe read {encoder.decode(ids)!r}, the "
                f"whole reads {expected!r}; use a byte-level or byte-fallback tokenizer"
            )


def _renderer(tokenizer: PreTrainedTokenizerBase, config: ChatConfig) -> Render:
    unknown = [name for name in config.template_options if not re.search(rf"\b{name}\b", str(tokenizer.chat_template))]
    if unknown:
        raise ConfigError(f"chat.template_options has {unknown[0]!r}, which this model's template does not look at")
    variables: dict[str, Any] = {
        "strftime_now": config.strftime,
        "date_string": config.strftime("%d %b %Y"),  # Llama 3's own name for the date, in its own format
        **config.template_options,
    }

    def render(messages: Sequence[dict[str, str]]) -> str:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **variables)
        assert isinstance(text, str)
        return text

    return render
