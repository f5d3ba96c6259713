"""The prompt format of the embedded character-level model: special tokens in place of a chat model's sentences.

root     <root>#ABCDEF?BF<asst>            keys after '#'; with full texts, one <doc> each in their place
call     <call>+@B<sep>+@F</call>          objective, '@' and the one-character keys it shares
read     <read>BF</read>
clone    <clone>+<doc>B35172<asst>
replies  <tool>a8b2<asst>                  a failed clone's reply is '!'
error    <err><asst>
note     <root>#ABCDEF?BF[3]<asst>         its number before the message's last token; an untrusted note is its text
answer   ...thought...<ans>7<end>
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from selfcest_env.protocol import LABELS, Brief, Note, Reply, split_sections
from selfcest_env.types import (
    Action,
    Answer,
    CloneRequest,
    Delegate,
    Fault,
    Malformed,
    Message,
    MessageRole,
    Part,
    Read,
    Role,
)

# An incomplete marker at the end of a reply matches too, because the next label could complete it.
_SPECIAL = re.compile(r"<(?=/?[a-z]*(?:>|\Z))")


class TerseProtocol:
    """The semantics of `HermesProtocol`, but without `max_tokens`, so all clones of a call get equal grants."""

    def open(self, brief: Brief) -> tuple[Message, ...]:
        parts = [Part("<root>" if brief.role is Role.ROOT else "<clone>", True)]
        hidden = [key for key in brief.keys if key not in brief.documents]
        if brief.role is Role.CLONE:
            parts.append(Part(brief.text))
        if hidden and brief.role is Role.ROOT:
            parts.append(Part("#" + "".join(hidden)))
        parts += self._documents(brief.documents)
        if brief.role is Role.ROOT:
            parts.append(Part(brief.text))
        return (Message(MessageRole.USER, (*parts, Part("<asst>", True))),)

    def replies(self, replies: Sequence[Reply]) -> Message:
        parts = [Part("<tool>", True)]
        for i, reply in enumerate(replies):
            parts += [
                Part(LABELS[i % len(LABELS)], True),
                Part("!" if reply.text is None else self.neutralise(reply.text)),
            ]
        return Message(MessageRole.TOOL, (*parts, Part("<asst>", True)))

    def documents(self, documents: Mapping[str, str]) -> Message:
        return Message(MessageRole.TOOL, (*self._documents(documents), Part("<asst>", True)))

    def fault(self, fault: Fault) -> Message:
        return Message(MessageRole.TOOL, (Part("<err><asst>", True),))

    def note(self, message: Message, note: Note) -> Message:
        *before, last = message.parts
        head, end, _ = last.text.rpartition("<asst>")
        note_part = Part(f"[{min(note.number, 99)}]", True) if note.trusted else Part(note.text)
        if head:
            before.append(Part(head, last.trusted))
        return Message(message.role, (*before, note_part, Part(end, True)))

    def neutralise(self, reply: str) -> str:
        return _SPECIAL.sub("(", reply)

    def parse(self, text: str) -> Action:
        text = text.removesuffix("<end>")
        calls, outside = split_sections(text, "<call>", "</call>")
        reads, _ = split_sections(outside, "<read>", "</read>")
        if calls is None or reads is None or (calls and reads) or not all((*calls, *reads)):
            return Malformed(Fault.BAD_CALL)
        if calls:
            requests = []
            for call in calls:
                requests += [self._parse_request(piece) for piece in call.split("<sep>")]
            return Delegate(tuple(requests))
        if reads:
            return Read(tuple("".join(reads)))
        _, marker, answer = text.rpartition("<ans>")
        return Answer(answer) if marker and answer else Malformed(Fault.NO_ANSWER)

    def render(self, action: Action, thought: str = "") -> str:
        match action:
            case Answer(text):
                return f"{thought}<ans>{text}<end>"
            case Read(keys):
                return f"{thought}<read>{''.join(keys)}</read>"
            case Delegate(requests):
                return f"{thought}<call>{'<sep>'.join(map(self._render_request, requests))}</call>"
            case Malformed():
                return f"{thought}<end>"

    @staticmethod
    def _documents(documents: Mapping[str, str]) -> list[Part]:
        parts: list[Part] = []
        for key, text in documents.items():
            parts += [Part("<doc>", True), Part(key + text)]
        return parts

    @staticmethod
    def _parse_request(piece: str) -> CloneRequest:
        objective, _, keys = piece.partition("@")
        return CloneRequest(objective, tuple(keys))

    @staticmethod
    def _render_request(request: CloneRequest) -> str:
        if request.objective and not request.shared_context:
            return request.objective
        return f"{request.objective}@{''.join(request.shared_context)}"


class BudgetedTerseProtocol(TerseProtocol):
    """`terse` whose prompts show every agent its grant: one number after the opening token, of `bucket`.

    root     <root>[35]#ABCDEF?BF<asst>        a budget of 431 to 511 tokens
    clone    <clone>[28]+<doc>B35172<asst>     its grant: 128 to 152

    The price of a prompt does not depend on the number, and without a limit on total tokens there is none.
    """

    def open(self, brief: Brief) -> tuple[Message, ...]:
        messages = super().open(brief)
        if brief.total_tokens is None:
            return messages
        (message,) = messages
        first, *rest = message.parts
        return (Message(message.role, (first, Part(f"[{bucket(brief.total_tokens)}]", True), *rest)),)


def bucket(tokens: int) -> int:
    """floor(4 log2 tokens), four to each doubling; 0 for no tokens, 99 at most: all are one token of the tiny model."""
    return min(99, max(0, (tokens**4).bit_length() - 1))
