"""Neutralises markers in untrusted text, so that no reader takes it for a role, a special token or a call.

Engines that encode untrusted parts apart from trusted ones do not need it. It serves readers of plain text: servers
with a chat template of their own, judges, and transcripts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from selfcest_env.protocol import Brief, Note, PromptFormat, Reply, with_note
from selfcest_env.types import Action, Fault, Message, MessageRole, Part

# Tags of our own prompt formats, which an agent may write in its own turns.
_OWN_TAGS = r"(?!/?(?:tool_call|think|call|read|sep|ans|end)>)"
# The first characters of markers such as <|im_start|> <s> <extra_id_0> <turn|> <0x0A>, [INST] [gMASK] [|user|],
# ]~b]user [e~[, ◁think▷ and >>QUESTION<<. An incomplete marker at the end of a part matches too, because the next part
# could complete it. The first > of >>QUESTION<< may be the end of trusted text before the part, so one > at the start
# of a part matches as well.
_OPENER = (
    r"<{own}(?=/?[\w:.=-]{{0,64}}+(?:[>|]|\Z))"
    r"|\[(?=/?(?:\||(?-i:[A-Z][A-Z0-9_]{{1,40}}+\])|\w{{0,40}}+\Z"
    r"|(?:[gs]?mask|inst|sys|tool|control_|avail|unused|extra_id|start_|end_|img|image|think|bos|eos|eot|cls|sep|pad|unk)\w*+\]))"
    r"|(?<![^][!])~|~(?![^][!])"
    r"|◁(?=/?\w{{0,24}}+(?:▷|\Z))"
    r"|>(?=\Z|>\w{{0,24}}+(?:<|\Z))|\A>(?=\w{{0,24}}+(?:<|\Z))"
)
# `re` skips over text without a marker if every alternative of a pattern starts with a character, which is ten times as
# fast. So these look behind only after their character. The text of the pattern stays the identity of the markers.
_CHARACTER_FIRST = {r"|(?<![^][!])~": r"|~(?<![^][!]~)", r"|\A>": r"|>(?<=\A>)"}
# Replacements that no Unicode normaliser turns back into the original.
_REPLACEMENTS = {"<": "\u2039", ">": "\u203a", "[": "(", "~": "\u223c", "◁": "\u25c3"}
_BREAK = "\u00b7"  # inserted into a marker whose first character has no replacement
LONGEST = 32  # characters of a marker that are compared
CACHED_TEXTS = 4096  # every turn sends the whole transcript again


@lru_cache(CACHED_TEXTS)
def _fold_character(code: int) -> str:
    """Return the character that a tokenizer's normaliser may make of this one, or nothing."""
    char = chr(code)
    if unicodedata.category(char)[0] in "CM" and char not in "\t\n\r":
        return ""
    folded = unicodedata.normalize("NFKC", char)
    return folded if len(folded) == 1 else char


class _Folds(dict[int, str]):
    """Maps characters as `_fold_character` does. It holds those of ASCII, which nearly all texts consist of."""

    def __missing__(self, code: int) -> str:
        return _fold_character(code)


_FOLDS = _Folds({code: _fold_character(code) for code in range(128)})


@dataclass(frozen=True)
class Markers:
    """The markers that are neutralised: those of all known families of chat templates, and `others`.

    Attributes:
        others: further markers: those of the served model's tokenizer (`tokenizer.get_added_vocab()`), and the plain
            texts that its template writes between messages. White space and single characters are ignored.
    """

    others: tuple[str, ...] = ()

    def neutralise(self, text: str) -> str:
        """Return the text with every marker broken, whatever text stands beside it. Linear time, idempotent."""
        return _break_markers(text, self._pattern)

    def neutralise_own(self, text: str) -> str:
        """Return an agent's own turn with markers broken; calls, answers and thinking of our formats stay."""
        return _break_markers(text, self._own_pattern)

    @property
    def fingerprint(self) -> str:
        """Equal for markers that neutralise every text equally."""
        return f"{self._pattern} {_REPLACEMENTS} {_BREAK}"

    def clean(self, message: Message) -> Message:
        """Return the message with its untrusted parts neutralised."""
        neutralise = self.neutralise_own if message.role is MessageRole.ASSISTANT else self.neutralise
        parts: list[Part] = []
        for part in message.parts:
            text = part.text if part.trusted else neutralise(part.text)
            parts.append(part if text == part.text else Part(text))
        return Message(message.role, tuple(parts))

    @cached_property
    def _pattern(self) -> str:
        return "|".join((_OPENER.format(own=""), *self._literals))

    @cached_property
    def _own_pattern(self) -> str:
        # A turn fills its message, so no later part can complete an incomplete marker at its end.
        return "|".join((_OPENER.format(own=_OWN_TAGS), *self._literals)).replace(r"\Z", "(?!)")

    @cached_property
    def _literals(self) -> tuple[str, ...]:
        """Patterns of the markers in `others` that `_OPENER` does not match."""
        opener = re.compile(_OPENER.format(own=""), re.I)
        folded = {_fold(text.strip()) for text in self.others}
        unmatched = sorted(text for text in folded if len(text) > 1 and not opener.search(f"\n{text}\n"))
        return tuple(map(_prefix_pattern, unmatched))


def _prefix_pattern(marker: str) -> str:
    """Return a pattern of a marker's first character, followed by its rest or by a part of it that ends the text."""
    rest = ""
    for char in reversed(marker[1:LONGEST]):
        rest = rf"(?:\Z|{re.escape(char)}{rest})"
    return rf"{re.escape(marker[0])}(?={rest})"


def _fold(text: str) -> str:
    return text.translate(_FOLDS)


@lru_cache
def _compile(pattern: str) -> re.Pattern[str]:
    for start, character_first in _CHARACTER_FIRST.items():
        pattern = pattern.replace(start, character_first)
    return re.compile(pattern, re.I)


# The pattern is a text, because the hash of a compiled one is computed again for every look-up.
@lru_cache(CACHED_TEXTS)
def _break_markers(text: str, pattern: str) -> str:
    folded = _fold(text)
    matches = [match.start() for match in _compile(pattern).finditer(folded)]
    if not matches:
        return text
    positions = matches
    if len(folded) < len(text):
        # Folding has removed characters, so positions in the folded text are mapped back.
        remaining = [i for i, char in enumerate(text) if _FOLDS[ord(char)]]
        positions = [remaining[i] for i in matches]
    pieces = []
    end = 0
    for match, position in zip(matches, positions, strict=True):
        pieces.append(text[end:position])
        pieces.append(_REPLACEMENTS.get(folded[match]) or text[position] + _BREAK)
        end = position + 1
    pieces.append(text[end:])
    return "".join(pieces)


class PlainTextProtocol:
    """A prompt format for readers of plain text. It neutralises messages before they are counted, so costs are exact.

    Args:
        protocol: the inner format, which defines calls and answers.
        markers: markers to neutralise; by default those that are known without a tokenizer.
    """

    def __init__(self, protocol: PromptFormat, markers: Markers | None = None) -> None:
        self.protocol = protocol
        self._markers = markers or Markers()

    def open(self, brief: Brief) -> tuple[Message, ...]:
        return tuple(map(self._markers.clean, self.protocol.open(brief)))

    def replies(self, replies: Sequence[Reply]) -> Message:
        return self._markers.clean(self.protocol.replies(replies))

    def documents(self, documents: Mapping[str, str]) -> Message:
        return self._markers.clean(self.protocol.documents(documents))

    def fault(self, fault: Fault) -> Message:
        return self._markers.clean(self.protocol.fault(fault))

    def note(self, message: Message, note: Note) -> Message:
        return self._markers.clean(with_note(self.protocol, message, note))

    def neutralise(self, reply: str) -> str:
        return self._markers.neutralise(self.protocol.neutralise(reply))

    def parse(self, text: str) -> Action:
        return self.protocol.parse(text)

    def render(self, action: Action, thought: str = "") -> str:
        return self.protocol.render(action, thought)
