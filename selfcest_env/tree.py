"""The state of one agent in the tree, and the causal order of turns. States are immutable: a step replaces them.

States are named tuples because a step makes several, and `_replace` costs a quarter of `dataclasses.replace`.
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
        can_delegate, can_read: whether a call or a read could be granted.
        cannot_pay_call: whether it may delegate, but its account or context cannot carry even the smallest call.
        end_status: the status that the agent gets if this turn is no answer; `None` if another turn can follow.
        reserved: amounts that the ledger holds for the turn.
        can_extend: whether the agent can ask for more turns in this turn, which would else be its last one.
    """

    prompt_tokens: int
    max_new_tokens: int | None
    can_delegate: bool
    can_read: bool
    cannot_pay_call: bool
    end_status: Status | None
    reserved: Amounts
    can_extend: bool = False

    def invalid_reason(self, usage: Usage) -> Fault | None:
        """Return the fault of a generation with this usage, whatever its text says; `None` if it is valid."""
        used = usage.generated_tokens
        grant = self.max_new_tokens
        if used is not None and grant is not None and used > grant:
            return Fault.OVER_GRANT
        return Fault.CUT_BY_LENGTH if usage.finish_reason is FinishReason.LENGTH else None


class Call(NamedTuple):
    """A call in flight.

    Attributes:
        children: the child of each objective, `None` for a refused one.
        refused: faults of refused objectives, by position.
        reserved: amounts that the parent has reserved for the replies.
    """

    children: tuple[AgentId | None, ...]
    refused: Mapping[int, Fault]
    reserved: Amounts


class AgentState(NamedTuple):
    """One agent.

    Attributes:
        messages: the whole transcript.
        block_start: index of the first message of the block before the open turn.
        extra_turns: turns that the agent has asked for and been given.
    """

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


def get_reply(child: AgentState) -> Reply:
    """Return the reply of a clone that has ended.

    The default reply of an absent clone is the failure "absent". A failure fits every `reply_tokens`, and agents meet
    failures in ordinary play too.
    """
    is_replaced = child.status is Status.ABSENT and child.reply is not None
    if is_replaced or child.status is Status.ANSWERED:
        return Reply(child.reply)
    return Reply(failure=child.status)


class HasBirth(Protocol):
    """A state or record of an agent, which knows the turn of its parent in which it was born."""

    @property
    def born_at(self) -> int | None: ...


def is_descendant(
    agents: Mapping[AgentId, HasBirth],
    turn: tuple[AgentId, int],
    of: tuple[AgentId, int],
) -> bool:
    """Return whether `turn` is the turn `of` or could only happen after it.

    Descendants are later turns of the same agent, all turns of its subtree from then on, and its ancestors' turns after
    the join, with all agents they spawned. Turns of siblings in one call are independent, whenever they were played.
    """
    # The two turns meet at the deepest common ancestor: the turn of this ancestor that holds each orders them.
    depth = 0
    for ours, theirs in zip(turn[0].path, of[0].path, strict=False):
        if ours != theirs:
            break
        depth += 1
    meet = AgentId(of[0].path[:depth])
    position = _turn_at(agents, meet, turn)
    of_position = _turn_at(agents, meet, of)
    return position > of_position or (position == of_position and meet == of[0])


def _turn_at(agents: Mapping[AgentId, HasBirth], ancestor: AgentId, turn: tuple[AgentId, int]) -> int:
    """Return the turn of `ancestor` during which `turn` was played."""
    agent_id, index = turn
    if agent_id == ancestor:
        return index
    born_at = agents[AgentId(agent_id.path[: ancestor.depth + 1])].born_at
    assert born_at is not None
    return born_at
