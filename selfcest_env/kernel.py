"""The tree of agents: who may act, what a step does, when a call has joined. Deterministic and framework-free.

The kernel holds immutable `AgentState`s and a `Ledger`; a step replaces a few of them. It never sees tokens or tensors:
texts and token counts are opaque payloads, priced by a `TokenCounter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from selfcest_env.budget import ZERO, Amounts, Ledger
from selfcest_env.errors import GameError
from selfcest_env.protocol import Brief, Reply
from selfcest_env.rules import Rules
from selfcest_env.tree import AgentState, Call, OpenTurn, Step, descends
from selfcest_env.types import (
    ROOT,
    Action,
    AgentId,
    Answer,
    Boundary,
    CloneRequest,
    Delegate,
    Fault,
    FinishReason,
    Malformed,
    Message,
    MessageRole,
    Outcome,
    Part,
    Read,
    Role,
    Status,
    Task,
    TurnFacts,
    Usage,
)


class Kernel:
    """One episode. Single-use: created, played once, dropped.

    Args:
        task: the problem.
        rules: limits, protocol and prices; shared by all episodes that are played by the same rules.
    """

    def __init__(self, task: Task, rules: Rules) -> None:
        self.task, self.rules, self.limits = task, rules, rules.limits
        limits = rules.limits
        self.ledger = Ledger(Amounts(limits.total_tokens, limits.generated_tokens, limits.max_clones))
        self.num_reads = 0
        self.log: tuple[Step, ...] = ()
        self._agents: dict[AgentId, AgentState] = {}
        self._open_root()

    # What can be asked

    @property
    def agents(self) -> Mapping[AgentId, AgentState]:
        return self._agents

    @property
    def done(self) -> bool:
        return self._agents[ROOT].status.is_terminal

    def ready(self) -> tuple[AgentId, ...]:
        """Agents whose turn is open, in tree order."""
        return tuple(sorted(a for a, state in self._agents.items() if state.status is Status.READY))

    def keys_of(self, agent_id: AgentId) -> tuple[str, ...]:
        """Documents the agent may name: all of them for the root, those it was given for a clone."""
        return tuple(self.task.context) if agent_id == ROOT else self._agents[agent_id].shared_context

    # What can be done

    def step(self, agent_id: AgentId, action: Action, usage: Usage, text: str = "") -> None:
        """Play one agent's open turn. Raises `GameError` if it has none.

        Args:
            agent_id: an agent in `ready()`.
            action: what its generation means (`protocol.parse`).
            usage: what the generation cost; above the grant it is charged the whole grant and its text is dropped.
            text: the generation itself, for the agent's own transcript.
        """
        state = self._agents.get(agent_id)
        if state is None or state.turn is None:
            found = "no such agent" if state is None else f"it is {state.status}"
            raise GameError(f"{agent_id} cannot act: {found}; ready: {', '.join(map(str, self.ready())) or 'nobody'}")
        if usage.generated_tokens is not None and usage.generated_tokens < 0:
            raise GameError(f"{agent_id} reports {usage.generated_tokens} generated tokens; expected a number >= 0")
        if usage.generated_tokens is None and state.turn.max_new_tokens is None:
            raise GameError(f"{agent_id}: a generation of unknown cost needs a finite grant, and this one is unlimited")
        self.log += (Step(agent_id, len(state.turns), action, usage, text),)
        action, facts, text = self._settle(agent_id, state.turn, action, usage, text)
        self._agents[agent_id] = replace(
            state,
            turn=None,
            boundary=Boundary.AFTER_STOP if usage.finish_reason is FinishReason.STOP else Boundary.AFTER_LENGTH,
            messages=(*state.messages, Message(MessageRole.ASSISTANT, (Part(text),))),
            context_tokens=state.context_tokens + facts.generated_tokens,
        )
        match action:
            case Answer(text):
                self._answer(agent_id, facts, text)
            case Delegate(requests):
                self._delegate(agent_id, facts, state.turn, requests)
            case Read(keys):
                self._read(agent_id, facts, state.turn, keys)
            case Malformed(reason):
                self._fail_turn(
                    agent_id,
                    replace(facts, outcome=Outcome.MALFORMED, fault=reason),
                    state.turn,
                )

    def fork(self, before: tuple[AgentId, int] | None = None) -> Kernel:
        """An independent copy of the episode, or the episode as it stood without one turn and all that came of it.

        With `before=(agent, turn)` every recorded step that does not descend from that turn is kept: siblings' steps
        are, the ancestors' turns after the join are not. Accounts are nested, so what is kept is the same in every
        interleaving, and the ledger is the one in force when that turn was opened.
        """
        if before is None:
            other = Kernel.__new__(Kernel)
            other.__dict__.update(self.__dict__)
            other.ledger, other._agents = self.ledger.copy(), dict(self._agents)
            return other
        agent_id, turn = before
        state = self._agents.get(agent_id)
        if state is None or not 0 <= turn < len(state.turns) + (state.turn is not None):
            raise GameError(f"cannot fork before {agent_id}/turn{turn}: the episode has no such turn")
        other = Kernel(self.task, self.rules)
        for step in self.log:
            if not descends(self._agents, (step.agent_id, step.turn), before):
                other.step(step.agent_id, step.action, step.usage, step.text)
        return other

    # Turns

    def _open_root(self) -> None:
        limits, task = self.limits, self.task
        full_text = not limits.delegation and not limits.reading
        brief = Brief(
            Role.ROOT,
            task.prompt,
            keys=tuple(task.context),
            documents=task.context if full_text else {},
            can_delegate=limits.delegation,
            can_read=limits.reading and bool(task.context),
            total_tokens=limits.total_tokens,
        )
        state = AgentState(ROOT, brief, (), grant=self.ledger.total, born_at=None)
        state = replace(state, messages=self.rules.protocol.open(brief))
        if limits.max_turns == 0 or limits.turn_tokens == 0:
            status = Status.OUT_OF_TURNS if limits.max_turns == 0 else Status.OUT_OF_TOKENS
            self._agents[ROOT] = replace(state, status=status)
            return
        prompt_tokens = self.rules.counter.count(state.messages, Boundary.OPENING)
        if not self.ledger[ROOT].free.covers(Amounts(prompt_tokens + 1, 1)) or not self._fits(prompt_tokens + 1):
            self._agents[ROOT] = replace(state, status=Status.PROMPT_TOO_LONG)
            return
        self.ledger.charge(ROOT, Amounts(prompt_tokens))
        self._agents[ROOT] = replace(state, context_tokens=prompt_tokens)
        self._open_turn(ROOT, prompt_tokens)

    def _fits(self, context_tokens: int) -> bool:
        return self.limits.context_tokens is None or context_tokens <= self.limits.context_tokens

    def _append(self, agent_id: AgentId, messages: tuple[Message, ...]) -> int:
        """Write an environment block into an agent's context and charge it; returns its tokens."""
        state = self._agents[agent_id]
        tokens = self.rules.counter.count(messages, state.boundary)
        self.ledger.charge(agent_id, Amounts(tokens))
        self._agents[agent_id] = replace(
            state,
            block_start=len(state.messages),
            messages=state.messages + messages,
            context_tokens=state.context_tokens + tokens,
        )
        return tokens

    def _open_turn(self, agent_id: AgentId, prompt_tokens: int) -> None:
        """Grant and reserve the next turn, or end the agent if not one token can be granted."""
        state, limits = self._agents[agent_id], self.limits
        free = self.ledger[agent_id].free
        room = _least(
            limits.turn_tokens,
            limits.context_tokens and limits.context_tokens - state.context_tokens,
            *free[:2],
        )
        if limits.max_turns is not None and len(state.turns) >= limits.max_turns:
            return self._finish(agent_id, Status.OUT_OF_TURNS)
        if room is not None and room < 1:
            return self._finish(agent_id, Status.OUT_OF_TOKENS)
        # Another turn after this one needs room for one line of environment text and one more answer.
        notice, reserve = self.rules.notice_tokens, self.rules.answer_tokens
        later = _least(
            limits.turn_tokens,
            limits.context_tokens and limits.context_tokens - state.context_tokens - notice - reserve,
            free.total_tokens if free.total_tokens is None else free.total_tokens - notice - reserve,
            free.generated_tokens if free.generated_tokens is None else free.generated_tokens - reserve,
        )
        last: Status | None = None
        if limits.max_turns is not None and len(state.turns) + 1 >= limits.max_turns:
            last = Status.OUT_OF_TURNS
        elif later is not None and later < reserve:
            last = Status.OUT_OF_TOKENS
        grant = room if last else later
        reserved = Amounts((grant or 0) + (0 if last else notice), grant or 0)
        turn = OpenTurn(
            prompt_tokens,
            grant,
            can_delegate=last is None and self._may_spawn(agent_id) and self._can_pay_call(agent_id),
            can_read=last is None and self._can_read(agent_id),
            too_poor=self._may_spawn(agent_id) and not self._can_pay_call(agent_id),
            last=last,
            reserved=reserved,
        )
        self.ledger.reserve(agent_id, reserved)
        self._agents[agent_id] = replace(state, status=Status.READY, turn=turn)

    def _settle(
        self, agent_id: AgentId, turn: OpenTurn, action: Action, usage: Usage, text: str
    ) -> tuple[Action, TurnFacts, str]:
        """Charge a generation and decide whether it counts at all."""
        grant, used = turn.max_new_tokens, usage.generated_tokens
        if used is None:
            assert grant is not None
            used = grant
        if grant is not None and used > grant:
            used, text, action = grant, "", Malformed(Fault.OVER_GRANT)
        elif usage.finish_reason is FinishReason.LENGTH:
            action = Malformed(Fault.CUT_BY_LENGTH)
        reserved, cost = turn.reserved, Amounts(used, used)
        if grant is None:
            self.ledger.reserve(agent_id, cost)
            reserved = reserved.plus(cost)
        self.ledger.settle(agent_id, reserved, cost)
        facts = TurnFacts(turn.prompt_tokens, used, grant, usage.finish_reason, Outcome.ANSWERED)
        return action, facts, text

    def _close_turn(self, agent_id: AgentId, facts: TurnFacts) -> None:
        state = self._agents[agent_id]
        self._agents[agent_id] = replace(state, turns=(*state.turns, facts))

    def _fail_turn(self, agent_id: AgentId, facts: TurnFacts, turn: OpenTurn) -> None:
        """The turn led to nothing: tell the agent why and let it go on, or end it if this was its last turn."""
        assert facts.fault is not None
        self._close_turn(agent_id, facts)
        if turn.last is not None:
            return self._finish(agent_id, turn.last)
        tokens = self._append(agent_id, (self.rules.protocol.fault(facts.fault),))
        self._open_turn(agent_id, tokens)

    # Answers

    def _answer(self, agent_id: AgentId, facts: TurnFacts, text: str) -> None:
        self._close_turn(agent_id, facts)
        limit = self.limits.reply_tokens
        too_long = limit is not None and self.rules.counter.count_text(self.rules.protocol.neutralise(text)) > limit
        if agent_id != ROOT and too_long:
            return self._finish(agent_id, Status.REPLY_TOO_LONG)
        self._finish(agent_id, Status.ANSWERED, text)

    def _finish(self, agent_id: AgentId, status: Status, reply: str | None = None) -> None:
        self._agents[agent_id] = replace(self._agents[agent_id], status=status, reply=reply)
        if agent_id.parent is not None:
            self._join(agent_id.parent)

    # Reading

    def _can_read(self, agent_id: AgentId) -> bool:
        limit = self.limits.max_reads
        return self._agents[agent_id].brief.can_read and (limit is None or self.num_reads < limit)

    def _read(self, agent_id: AgentId, facts: TurnFacts, turn: OpenTurn, keys: tuple[str, ...]) -> None:
        known, limit = self.keys_of(agent_id), self.limits.max_reads
        message = self.rules.protocol.documents({key: self.task.context[key] for key in keys if key in known})
        tokens = self.rules.counter.count((message,), Boundary.AFTER_STOP)
        fault: Fault | None = None
        if turn.last is not None or not self._agents[agent_id].brief.can_read:
            fault = Fault.NOT_ALLOWED
        elif not keys:
            fault = Fault.BAD_CALL
        elif limit is not None and self.num_reads + len(keys) > limit:
            fault = Fault.TOO_MANY_READS
        elif any(key not in known for key in keys):
            fault = Fault.UNKNOWN_KEY
        else:
            fault = self._unaffordable(agent_id, tokens)
        if fault is not None:
            return self._fail_turn(agent_id, replace(facts, outcome=Outcome.REFUSED, fault=fault), turn)
        self.num_reads += len(keys)
        self._close_turn(agent_id, replace(facts, outcome=Outcome.READ))
        self._open_turn(agent_id, self._append(agent_id, (message,)))

    def _unaffordable(self, agent_id: AgentId, tokens: int) -> Fault | None:
        """Why a block of `tokens` and one more answer cannot follow, `None` if they can."""
        reserve = self.rules.answer_tokens
        if not self.ledger[agent_id].free.covers(Amounts(tokens + reserve, reserve)):
            return Fault.OVER_BUDGET
        if not self._fits(self._agents[agent_id].context_tokens + tokens + reserve):
            return Fault.CONTEXT_FULL
        return None

    # Delegation

    def _may_spawn(self, agent_id: AgentId) -> bool:
        return self._agents[agent_id].brief.can_delegate and self.ledger[agent_id].free.covers(Amounts(clones=1))

    def _can_pay_call(self, agent_id: AgentId) -> bool:
        """Whether this agent's account and context can carry the smallest call."""
        context = self._agents[agent_id].context_tokens + self.rules.reply_bound(1) + self.rules.answer_tokens
        return self.ledger[agent_id].free.covers(self.rules.smallest_call(agent_id.depth)) and self._fits(context + 1)

    def _delegate(
        self,
        agent_id: AgentId,
        facts: TurnFacts,
        turn: OpenTurn,
        requests: tuple[CloneRequest, ...],
    ) -> None:
        if turn.last is not None or turn.too_poor:
            fault = Fault.NOT_ALLOWED if turn.last is Status.OUT_OF_TURNS else Fault.OVER_BUDGET
            self._close_turn(agent_id, replace(facts, outcome=Outcome.REFUSED, fault=fault))
            return self._finish(agent_id, turn.last or Status.OUT_OF_TOKENS)
        bound = self.rules.reply_bound(len(requests))
        refusal = self._refuse(agent_id, requests, bound)
        grants = self._grants(agent_id, requests, bound) if refusal is None else None
        if grants is None:
            refusal = refusal or Fault.OVER_BUDGET
            return self._fail_turn(agent_id, replace(facts, outcome=Outcome.REFUSED, fault=refusal), turn)
        self._spawn(agent_id, facts, requests, grants, bound)

    def _refuse(self, agent_id: AgentId, requests: tuple[CloneRequest, ...], bound: int) -> Fault | None:
        """The first reason why the call as a whole cannot be granted, before any grant is worked out."""
        per_call, known = self.limits.max_clones_per_call, self.keys_of(agent_id)
        if not self._agents[agent_id].brief.can_delegate:
            return Fault.NOT_ALLOWED
        if not requests or any((request.max_tokens or 0) < 0 for request in requests):
            return Fault.BAD_CALL
        if per_call is not None and len(requests) > per_call:
            return Fault.TOO_MANY_CLONES
        if not self.ledger[agent_id].free.covers(Amounts(clones=len(requests))):
            return Fault.TOO_MANY_CLONES
        if any(key not in known for request in requests for key in request.shared_context):
            return Fault.UNKNOWN_KEY
        return self._unaffordable(agent_id, bound)

    def _grants(self, agent_id: AgentId, requests: tuple[CloneRequest, ...], bound: int) -> list[Amounts] | None:
        """What each child gets: what it asked for, or an equal share of what is left; `None` if that cannot be paid."""
        free = self.ledger[agent_id].free
        reserve, count = self.rules.answer_tokens, len(requests)
        money = free.minus(Amounts(bound + reserve, reserve, count))
        asked = sum(request.max_tokens or 0 for request in requests)
        unasked = sum(request.max_tokens is None for request in requests)
        total_share: int | None = None
        if money.total_tokens is not None:
            if asked > money.total_tokens:
                return None
            total_share = (money.total_tokens - asked) // max(1, unasked)
        generated = None if money.generated_tokens is None else money.generated_tokens // count
        leaf = self.limits.max_depth is not None and agent_id.depth + 1 >= self.limits.max_depth
        clones = 0 if leaf else None if money.clones is None else money.clones // count
        return [
            Amounts(
                total_share if request.max_tokens is None else request.max_tokens,
                generated,
                clones,
            )
            for request in requests
        ]

    def _spawn(
        self,
        agent_id: AgentId,
        facts: TurnFacts,
        requests: tuple[CloneRequest, ...],
        grants: list[Amounts],
        bound: int,
    ) -> None:
        """Give birth to every child that its grant can carry, then let them all start; refused ones cost nothing."""
        first, slots = self._agents[agent_id].num_children, list[AgentId | None]()
        born: dict[AgentId, AgentState] = {}
        refused: dict[int, Fault] = {}
        for i, (request, grant) in enumerate(zip(requests, grants, strict=True)):
            child_id = agent_id.child(first + len(born))
            child = self._newborn(child_id, request, grant, born_at=len(self._agents[agent_id].turns))
            enough = grant.covers(Amounts(child.context_tokens + 1, 1)) and self._fits(child.context_tokens + 1)
            slots.append(child_id if enough else None)
            if enough:
                born[child_id] = child
            else:
                refused[i] = Fault.PROMPT_TOO_LONG
        self._close_turn(
            agent_id,
            replace(facts, outcome=Outcome.DELEGATED, children=tuple(born), refused=refused),
        )
        reserved = Amounts(bound)
        self.ledger.reserve(agent_id, reserved)
        self.ledger.lend(agent_id, {child_id: child.grant for child_id, child in born.items()})
        self._agents[agent_id] = replace(
            self._agents[agent_id],
            status=Status.WAITING,
            call=Call(tuple(slots), refused, reserved),
            num_children=first + len(born),
        )
        self._agents.update(born)
        for child_id, child in born.items():
            self.ledger.charge(child_id, Amounts(child.context_tokens))
            self._open_turn(child_id, child.context_tokens)
        if not born:
            self._join(agent_id)

    def _newborn(self, child_id: AgentId, request: CloneRequest, grant: Amounts, born_at: int) -> AgentState:
        limits = self.limits
        brief = self.rules.clone_brief(
            child_id.depth,
            request.objective,
            {key: self.task.context[key] for key in request.shared_context},
            grant.total_tokens,
        )
        messages = self.rules.protocol.open(brief)
        tokens = self.rules.counter.count(messages, Boundary.OPENING)
        assert limits.max_depth is None or child_id.depth <= limits.max_depth
        return AgentState(
            child_id,
            brief,
            request.shared_context,
            grant,
            born_at,
            messages=messages,
            context_tokens=tokens,
        )

    def _join(self, parent_id: AgentId) -> None:
        """When the whole call has ended: money flows back, then all replies arrive as one message."""
        call = self._agents[parent_id].call
        assert call is not None
        children = [child for child in call.children if child is not None]
        if not all(self._agents[child].status.is_terminal for child in children):
            return
        for child in children:
            self.ledger.close(child)
        replies = [
            Reply(failure=call.refused[i]) if child is None else self._reply(child)
            for i, child in enumerate(call.children)
        ]
        self.ledger.settle(parent_id, call.reserved, ZERO)
        self._agents[parent_id] = replace(self._agents[parent_id], call=None)
        tokens = self._append(parent_id, (self.rules.protocol.replies(replies),))
        bound = None if self.limits.reply_tokens is None else call.reserved.total_tokens
        assert bound is None or tokens <= bound, "a reply message was priced below what it costs"
        self._open_turn(parent_id, tokens)

    def _reply(self, child_id: AgentId) -> Reply:
        child = self._agents[child_id]
        return Reply(text=child.reply) if child.status is Status.ANSWERED else Reply(failure=child.status)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
