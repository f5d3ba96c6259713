"""The state of one agent in the tree, and what came before what. Immutable: a step replaces states, it edits none.

They are named tuples because a step makes several, and `_replace` costs a quarter of `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from selfcest_env.budget import Amounts
from selfcest_env.protocol import Brief, Reply
from selfcest_env.types import (
    Action,
    AgentId,
    Boundary,
    Fault,
    FinishReason,
    Message,
    Status,
    TurnFacts,
    Usage,
)


class OpenTurn(NamedTuple):
    """A turn that has been granted and not yet played.

    Attributes:
        prompt_tokens: tokens of the environment block before it.
        max_new_tokens: the grant; `None` only when every limit that could bound it is unlimited.
        can_delegate, can_read: what a call could bring.
        too_poor: the agent may delegate, but its account or its context cannot carry the smallest call.
        last: the ending that anything but an answer would bring, `None` while another turn can be afforded.
        reserved: what the ledger holds for it.
        can_extend: it is the last one only unless the agent asks for more turns in it.
    """

    prompt_tokens: int
    max_new_tokens: int | None
    can_delegate: bool
    can_read: bool
    too_poor: bool
    last: Status | None
    reserved: Amounts
    can_extend: bool = False

    def invalid_reason(self, usage: Usage) -> Fault | None:
        """Why a generation of this cost cannot count, whatever it says; `None` if it can."""
        used, grant = usage.generated_tokens, self.max_new_tokens
        if used is not None and grant is not None and used > grant:
            return Fault.OVER_GRANT
        return Fault.CUT_BY_LENGTH if usage.finish_reason is FinishReason.LENGTH else None


class Call(NamedTuple):
    """A call in flight: one child or one refusal per objective, what the parent reserved for the replies, and how many
    children have not ended."""

    children: tuple[AgentId | None, ...]
    refused: Mapping[int, Fault]
    reserved: Amounts
    running: int


class AgentState(NamedTuple):
    """One agent. `messages` is its whole transcript; `block_start` is where the block before its open turn begins.
    `extra_turns` are those that it has asked for and been given."""

    agent_id: AgentId
    brief: Brief
    shared_context: tuple[str, ...]
    grant: Amounts
    born_at: int | None  # the parent's turn
    messages: tuple[Message, ...] = ()
    block_start: int = 0
    boundary: Boundary = Boundary.OPENING
    context_tokens: int = 0
    status: Status = Status.WAITING
    turns: tuple[TurnFacts, ...] = ()
    turn: OpenTurn | None = None
    call: Call | None = None
    num_children: int = 0
    reply: str | None = None
    extra_turns: int = 0


class LogEntry(NamedTuple):
    """One entry of the episode's log: enough to play the turn again."""

    agent_id: AgentId
    turn: int
    action: Action
    usage: Usage
    text: str


def reply_of(child: AgentState) -> Reply:
    """What a clone that has ended sends its parent. An absent one's, if nothing was put in its place, is the default
    reply: "absent", a failure like any other, so it fits every `reply_tokens` and looks like what agents meet in
    ordinary play."""
    put_in = child.status is Status.ABSENT and child.reply is not None
    return Reply(child.reply) if put_in or child.status is Status.ANSWERED else Reply(failure=child.status)


class HasBirth(Protocol):
    """What knows the parent's turn that an agent was born of: its state, or its record."""

    @property
    def born_at(self) -> int | None: ...


def is_descendant(
    agents: Mapping[AgentId, HasBirth],
    turn: tuple[AgentId, int],
    of: tuple[AgentId, int],
) -> bool:
    """Whether `turn` is the turn `of` or could only happen after it.

    That is: later turns of the same agent, everything its subtree did from then on, and its ancestors' turns after the
    join, with all they spawned. Turns of siblings in the same call are independent of it, whenever they were played.
    """
    depth = 0
    for ours, theirs in zip(turn[0].path, of[0].path, strict=False):
        if ours != theirs:
            break
        depth += 1
    meet = AgentId(of[0].path[:depth])
    position, of_position = _turn_at(agents, meet, turn), _turn_at(agents, meet, of)
    return position > of_position or (position == of_position and meet == of[0])


def _turn_at(agents: Mapping[AgentId, HasBirth], ancestor: AgentId, turn: tuple[AgentId, int]) -> int:
    """The turn of `ancestor` during which `turn` was played."""
    agent_id, index = turn
    if agent_id == ancestor:
        return index
    born_at = agents[AgentId(agent_id.path[: ancestor.depth + 1])].born_at
    assert born_at is not None
    return born_at
