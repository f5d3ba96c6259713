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

LABELS = string.ascii_lowercase  # labels of clones, one character each
LONGEST_POST_KEY = 32  # characters
LONGEST_NAME = 200  # characters of a prompt variant's name


@dataclass(frozen=True, slots=True)
class Brief:
    """The information that an agent gets when it starts.

    Attributes:
        role: root or clone.
        text: the task's prompt, or the clone's objective.
        keys: documents it may name.
        documents: documents that it sees in full, by key.
        can_delegate, can_read: the tools of an agent at its depth; its account may still be too small for a call.
        total_tokens: its grant, `None` if unlimited.
        reply_tokens: upper bound on a clone's reply, `None` if unlimited.
        clones: clones that it and its subtree may start together, `None` if unlimited or unknown.
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
        """Return the message with all replies of a call, in objective order. Every reply is a part of its own."""
        ...

    def documents(self, documents: Mapping[str, str]) -> Message:
        """Return the message with the documents that an agent asked to read."""
        ...

    def fault(self, fault: Fault) -> Message:
        """Return one line that names the fault of the last turn."""
        ...

    def neutralise(self, reply: str) -> str:
        """Return the reply as its parent may see it: without role markers, special tokens and calls."""
        ...

    def parse(self, text: str) -> Action:
        """Parse a generation into an action. Never raises, and never executes anything."""
        ...

    def render(self, action: Action, thought: str = "") -> str:
        """Write an action as a policy would: inverse of `parse` for everything but `Malformed`."""
        ...


@runtime_checkable
class ProtocolWrapper(Protocol):
    """A protocol around another one. A capability that it lacks is searched for in the inner one."""

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
    """An additional piece of information in a message of the environment.

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
    """An optional capability: adding notes to messages. The built-in protocols have it."""

    def note(self, message: Message, note: Note) -> Message:
        """Return the message with the note in it."""
        ...


@runtime_checkable
class ControlsTurns(Protocol):
    """An optional capability: a turn limit below `Limits.max_turns` that agents can extend, with reminders.

    `text.prompt_variants.AddTurnLimit` is the built-in one.

    Attributes:
        turns: turns of an agent that asks for no more, at least 1.
        extension: upper bound on the further turns of an agent. `turns + extension` is at most `Limits.max_turns`.
    """

    @property
    def turns(self) -> int: ...

    @property
    def extension(self) -> int: ...

    def count_requested_turns(self, text: str) -> int:
        """Return the number of further turns that a text asks for; 0 if it asks for none."""
        ...

    def remind(self, message: Message, left: int) -> Message:
        """Return the message with a reminder of the turns left, the next one included."""
        ...


@runtime_checkable
class KeepsBoard(Protocol):
    """An optional capability: clones see posts from the replies of their parent's earlier calls.

    Attributes:
        posts: maximum number of posts that a clone sees, each a document. Its text is a piece of a reply, and its key
            has at most `LONGEST_POST_KEY` characters besides an agent's id.
    """

    @property
    def posts(self) -> int: ...

    def board(self, replies: Mapping[AgentId, str]) -> Mapping[str, str]:
        """Return the posts by key, from the replies of the earlier clones in order of birth."""
        ...


def check_capabilities(protocol: PromptFormat) -> None:
    """Raise `ConfigError` for a layer that implements an optional capability in part, which the game would ignore."""
    kinds: dict[type, tuple[str, ...]] = {ControlsTurns: ("count_requested_turns", "remind"), KeepsBoard: ("board",)}
    for layer in iter_layers(protocol):
        for kind, methods in kinds.items():
            # Static lookup, because a wrapper may forward unknown attributes to the layer that it wraps.
            present = [name for name in methods if callable(inspect.getattr_static(layer, name, None))]
            if present and not isinstance(layer, kind):
                members = [name for name in vars(kind) if not name.startswith("_")]
                missing = [name for name in members if inspect.getattr_static(layer, name, None) is None]
                raise ConfigError(
                    f"the protocol {type(layer).__name__} has {' and '.join(present)} and lacks "
                    f"{' and '.join(missing)}, so the game would ignore it; add the missing members (see "
                    f"protocol.{kind.__name__}), or remove {' and '.join(present)}"
                )


def with_note(protocol: PromptFormat, message: Message, note: Note) -> Message:
    """Return the message with the note in it. Raises `ConfigError` if the protocol does not support notes."""
    notes = find_capability(protocol, SupportsNotes)
    if notes is not None:
        return notes.note(message, note)
    raise ConfigError(
        f"the protocol {type(protocol).__name__} has no note(message, note), so agents cannot be told {note.text!r}; "
        "add that method (see protocol.SupportsNotes), or remove the prompt variant"
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
    return short_name(_format_stored(prompt_variant, type(prompt_variant).__qualname__))


def short_name(name: str) -> str:
    """Shorten a name of more than `LONGEST_NAME` characters to its class and a digest."""
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{name.partition('(')[0][:100]}(blake2b:{digest})"


def _is_frozen(value: object) -> bool:
    params = getattr(type(value), "__dataclass_params__", None)
    return params is not None and params.frozen


def _format_stored(value: object, place: str) -> str:
    """Write a value as the `repr` of a dataclass does, by stored names, and without a custom `__repr__`."""
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, enum.Enum):
        return str(f"{type(value).__qualname__}.{value.name}")
    if type(value) is tuple:
        items = [_format_stored(item, f"{place}[{i}]") for i, item in enumerate(value)]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    if _is_frozen(value):
        arguments: list[str] = []
        for name, item in stored_fields(value).items():
            arguments.append(f"{name}={_format_stored(item, f'{place}.{name}')}")
        return f"{stored_name(type(value))}({', '.join(arguments)})"
    raise ConfigError(
        f"{place} is {format_value(value)}, which names no prompt variant in records; expected None, a bool, int, "
        "float, str or member of an enum, a tuple of such, or a frozen dataclass with such fields"
    )


def split_sections(text: str, start: str, stop: str) -> tuple[list[str] | None, str]:
    """Return the pieces between `start` and `stop`, or `None` if one is not closed, and the text outside.

    It takes linear time, whatever a model wrote.
    """
    inside: list[str] = []
    outside: list[str] = []
    position = 0
    while True:
        opened = text.find(start, position)
        if opened < 0:
            outside.append(text[position:])
            return inside, "".join(outside)
        outside.append(text[position:opened])
        closed = text.find(stop, opened + len(start))
        if closed < 0:
            return None, "".join(outside)
        inside.append(text[opened + len(start) : closed])
        position = closed + len(stop)
