"""What the game asks of a protocol: text to action and back, and what the environment says.

The protocols themselves (`text.hermes`, `text.terse`) have the same semantics. Nothing a model wrote is executed, and
nothing it wrote is trusted.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from selfcest_env.types import Action, Fault, Message, Role, Status

LABELS = string.ascii_lowercase  # of clones, where a name may take one character


@dataclass(frozen=True, slots=True)
class Brief:
    """All that an agent is told when it starts.

    Attributes:
        role: root or clone.
        text: the task's prompt, or the clone's objective.
        keys: documents it may name.
        documents: documents whose full text it sees.
        can_delegate, can_read: the tools this agent has at its depth (its account may still forbid a call later).
        total_tokens: its grant, `None` if unlimited.
        reply_tokens: upper bound on a clone's reply, `None` if unlimited.
    """

    role: Role
    text: str
    keys: tuple[str, ...] = ()
    documents: Mapping[str, str] = field(default_factory=dict)
    can_delegate: bool = False
    can_read: bool = False
    total_tokens: int | None = None
    reply_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one objective: a text, or the reason why there is none."""

    text: str | None = None
    failure: Fault | Status | None = None


class ProtocolText(Protocol):
    """The interface of a protocol. Implementations are stateless."""

    def open(self, brief: Brief) -> tuple[Message, ...]:
        """First messages of an agent."""
        ...

    def replies(self, replies: Sequence[Reply]) -> Message:
        """The one message that brings a call's replies, in objective order. Every reply is a part of its own."""
        ...

    def documents(self, documents: Mapping[str, str]) -> Message:
        """Documents an agent asked to read."""
        ...

    def fault(self, fault: Fault) -> Message:
        """One line that says why the last turn led to nothing."""
        ...

    def neutralise(self, reply: str) -> str:
        """The reply as its parent may see it: no role marker, no special token, no call."""
        ...

    def parse(self, text: str) -> Action:
        """What a generation means. Never raises; never executes anything."""
        ...

    def render(self, action: Action, thought: str = "") -> str:
        """Write an action as a policy would: inverse of `parse` for everything but `Malformed`."""
        ...


def sections(text: str, start: str, stop: str) -> tuple[list[str] | None, str]:
    """The pieces between `start` and `stop`, `None` if one is not closed; and the text outside them. Linear time."""
    inside: list[str] = []
    outside: list[str] = []
    position = 0
    while (opened := text.find(start, position)) >= 0:
        outside.append(text[position:opened])
        closed = text.find(stop, opened + len(start))
        if closed < 0:
            return None, "".join(outside)
        inside.append(text[opened + len(start) : closed])
        position = closed + len(stop)
    return inside, "".join((*outside, text[position:]))
