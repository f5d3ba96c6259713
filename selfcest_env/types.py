"""The value types of the game. Read this module first: all others pass these values on.

It imports only errors, checks and stored names from this project.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple, Protocol

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Size, register_text_type

Scalar = str | int | float | bool


class AgentId(NamedTuple):
    """The path from the root to an agent: `root` is `()`, its third clone `root.2` is `(2,)`.

    Ids order by the tree (a parent before its children, siblings by birth), never by completion.
    """

    path: tuple[int, ...] = ()

    def __str__(self) -> str:
        return ".".join(("root", *map(str, self.path)))

    @classmethod
    def parse(cls, text: str) -> AgentId:
        """Inverse of `str`. Raises `ValueError` for anything `str` does not produce."""
        head, *rest = text.split(".")
        if head != "root" or any(not part.isdecimal() or str(int(part)) != part for part in rest):
            raise ValueError(f"agent id {text!r} is not 'root' followed by child numbers, as in 'root.0.1'")
        return cls(tuple(int(part) for part in rest))

    @property
    def parent(self) -> AgentId | None:
        return AgentId(self.path[:-1]) if self.path else None

    @property
    def depth(self) -> int:
        return len(self.path)

    def child(self, index: int) -> AgentId:
        return AgentId((*self.path, index))

    def is_under(self, other: AgentId) -> bool:
        """True for `other` itself and for every agent born below it."""
        return self.path[: len(other.path)] == other.path


ROOT = AgentId()
register_text_type(AgentId, AgentId.parse)


class Role(enum.StrEnum):
    """Whether an agent is the root or a clone. All agents share weights, but a trainer may use a policy per role."""

    ROOT = "root"
    CLONE = "clone"


@dataclass(frozen=True, slots=True, order=True)
class TurnKey:
    """Identifier of one turn, by which credits and samples refer to records; prints as `e7/root.2/turn0`."""

    episode_id: str
    agent_id: AgentId
    turn: int

    def __str__(self) -> str:
        return f"{self.episode_id}/{self.agent_id}/turn{self.turn}"


@dataclass(frozen=True)
class Task:
    """One problem. No view ever shows `answer`, `aliases` or `metadata`.

    Attributes:
        task_id: unique within a source; equal ids mean equal problems.
        prompt: what the root is asked.
        answer: ground truth, for the grader only.
        source: name of the task source that drew it.
        context: documents by unique key. Agents name keys; they see text only where the game shows it.
        aliases: other answers that count as right.
        metadata: facts about the instance (family, size) for curves and tables.
        context_tokens: window of this task: no context of its episodes may be longer, and none longer than the limits
            allow; `None`: the limits alone hold.
    """

    task_id: str
    prompt: str
    answer: str
    source: str
    context: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    context_tokens: int | None = None


_Limit = Annotated[Size | None, "null: unlimited"]


@stored_as(
    total_tokens="total_tokens",
    generated_tokens="generated_tokens",
    context_tokens="context_tokens",
    turn_tokens="turn_tokens",
    reply_tokens="reply_tokens",
    answer_reserve="answer_reserve",
    max_turns="max_turns",
    max_clones="max_clones",
    max_clones_per_call="max_clones_per_call",
    max_depth="max_depth",
    max_reads="max_reads",
)
@dataclass(frozen=True)
class Limits(Checked):
    """Upper bounds on the cost of an episode. `None` is unlimited, and 0 allows none.

    Attributes:
        total_tokens: tree-wide: every prompt and every generated token of every agent, each once.
        generated_tokens: tree-wide: generated tokens only.
        context_tokens: length of one agent's context, its own generations included. A task may state a smaller one.
        turn_tokens: generated tokens of one turn.
        reply_tokens: a clone's reply as encoded in its parent's context. A longer reply is a failure and is not cut.
        answer_reserve: tokens that an agent keeps for one more answer when it delegates, reads or makes a faulty turn.
        max_turns: turns of one agent.
        max_clones: tree-wide: clones of one episode, at all depths together.
        max_clones_per_call: objectives of one call.
        max_depth: 0 switches delegation off, 1 lets the root delegate, 2 its clones too.
        max_reads: tree-wide: documents agents may read by key into their own context. When neither delegation nor
            reading is possible, the root's prompt holds the full text of every document.
    """

    total_tokens: _Limit = 2048
    generated_tokens: _Limit = None
    context_tokens: _Limit = None
    turn_tokens: _Limit = 256
    reply_tokens: _Limit = 64
    answer_reserve: Size = 16
    max_turns: _Limit = 8
    max_clones: _Limit = 16
    max_clones_per_call: _Limit = 8
    max_depth: _Limit = 1
    max_reads: _Limit = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("total_tokens", "generated_tokens", "context_tokens", "turn_tokens"):
            limit = getattr(self, name)
            if limit is not None and self.answer_reserve > limit:
                raise ConfigError(
                    f"answer_reserve is {self.answer_reserve}, above {name} = {limit}: no agent could "
                    f"ever keep that reserve; lower answer_reserve or raise {name}"
                )
        if _all_unlimited(self.turn_tokens, self.total_tokens, self.generated_tokens, self.context_tokens):
            raise ConfigError(
                "turn_tokens, context_tokens, generated_tokens and total_tokens are all unlimited, so a "
                "generation may never end; set at least one of them"
            )
        if _all_unlimited(self.max_turns, self.total_tokens):
            raise ConfigError(
                "max_turns and total_tokens are both unlimited, so an episode may never end; set one of them"
            )
        if self.delegation and _all_unlimited(
            self.max_clones, self.max_depth, self.total_tokens, self.generated_tokens
        ):
            raise ConfigError(
                "max_clones, max_depth, generated_tokens and total_tokens are all unlimited, so a tree of "
                "clones may grow forever; set at least one of them"
            )
        if self.reply_tokens is None and not _all_unlimited(self.total_tokens, self.context_tokens):
            raise ConfigError(
                "reply_tokens is unlimited while total_tokens or context_tokens is not: a call could not "
                "reserve room for its replies; set reply_tokens"
            )

    @property
    def delegation(self) -> bool:
        return self.max_depth != 0 and self.max_clones != 0 and self.max_clones_per_call != 0

    @property
    def reading(self) -> bool:
        return self.max_reads != 0

    def with_window(self, context_tokens: int | None) -> Limits:
        """Return the same limits with a context of at most so many tokens; `None` changes nothing.

        The reserve for an answer is at most the context.
        """
        if context_tokens is None or (self.context_tokens is not None and self.context_tokens <= context_tokens):
            return self
        return replace(self, context_tokens=context_tokens, answer_reserve=min(self.answer_reserve, context_tokens))


def _all_unlimited(*limits: int | None) -> bool:
    return all(limit is None for limit in limits)


@dataclass(frozen=True, slots=True)
class CloneRequest:
    """One objective of a call; `max_tokens` asks for a grant of total tokens, `None` for an equal share."""

    objective: str
    shared_context: tuple[str, ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Delegate:
    requests: tuple[CloneRequest, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Bring documents into the agent's own context, by key."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    text: str


class Fault(enum.StrEnum):
    """Reason why a turn or an objective had no effect. The agent reads its name, and plays on if it can pay.

    Attributes:
        NO_ANSWER: neither a call nor an answer.
        BAD_CALL: the call does not parse.
        CUT_BY_LENGTH: the generation ended by length; it is neither an answer nor a call.
        OVER_GRANT: more tokens than granted: the whole grant is charged, and the text is dropped and never shown.
        NOT_ALLOWED: this agent does not have the tool.
        TOO_MANY_CLONES: more objectives than `max_clones_per_call`, or than the clones left in the agent's account.
        TOO_MANY_READS: more keys than the reads left.
        UNKNOWN_KEY: a document that this agent cannot name.
        OVER_BUDGET: the agent's account cannot pay for the call or the read.
        CONTEXT_FULL: the replies or documents would not fit the agent's context.
        PROMPT_TOO_LONG: one clone's prompt leaves it no token for an answer. Only this clone is refused, and it costs
            nothing.
    """

    NO_ANSWER = "no_answer"
    BAD_CALL = "bad_call"
    CUT_BY_LENGTH = "cut_by_length"
    OVER_GRANT = "over_grant"
    NOT_ALLOWED = "not_allowed"
    TOO_MANY_CLONES = "too_many_clones"
    TOO_MANY_READS = "too_many_reads"
    UNKNOWN_KEY = "unknown_key"
    OVER_BUDGET = "over_budget"
    CONTEXT_FULL = "context_full"
    PROMPT_TOO_LONG = "prompt_too_long"


@dataclass(frozen=True, slots=True)
class Malformed:
    reason: Fault


Action = Delegate | Read | Answer | Malformed


class Status(enum.StrEnum):
    """Status of an agent. All but the first two are terminal.

    Attributes:
        READY: its turn is open.
        WAITING: its call has not joined.
        ANSWERED: it ended by an answer.
        OUT_OF_TURNS: it ended without an answer: no turn was left.
        OUT_OF_TOKENS: it ended without an answer: its account or its context was used up.
        PROMPT_TOO_LONG: the root's prompt is over a limit, so the episode ends at once.
        REPLY_TOO_LONG: a clone's answer is over `reply_tokens`; its parent gets this fault instead of the answer.
        ABSENT: only in a replay: a clone that was left out, and whose parent read a replacement reply.
    """

    READY = "ready"
    WAITING = "waiting"
    ANSWERED = "answered"
    OUT_OF_TURNS = "out_of_turns"
    OUT_OF_TOKENS = "out_of_tokens"
    PROMPT_TOO_LONG = "prompt_too_long"
    REPLY_TOO_LONG = "reply_too_long"
    ABSENT = "absent"

    @property
    def is_terminal(self) -> bool:
        return self is not Status.READY and self is not Status.WAITING


class Outcome(enum.StrEnum):
    """Result of a turn."""

    ANSWERED = "answered"
    DELEGATED = "delegated"
    READ = "read"
    REFUSED = "refused"  # a well-formed call that was not granted
    MALFORMED = "malformed"


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost of a generation. `generated_tokens=None` means unknown, and the whole grant is charged."""

    generated_tokens: int | None
    finish_reason: FinishReason = FinishReason.STOP


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """The game's data about one finished turn. The policy's data are in a `Generation` (record.py).

    Attributes:
        prompt_tokens: tokens the environment appended to the context just before this turn.
        generated_tokens: tokens charged for the generation.
        max_new_tokens: the grant of the ledger, `None` if no limit bounded it.
        outcome, fault: its result, and the reason if it had no effect.
        children: clones born of this turn, in objective order.
        refused: faults of single refused objectives, by position in the call.
    """

    prompt_tokens: int
    generated_tokens: int
    max_new_tokens: int | None
    finish_reason: FinishReason
    outcome: Outcome
    fault: Fault | None = None
    children: tuple[AgentId, ...] = ()
    refused: Mapping[int, Fault] = field(default_factory=dict)


class MessageRole(enum.StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message that is encoded on its own, so that the token counts of parts add up.

    Only trusted parts, which this project wrote, may contain special tokens; an untrusted part (a task, a document, an
    objective, a reply) is encoded as plain text whatever it says.
    """

    text: str
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    role: MessageRole
    parts: tuple[Part, ...]

    @property
    def content(self) -> str:
        return "".join(part.text for part in self.parts)


class Boundary(enum.StrEnum):
    """End of a context before an environment block is appended. The block's separators depend on it."""

    OPENING = "opening"
    AFTER_STOP = "after_stop"
    AFTER_LENGTH = "after_length"


class TokenCounter(Protocol):
    """Prices what the environment writes. Engines implement it with their own encoder, so prices are exact.

    Contract: for messages that differ only in the text of one untrusted part, the counts differ by the difference of
    `count_text` of that text; so a block can be bounded before its replies exist.
    """

    def count(self, messages: Sequence[Message], boundary: Boundary) -> int:
        """Tokens that appending this environment block (generation prompt included) adds to a context."""
        ...

    def count_text(self, text: str) -> int:
        """Tokens of `text` as an untrusted part."""
        ...
