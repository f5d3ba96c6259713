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
    """A prompt format around another one, to which it delegates; the base class of those that add to it.

    Attributes:
        protocol: the inner format. `protocol.find_capability` also searches it.
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


def add_note(protocol: PromptFormat, opening: tuple[Message, ...], note: Note) -> tuple[Message, ...]:
    """Return an agent's first messages with a note in the first one."""
    first, *rest = opening
    return with_note(protocol, first, note), *rest


def _check_lacks(prompt_variant: object, protocol: PromptFormat, capability: type) -> None:
    """Raise `ConfigError` if the format has the capability already, because its notes would contradict each other."""
    other = find_capability(protocol, capability)
    if other is not None:
        raise ConfigError(
            f"{prompt_variant!r} stands around {other!r}, whose notes would contradict it; leave one of the two out"
        )


# A fixed note


@stored_as("Tell", root="root", clone="clone")
@dataclass(frozen=True)
class AddNote:
    """A prompt variant that adds a note to the opening of the root, of every clone, or of both.

    Attributes:
        root: note for the root, or `None`.
        clone: note for every clone, or `None`.
    """

    root: Note | None = None
    clone: Note | None = None

    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        return _WithNotes(protocol, self)


@dataclass(frozen=True)
class _WithNotes(ProtocolDecorator):
    notes: AddNote

    def open(self, brief: Brief) -> tuple[Message, ...]:
        note = self.notes.root if brief.role is Role.ROOT else self.notes.clone
        opening = self.protocol.open(brief)
        return opening if note is None else add_note(self.protocol, opening, note)


# The number of clones


@stored_as("TellClones")
@dataclass(frozen=True)
class AddCloneLimit:
    """A prompt variant that tells agents which may delegate how many clones they and their subtrees may start."""

    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        return _WithCloneLimit(protocol)


@dataclass(frozen=True)
class _WithCloneLimit(ProtocolDecorator):
    def open(self, brief: Brief) -> tuple[Message, ...]:
        opening = self.protocol.open(brief)
        if not brief.can_delegate or brief.clones is None:
            return opening
        return add_note(
            self.protocol, opening, Note(f"You may start clones: at most {brief.clones} in all.", brief.clones)
        )


class HermesClonesProtocol(_WithCloneLimit):
    """`hermes` with `AddCloneLimit` under a registered name, so that a policy can be trained on several limits."""

    def __init__(self) -> None:
        super().__init__(HermesProtocol())


class TerseClonesProtocol(_WithCloneLimit):
    """`terse` with `AddCloneLimit`: `<root>#ABCDEF?BF[4]<asst>`."""

    def __init__(self) -> None:
        super().__init__(TerseProtocol())


# The number of turns


@stored_as("TellTurns", turns="turns", extension="extension", reminders="reminders")
@dataclass(frozen=True)
class AddTurnLimit(Checked):
    """A prompt variant that tells an agent how many turns it has, and after every turn how many are left.

    Attributes:
        turns: turns that an agent has without asking for more.
        extension: further turns. An agent asks for them in a line `More turns: N` outside of its thinking, in a turn
            that may also call or read. The sum of `turns` and `extension` must not exceed the episode's `max_turns`.
        reminders: whether every turn is followed by the number of turns left; else only the opening has a number.
    """

    turns: Count
    extension: Size = 0
    reminders: bool = True

    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        _check_lacks(self, protocol, ControlsTurns)
        return _WithTurnLimit(protocol, self.turns, self.extension, self.reminders)


_REQUEST_FOR_TURNS = re.compile(r"^More turns: ?([0-9]{1,4})", re.MULTILINE)


@dataclass(frozen=True)
class _WithTurnLimit(ProtocolDecorator):
    """Implements `ControlsTurns`."""

    turns: int
    extension: int
    reminders: bool

    def open(self, brief: Brief) -> tuple[Message, ...]:
        lines = [f"You have {_format_turns(self.turns)}."]
        if self.extension:
            lines.append(f"For up to {self.extension} more write a line 'More turns: N' beside a call.")
        return add_note(self.protocol, self.protocol.open(brief), Note(" ".join(lines), self.turns))

    def count_requested_turns(self, text: str) -> int:
        if not self.extension:
            return 0
        return sum(map(int, _REQUEST_FOR_TURNS.findall(THINKING.sub("\n", text))))

    def remind(self, message: Message, left: int) -> Message:
        if not self.reminders:
            return message
        return with_note(self.protocol, message, Note(f"You have {_format_turns(left)} left.", left))


def _format_turns(number: int) -> str:
    return "1 turn" if number == 1 else f"{number} turns"


# A board of notes


@stored_as("TellBoard", posts="posts")
@dataclass(frozen=True)
class AddBoard(Checked):
    """A prompt variant with a board: clones leave notes, which clones of later calls of their parent get as documents.

    A note is a line `post: ...` of a clone's reply. The parent reads it in the reply, and a later clone pays for it as
    for any document. No clone observes a note of its own call, so its observations do not depend on a running sibling.
    The inner format must write notes as sentences, because a number cannot ask for lines.

    Attributes:
        posts: most notes that a clone gets; the latest ones, without repetitions.
    """

    posts: Count = 8

    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        _check_lacks(self, protocol, KeepsBoard)
        opening = add_note(protocol, protocol.open(Brief(Role.CLONE, "")), _INVITATION)
        if not any(_INVITATION.text in message.content for message in opening):
            *_, innermost = iter_layers(protocol)
            raise ConfigError(
                f"the protocol is {type(innermost).__name__}, which writes notes as numbers; expected one that writes "
                "sentences, because a board needs lines 'post: ...': use hermes, or leave the board out"
            )
        return _WithBoard(protocol, self.posts)


_POST = re.compile(r"^post: *(\S.*)$", re.MULTILINE)
_INVITATION = Note("After your answer you may write lines 'post: ...', for clones that come after you.", 1)


@dataclass(frozen=True)
class _WithBoard(ProtocolDecorator):
    """Implements `KeepsBoard`."""

    posts: int

    def open(self, brief: Brief) -> tuple[Message, ...]:
        opening = self.protocol.open(brief)
        return opening if brief.role is Role.ROOT else add_note(self.protocol, opening, _INVITATION)

    def board(self, replies: Mapping[AgentId, str]) -> Mapping[str, str]:
        authors: dict[str, AgentId] = {}
        for agent, reply in replies.items():
            for post in map(str.strip, _POST.findall(reply)):
                # Removed first, so that a repeated note moves to the end and counts as one of the latest.
                authors.pop(post, None)
                authors[post] = agent
        latest = list(authors.items())[-self.posts :]
        return {f"post {i + 1} of {agent}": post for i, (post, agent) in enumerate(latest)}
