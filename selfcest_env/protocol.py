"""The interface of prompt formats: texts to actions and back, and the messages of the environment.

The protocols themselves (`text.hermes`, `text.terse`) have the same semantics. Nothing a model wrote is executed, and
nothing it wrote is trusted.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as, stored_fields, stored_name
from selfcest_env.structure import format_value
from selfcest_env.types import Action, AgentId, Fault, Message, Role, Status

T = TypeVar("T")

LABELS = string.ascii_lowercase  # of clones, where a name may take one character
LONGEST_POST_KEY = 32  # characters
LONGEST_NAME = 200  # characters, of a prompt variant


@dataclass(frozen=True, slots=True)
class Brief:
    """The information that an agent gets when it starts.

    Attributes:
        role: root or clone.
        text: the task's prompt, or the clone's objective.
        keys: documents it may name.
        documents: documents whose full text it sees.
        can_delegate, can_read: the tools this agent has at its depth (its account may still forbid a call later).
        total_tokens: its grant, `None` if unlimited.
        reply_tokens: upper bound on a clone's reply, `None` if unlimited.
        clones: clones that it and its subtree may start in all, `None` if unlimited or unknown.
    """

    role: Role
    text: str
    keys: tuple[str, ...] = ()
    documents: Mapping[str, str] = field(default_factory=dict)
    can_delegate: bool = False
    can_read: bool = False
    total_tokens: int | None = None
    reply_tokens: int | None = None
    clones: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to one objective: a text, or the reason why there is none."""

    text: str | None = None
    failure: Fault | Status | None = None


class PromptFormat(Protocol):
    """The interface of a prompt format. Implementations are stateless."""

    def open(self, brief: Brief) -> tuple[Message, ...]:
        """Return the first messages of an agent."""
        ...

    def replies(self, replies: Sequence[Reply]) -> Message:
        """The one message that brings a call's replies, in objective order. Every reply is a part of its own."""
        ...

    def documents(self, documents: Mapping[str, str]) -> Message:
        """Return the message with the documents that an agent asked to read."""
        ...

    def fault(self, fault: Fault) -> Message:
        """Return one line that names the fault of the last turn."""
        ...

    def neutralise(self, reply: str) -> str:
        """The reply as its parent may see it: no role marker, no special token, no call."""
        ...

    def parse(self, text: str) -> Action:
        """Parse a generation into an action. Never raises, and never executes anything."""
        ...

    def render(self, action: Action, thought: str = "") -> str:
        """Write an action as a policy would: inverse of `parse` for everything but `Malformed`."""
        ...


@runtime_checkable
class ProtocolWrapper(Protocol):
    """A protocol around another one. Capabilities that it lacks itself are found in the inner one."""

    @property
    def protocol(self) -> PromptFormat: ...


def iter_layers(protocol: PromptFormat) -> Iterator[PromptFormat]:
    """Yield a protocol and all protocols that it wraps, outermost first."""
    yield protocol
    while isinstance(protocol, ProtocolWrapper):
        protocol = protocol.protocol
        yield protocol


def find_capability(protocol: PromptFormat, kind: type[T]) -> T | None:
    """Return the outermost layer with an optional capability, such as `ControlsTurns`; `None` if there is none."""
    return next((layer for layer in iter_layers(protocol) if isinstance(layer, kind)), None)


@stored_as("Note", text="text", number="number", trusted="trusted")
@dataclass(frozen=True, slots=True)
class Note:
    """One more thing that the environment says in a message.

    Attributes:
        text: the note as a sentence.
        number: the note as one token, from 0 to 99; larger numbers are written as 99.
        trusted: whether this project wrote the text.
    """

    text: str
    number: int = 0
    trusted: bool = True


@runtime_checkable
class SupportsNotes(Protocol):
    """A protocol that can say more than its own messages do. Optional; the built-in ones can."""

    def note(self, message: Message, note: Note) -> Message:
        """The message with the note in it."""
        ...


@runtime_checkable
class ControlsTurns(Protocol):
    """A protocol that gives agents fewer turns than `Limits.max_turns`, more to who asks, and says what is left.

    Optional, as `text.prompt_variants.AddTurnLimit` makes one.

    Attributes:
        turns: that an agent may take without asking, at least 1.
        extension: further turns of an agent, however often it asks. `Limits.max_turns` is at least the sum.
    """

    @property
    def turns(self) -> int: ...

    @property
    def extension(self) -> int: ...

    def asked(self, text: str) -> int:
        """How many more turns a turn asks for; 0 if it does not."""
        ...

    def remind(self, message: Message, left: int) -> Message:
        """The message that comes before a turn, of which there are so many left."""
        ...


@runtime_checkable
class KeepsBoard(Protocol):
    """A protocol by which a clone is shown what clones of its parent's earlier calls have left for it. Optional.

    Attributes:
        posts: documents that a clone is shown, at most. Their texts are pieces of the replies, and no key has more
            than `LONGEST_POST_KEY` characters beside an agent's id.
    """

    @property
    def posts(self) -> int: ...

    def board(self, replies: Mapping[AgentId, str]) -> Mapping[str, str]:
        """Documents by key, of the replies of those clones in the order of their birth."""
        ...


def check_capabilities(protocol: PromptFormat) -> None:
    """Raise `ConfigError` for a layer that controls turns or keeps a board in part: the game would not ask it."""
    kinds: dict[type, tuple[str, ...]] = {ControlsTurns: ("asked", "remind"), KeepsBoard: ("board",)}
    for layer in iter_layers(protocol):
        for kind, methods in kinds.items():
            # Static: a wrapper that hands on whatever it is asked for has none of it itself.
            has = [name for name in methods if callable(inspect.getattr_static(layer, name, None))]
            if has and not isinstance(layer, kind):
                members = [name for name in vars(kind) if not name.startswith("_")]
                lacks = [name for name in members if inspect.getattr_static(layer, name, None) is None]
                raise ConfigError(
                    f"the protocol {type(layer).__name__} has {' and '.join(has)} and lacks {' and '.join(lacks)}, so "
                    f"the game would not ask it; add what is missing (see protocol.{kind.__name__}), or leave "
                    f"{' and '.join(has)} out"
                )


def with_note(protocol: PromptFormat, message: Message, note: Note) -> Message:
    """The message with the note in it. Raises `ConfigError` if the protocol can say no more than its own messages."""
    if (notes := find_capability(protocol, SupportsNotes)) is not None:
        return notes.note(message, note)
    raise ConfigError(
        f"the protocol {type(protocol).__name__} has no note(message, note), so agents cannot be told {note.text!r}; "
        "add that method (see protocol.SupportsNotes), or play without what says this"
    )


# A frozen dataclass that wraps a protocol with notes. Variants with equal names share their prices.
PromptVariant = Callable[[PromptFormat], PromptFormat]


def prompt_variant_name(prompt_variant: PromptVariant) -> str:
    """Return the name of a prompt variant in records: its class with all fields, by stored names, shortened.

    Raises:
        ConfigError: the value is no frozen dataclass, or a field holds a value without a fixed text.
    """
    if not (_is_frozen(prompt_variant) and callable(prompt_variant)):
        raise ConfigError(
            f"the prompt variant is {format_value(prompt_variant)}; expected a frozen dataclass with "
            "__call__(protocol), as those in selfcest_env.text.prompt_variants, whose fields name it in records"
        )
    return short_name(_written(prompt_variant, type(prompt_variant).__qualname__))


def short_name(name: str) -> str:
    """Shorten a name of more than `LONGEST_NAME` characters to its class and a digest."""
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{name.partition('(')[0][:100]}(blake2b:{digest})"


def _is_frozen(value: object) -> bool:
    params = getattr(type(value), "__dataclass_params__", None)
    return params is not None and params.frozen


def _written(value: object, place: str) -> str:
    """Write a value as the `repr` of a dataclass does, by stored names, and without a custom `__repr__`."""
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, enum.Enum):
        return str(f"{type(value).__qualname__}.{value.name}")
    if type(value) is tuple:
        items = [_written(item, f"{place}[{i}]") for i, item in enumerate(value)]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    if _is_frozen(value):
        written = [f"{name}={_written(item, f'{place}.{name}')}" for name, item in stored_fields(value).items()]
        return f"{stored_name(type(value))}({', '.join(written)})"
    raise ConfigError(
        f"{place} is {format_value(value)}, which names no prompt variant in records; expected None, a bool, int, "
        "float, str or member of an enum, a tuple of such, or a frozen dataclass with such fields"
    )


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
