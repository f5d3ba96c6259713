"""Observations of single agents. Policies see nothing else of the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from selfcest_env.budget import Amounts
from selfcest_env.errors import GameError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Brief, Reply
from selfcest_env.tree import get_reply
from selfcest_env.types import (
    Action,
    AgentId,
    Boundary,
    Delegate,
    Fault,
    Malformed,
    Message,
    Outcome,
    Read,
    Role,
    TurnFacts,
)


@dataclass(frozen=True, slots=True)
class Budget:
    """An agent's own account: its grant, its own spending, and the balance that it can still use."""

    granted: Amounts
    spent: Amounts
    remaining: Amounts


@dataclass(frozen=True, slots=True)
class Exchange:
    """One finished turn of the agent: its action, and the response of the environment."""

    action: Action
    replies: tuple[Reply, ...] = ()
    documents: Mapping[str, str] | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """All that an agent may know when it acts.

    Attributes:
        agent_id, role, depth, turn: the acting agent, and the index of its open turn.
        brief: the task or objective, keys and documents it started with.
        messages: its whole transcript.
        block: the messages that the environment appended since its last turn; the tail of `messages`.
        boundary: the end of the context before that block.
        exchanges: its earlier turns, in a form that scripts can use.
        budget: its own account. Nothing in it depends on a running sibling.
        can_delegate, can_read: whether a call or a read could be granted now. The price of the smallest call is a
            lower bound (`Rules.smallest_call`), so an account close to it may still have its clone refused.
        is_last: whether any action but an answer ends the agent, unless it asks for more turns (`AddTurnLimit`).
        max_new_tokens: the grant of this turn.
    """

    agent_id: AgentId
    role: Role
    turn: int
    brief: Brief
    messages: tuple[Message, ...]
    block: tuple[Message, ...]
    boundary: Boundary
    exchanges: tuple[Exchange, ...]
    budget: Budget
    can_delegate: bool
    can_read: bool
    is_last: bool
    max_new_tokens: int | None

    @property
    def depth(self) -> int:
        return self.agent_id.depth


def observe(kernel: Kernel, agent_id: AgentId) -> Observation:
    """Return the observation of an agent whose turn is open. Raises `GameError` for any other agent."""
    state = kernel.agents.get(agent_id)
    if state is None or state.turn is None:
        raise GameError(f"{agent_id} has no open turn to observe")
    account = kernel.ledger[agent_id]
    return Observation(
        agent_id=agent_id,
        role=state.brief.role,
        turn=len(state.turns),
        brief=state.brief,
        messages=state.messages,
        block=state.messages[state.block_start :],
        boundary=state.boundary,
        exchanges=_exchanges(kernel, agent_id),
        budget=Budget(account.granted, account.spent, account.remaining),
        can_delegate=state.turn.can_delegate,
        can_read=state.turn.can_read,
        is_last=state.turn.end_status is not None,
        max_new_tokens=state.turn.max_new_tokens,
    )


def _exchanges(kernel: Kernel, agent_id: AgentId) -> tuple[Exchange, ...]:
    turns = kernel.agents[agent_id].turns
    return tuple([_exchange(kernel, kernel.action(agent_id, turn), facts) for turn, facts in enumerate(turns)])


def _exchange(kernel: Kernel, action: Action, facts: TurnFacts) -> Exchange:
    if facts.outcome is Outcome.MALFORMED and facts.fault is not None:
        # The log holds the action of a dropped or cut text as well, but agents must not see it.
        return Exchange(Malformed(facts.fault), fault=facts.fault)
    if facts.outcome is Outcome.DELEGATED and isinstance(action, Delegate):
        children = iter(facts.children)
        replies = [
            Reply(failure=facts.refused[i]) if i in facts.refused else _reply_as_seen(kernel, next(children))
            for i in range(len(action.requests))
        ]
        return Exchange(action, replies=tuple(replies))
    if facts.outcome is Outcome.READ and isinstance(action, Read):
        return Exchange(action, documents={key: kernel.task.context[key] for key in action.keys})
    return Exchange(action, fault=facts.fault)


def _reply_as_seen(kernel: Kernel, child_id: AgentId) -> Reply:
    reply = get_reply(kernel.agents[child_id])
    return reply if reply.text is None else Reply(kernel.rules.protocol.neutralise(reply.text))
