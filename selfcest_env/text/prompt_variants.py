"""Prompt variants: notes that are added to an agent's prompt, its number of clones or turns, and a board of notes.

A prompt variant takes a protocol and returns one that says more (`protocol.PromptVariant`). It works with every
protocol that has `note`: a chat model reads the sentence, the embedded model reads the number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfcest_env.errors import ConfigError
from selfcest_env.protocol import (
    Brief,
    ControlsTurns,
    KeepsBoard,
    Note,
    PromptFormat,
    Reply,
    find_capability,
    iter_layers,
    with_note,
)
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count, Size
from selfcest_env.text.hermes import THINKING, HermesProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import Action, AgentId, Fault, Message, Role


@dataclass(frozen=True)
class ProtocolDecorator:
    """A protocol that says what another says: the base of those that say more.

    Attributes:
        protocol: that one, where `protocol.find_capability` finds what it offers besides.
    """

    protocol: PromptFormat

    def open(self, brief: Brief) -> tuple[Message, ...]:
        return self.protocol.open(brief)

    def replies(self, replies: Sequence[Reply]) -> Message:
        return self.protocol.replies(replies)

    def documents(self, documents: Mapping[str, str]) -> Message:
        return self.protocol.documents(documents)

    def fault(self, fault: Fault) -> Message:
        return self.protocol.fault(fault)

    def note(self, message: Message, note: Note) -> Message:
        return with_note(self.protocol, message, note)

    def neutralise(self, reply: str) -> str:
        return self.protocol.neutralise(reply)

    def parse(self, text: str) -> Action:
        return self.protocol.parse(text)

    def render(self, action: Action, thought: str = "") -> str:
        return self.protocol.render(action, thought)


def told(protocol: PromptFormat, opening: tuple[Message, ...], note: Note) -> tuple[Message, ...]:
    """An agent's first messages with a note in the first of them."""
    first, *rest = opening
    return with_note(protocol, first, note), *rest


def _alone(prompt_variant: object, protocol: PromptFormat, kind: type) -> None:
    """Raise `ConfigError` if the protocol is of that kind already: agents would be told two things."""
    if (other := find_capability(protocol, kind)) is not None:
        raise ConfigError(f"{prompt_variant!r} stands around {other!r}, which says another; leave one of the two out")


# One thing to every agent


@stored_as("Tell", root="root", clone="clone")
@dataclass(frozen=True)
class Tell:
    """A prompt variant: a note to the root and one to every clone, when they start; `None`: none."""

    root: Note | None = None
    clone: Note | None = None

    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        return _Told(protocol, self)


@dataclass(frozen=True)
class _Told(ProtocolDecorator):
    said: Tell

    def open(self, brief: Brief) -> tuple[Message, ...]:
        note, opening = self.said.root if brief.role is Role.ROOT else self.said.clone, self.protocol.open(brief)
        return opening if note is None else told(self.protocol, opening, note)


# How many clones


@stored_as("TellClones")
@dataclass(frozen=True)
class TellClones:
    """A prompt variant: who may delegate is told how many clones its account pays for, subtree included."""

    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        return _ClonesTold(protocol)


@dataclass(frozen=True)
class _ClonesTold(ProtocolDecorator):
    def open(self, brief: Brief) -> tuple[Message, ...]:
        opening = self.protocol.open(brief)
        if not brief.can_delegate or brief.clones is None:
            return opening
        return told(self.protocol, opening, Note(f"You may start clones: at most {brief.clones} in all.", brief.clones))


class HermesClonesProtocol(_ClonesTold):
    """`hermes` with `TellClones`, by a name, so that a policy can be trained for several numbers."""

    def __init__(self) -> None:
        super().__init__(HermesProtocol())


class TerseClonesProtocol(_ClonesTold):
    """`terse` with `TellClones`: `<root>#ABCDEF?BF[4]<asst>`."""

    def __init__(self) -> None:
        super().__init__(TerseProtocol())


# How many turns


@stored_as("TellTurns", turns="turns", extension="extension", reminders="reminders")
@dataclass(frozen=True)
class TellTurns(Checked):
    """A prompt variant: how many turns an agent has, and after every turn how many are left.

    Attributes:
        turns: without asking.
        extension: further turns, for who asks for them in a line `More turns: N` outside its thinking, beside whatever
            else that turn does. 0: none. The episode's `max_turns` is at least their sum.
        reminders: whether agents are told what is left; without it they are told at the start alone.
    """

    turns: Count
    extension: Size = 0
    reminders: bool = True

    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        _alone(self, protocol, ControlsTurns)
        return _TurnsTold(protocol, self.turns, self.extension, self.reminders)


_ASK = re.compile(r"^More turns: ?([0-9]{1,4})", re.MULTILINE)


@dataclass(frozen=True)
class _TurnsTold(ProtocolDecorator):
    """See `ControlsTurns`."""

    turns: int
    extension: int
    reminders: bool

    def open(self, brief: Brief) -> tuple[Message, ...]:
        lines = [f"You have {_turns(self.turns)}."]
        if self.extension:
            lines.append(f"For up to {self.extension} more write a line 'More turns: N' beside a call.")
        return told(self.protocol, self.protocol.open(brief), Note(" ".join(lines), self.turns))

    def asked(self, text: str) -> int:
        return sum(map(int, _ASK.findall(THINKING.sub("\n", text)))) if self.extension else 0

    def remind(self, message: Message, left: int) -> Message:
        if not self.reminders:
            return message
        return with_note(self.protocol, message, Note(f"You have {_turns(left)} left.", left))


def _turns(number: int) -> str:
    return "1 turn" if number == 1 else f"{number} turns"


# A board of what was found


@stored_as("TellBoard", posts="posts")
@dataclass(frozen=True)
class TellBoard(Checked):
    """A prompt variant: clones may leave notes, which clones of their parent's later calls are shown as documents.

    A note is a line `post: ...` of a clone's reply. Its parent reads it in the reply; who comes later pays for it as it
    does for any document. No clone sees a note of its own call, so nothing it sees depends on a running sibling. It
    needs a protocol of sentences: one that says a note by its number cannot ask for lines.

    Attributes:
        posts: shown at most: the latest, each text once.
    """

    posts: Count = 8

    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        _alone(self, protocol, KeepsBoard)
        invited = told(protocol, protocol.open(Brief(Role.CLONE, "")), _INVITED)
        if not any(_INVITED.text in message.content for message in invited):
            *_, innermost = iter_layers(protocol)
            raise ConfigError(
                f"a board is kept in lines 'post: ...', and {type(innermost).__name__} has no lines: it says a note by "
                "its number; play without a board, or by a protocol of sentences such as hermes"
            )
        return _BoardTold(protocol, self.posts)


_POST = re.compile(r"^post: *(\S.*)$", re.MULTILINE)
_INVITED = Note("After your answer you may write lines 'post: ...', for clones that come after you.", 1)


@dataclass(frozen=True)
class _BoardTold(ProtocolDecorator):
    """See `KeepsBoard`."""

    posts: int

    def open(self, brief: Brief) -> tuple[Message, ...]:
        opening = self.protocol.open(brief)
        return opening if brief.role is Role.ROOT else told(self.protocol, opening, _INVITED)

    def board(self, replies: Mapping[AgentId, str]) -> Mapping[str, str]:
        authors: dict[str, AgentId] = {}
        for agent, reply in replies.items():
            for post in map(str.strip, _POST.findall(reply)):
                authors.pop(post, None)  # said again, it is one of the latest
                authors[post] = agent
        latest = list(authors.items())[-self.posts :]
        return {f"post {i + 1} of {agent}": post for i, (post, agent) in enumerate(latest)}
