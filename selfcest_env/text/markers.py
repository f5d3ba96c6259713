"""Text that whoever reads it cannot take for a role, a special token or a call: the one place where it is made so.

Engines that encode untrusted parts apart from trusted ones need none of this. It is for readers of text: servers with
a chat template of their own, judges, transcripts.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from selfcest_env.protocol import Brief, Note, PromptFormat, Reply, with_note
from selfcest_env.types import Action, Fault, Message, MessageRole, Part

# What agents write themselves by one of our protocols; nobody else may write it.
_OWN = r"(?!/?(?:tool_call|think|call|read|sep|ans|end)>)"
# A marker begun at the end of a part counts: what comes next could complete it. Where none can begin, none can stand.
# Of <|im_start|> <s> <extra_id_0> <turn|> <0x0A>, [INST] [gMASK] [|user|], ]~b]user [e~[, ◁think▷, and >>QUESTION<<,
# whose first half may be the end of what we write ourselves before an untrusted part.
_OPENER = (
    r"<{own}(?=/?[\w:.=-]{{0,64}}+(?:[>|]|\Z))"
    r"|\[(?=/?(?:\||(?-i:[A-Z][A-Z0-9_]{{1,40}}+\])|\w{{0,40}}+\Z"
    r"|(?:[gs]?mask|inst|sys|tool|control_|avail|unused|extra_id|start_|end_|img|image|think|bos|eos|eot|cls|sep|pad|unk)\w*+\]))"
    r"|(?<![^][!])~|~(?![^][!])"
    r"|◁(?=/?\w{{0,24}}+(?:▷|\Z))"
    r"|>(?=\Z|>\w{{0,24}}+(?:<|\Z))|\A>(?=\w{{0,24}}+(?:<|\Z))"
)
# No normaliser makes the one of the other.
_INSTEAD = {"<": "\u2039", ">": "\u203a", "[": "(", "~": "\u223c", "◁": "\u25c3"}
_BREAK = "\u00b7"  # within a marker that is made of other characters
LONGEST = 32  # characters by which a marker is known
CACHED_TEXTS = 4096  # a transcript is sent anew at every turn


class _Folds:
    """A character as the normalisers of tokenizers may leave it: one like it, or nothing."""

    @staticmethod
    @lru_cache(CACHED_TEXTS)
    def __getitem__(code: int) -> str:
        char = chr(code)
        if unicodedata.category(char)[0] in "CM" and char not in "\t\n\r":
            return ""
        folded = unicodedata.normalize("NFKC", char)
        return folded if len(folded) == 1 else char


_FOLDS = _Folds()


@dataclass(frozen=True)
class Markers:
    """Which texts must not get through: those of every family of templates that we know of, and `others`.

    Attributes:
        others: what the served model's own tokenizer adds to them, as `tokenizer.get_added_vocab()`, and what its
            template writes between contents where these are plain text. White space and single characters are ignored.
    """

    others: tuple[str, ...] = ()

    def neutralise(self, text: str) -> str:
        """`text` with every marker broken, in a form that stands beside any other text. Linear time, idempotent."""
        return _broken(text, self._pattern)

    def neutralise_own(self, text: str) -> str:
        """What a model said, shown to itself: calls, answers and thinking of our protocols stay."""
        return _broken(text, self._own_pattern)

    @property
    def fingerprint(self) -> str:
        """Equal where equal texts come out equal."""
        return f"{self._pattern.pattern} {_INSTEAD} {_BREAK}"

    def clean(self, message: Message) -> Message:
        """The message with its untrusted parts neutralised."""
        change = self.neutralise_own if message.role is MessageRole.ASSISTANT else self.neutralise
        parts = tuple(part if part.trusted else Part(change(part.text)) for part in message.parts)
        return Message(message.role, parts)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join((_OPENER.format(own=""), *self._literals)), re.I)

    @cached_property
    def _own_pattern(self) -> re.Pattern[str]:
        # A turn is the whole of its message, so nothing can complete what ends it.
        whole = "|".join((_OPENER.format(own=_OWN), *self._literals)).replace(r"\Z", "(?!)")
        return re.compile(whole, re.I)

    @cached_property
    def _literals(self) -> tuple[str, ...]:
        """Patterns of `others` that no rule above finds wherever they stand."""
        rules = re.compile(_OPENER.format(own=""), re.I)
        folded = {_fold(text.strip()) for text in self.others}
        missed = sorted(text for text in folded if len(text) > 1 and not rules.search(f"\n{text}\n"))
        return tuple(map(_begun, missed))


def _begun(marker: str) -> str:
    """Pattern of a marker's first character where the rest follows, or as much of it as the text has room for."""
    rest = ""
    for char in reversed(marker[1:LONGEST]):
        rest = rf"(?:\Z|{re.escape(char)}{rest})"
    return rf"{re.escape(marker[0])}(?={rest})"


def _fold(text: str) -> str:
    return text.translate(_FOLDS)


@lru_cache(CACHED_TEXTS)
def _broken(text: str, pattern: re.Pattern[str]) -> str:
    folded = _fold(text)
    found = [match.start() for match in pattern.finditer(folded)]
    if not found:
        return text
    if len(folded) < len(text):
        kept = [i for i, char in enumerate(text) if _FOLDS[ord(char)]]
        places = [kept[i] for i in found]
    else:
        places = found
    new = [_INSTEAD.get(folded[i]) or text[at] + _BREAK for i, at in zip(found, places, strict=True)]
    between = [text[i:j] for i, j in zip([0, *(at + 1 for at in places)], [*places, len(text)], strict=True)]
    return "".join(itertools.chain.from_iterable(zip(between, [*new, ""], strict=True)))


class PlainTextProtocol:
    """A protocol for readers of text: what it says is neutral before it is priced, so prices are of what is sent.

    Args:
        protocol: whose calls and answers these are.
        markers: what must not get through; by default what is known without a tokenizer.
    """

    def __init__(self, protocol: PromptFormat, markers: Markers | None = None) -> None:
        self.protocol, self._markers = protocol, markers or Markers()

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
