"""The game: a tree of agents, the steps they take, and the joins of their calls. Deterministic and framework-free.

The kernel holds immutable `AgentState`s and a `Ledger`, and a step replaces a few states. The kernel never sees tokens
or tensors: texts and token counts are opaque payloads, and a `TokenCounter` prices texts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import replace

from selfcest_env.budget import ZERO, Amounts, Ledger
from selfcest_env.errors import GameError
from selfcest_env.grants import (
    can_pay_call,
    compute_call_grants,
    compute_turn_grant,
    find_refusal,
    find_shortage,
    fits_context,
)
from selfcest_env.protocol import Brief, Reply
from selfcest_env.rules import Rules
from selfcest_env.tree import AgentState, Call, LogEntry, OpenTurn, get_reply
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
    """One episode. A kernel is played once and has no reset.

    Args:
        task: the problem.
        rules: limits, protocol and prices; episodes with the same rules share one object.
        absent: clones that a counterfactual leaves out, with the reply that the parent reads instead; `None` stands for
            the default reply. Siblings get the grants that they would get beside a present clone. An absent clone ends
            at birth, nothing is charged for it, and its grant stays in the parent's account.
    """

    def __init__(self, task: Task, rules: Rules, absent: Mapping[AgentId, str | None] | None = None) -> None:
        limits = rules.limits.with_window(task.context_tokens)
        self.task = task
        self.rules = rules.with_limits(limits)
        self.limits = limits
        self.absent = dict(absent or {})
        self.ledger = Ledger(Amounts(limits.total_tokens, limits.generated_tokens, limits.max_clones))
        self.num_reads = 0
        self._agents: dict[AgentId, AgentState] = {}
        self._running: dict[AgentId, int] = {}  # by agent, the clones of its last call that have not ended
        self._ready: list[AgentId] = []  # in tree order
        self._log: dict[tuple[AgentId, int], LogEntry] = {}  # in the order of play
        self._open_root()

    # Queries

    @property
    def agents(self) -> Mapping[AgentId, AgentState]:
        return self._agents

    @property
    def done(self) -> bool:
        return self._agents[ROOT].status.is_terminal

    def ready(self) -> tuple[AgentId, ...]:
        """Agents whose turn is open, in tree order."""
        return tuple(self._ready)

    @property
    def log(self) -> tuple[LogEntry, ...]:
        """Every turn played, in the order of play."""
        return tuple(self._log.values())

    def action(self, agent_id: AgentId, turn: int) -> Action:
        """Return the action of a turn that has been played."""
        return self._log[agent_id, turn].action

    def keys_of(self, agent_id: AgentId) -> tuple[str, ...]:
        """Return the keys an agent may name: all documents for the root, the shared ones for a clone."""
        return tuple(self.task.context) if agent_id == ROOT else self._agents[agent_id].shared_context

    # Steps

    def step(self, agent_id: AgentId, action: Action, usage: Usage, text: str = "") -> None:
        """Play one agent's open turn.

        Args:
            agent_id: an agent in `ready()`.
            action: the parsed generation (`protocol.parse`).
            usage: cost of the generation. Above the grant, the whole grant is charged and the text is dropped.
            text: the generation itself, for the agent's own transcript.

        Raises:
            GameError: the agent has no open turn, or the usage is impossible.
        """
        state, turn = self._find_open_turn(agent_id)
        if usage.generated_tokens is not None and usage.generated_tokens < 0:
            raise GameError(f"{agent_id} reports {usage.generated_tokens} generated tokens; expected a number >= 0")
        if usage.generated_tokens is None and turn.max_new_tokens is None:
            raise GameError(f"{agent_id}: a generation of unknown cost needs a finite grant, and this one is unlimited")
        turn_index = len(state.turns)
        self._log[agent_id, turn_index] = LogEntry(agent_id, turn_index, action, usage, text)
        fault = turn.invalid_reason(usage)
        extra_turns = state.extra_turns
        if fault is None:  # an invalid generation requests no turns, whatever its text says
            extra_turns = self.rules.extend_turns(extra_turns, text)
            if turn.can_extend and extra_turns > state.extra_turns:
                turn = turn._replace(end_status=None)
        else:
            action = Malformed(fault)
        if fault is Fault.OVER_GRANT:
            text = ""  # the context has room for the grant only
        facts = self._settle(agent_id, turn, usage, fault)
        del self._ready[bisect_left(self._ready, agent_id)]
        self._agents[agent_id] = state._replace(
            turn=None,
            boundary=Boundary.AFTER_STOP if usage.finish_reason is FinishReason.STOP else Boundary.AFTER_LENGTH,
            messages=(*state.messages, Message(MessageRole.ASSISTANT, (Part(text),))),
            context_tokens=state.context_tokens + facts.generated_tokens,
            extra_turns=extra_turns,
        )
        match action:
            case Answer(text):
                self._answer(agent_id, facts, text)
            case Delegate(requests):
                self._delegate(agent_id, facts, turn, requests)
            case Read(keys):
                self._read(agent_id, facts, turn, keys)
            case Malformed(reason):
                self._fail_turn(agent_id, replace(facts, outcome=Outcome.MALFORMED, fault=reason), turn)

    def play(self, agent_id: AgentId, text: str, usage: Usage) -> None:
        """Parse a generation and play it by `step`. A text over its grant, or cut by length, is not parsed."""
        _, turn = self._find_open_turn(agent_id)
        fault = turn.invalid_reason(usage)
        action = self.rules.protocol.parse(text) if fault is None else Malformed(fault)
        self.step(agent_id, action, usage, text)

    def fork(self) -> Kernel:
        """Return an independent copy of the episode. `counterfactual.fork_before` copies an earlier moment of it."""
        other = Kernel.__new__(Kernel)
        other.__dict__.update(self.__dict__)
        # Everything else is immutable or shared by design; states, accounts and log entries are tuples.
        other.ledger = self.ledger.copy()
        other._agents = dict(self._agents)
        other._running = dict(self._running)
        other._ready = list(self._ready)
        other._log = dict(self._log)
        return other

    # Turns

    def _find_open_turn(self, agent_id: AgentId) -> tuple[AgentState, OpenTurn]:
        """Return an agent and its open turn. Raises `GameError` if it has none."""
        state = self._agents.get(agent_id)
        if state is None or state.turn is None:
            reason = "no such agent" if state is None else f"it is {state.status}"
            ready = ", ".join(map(str, self.ready())) or "no agent"
            raise GameError(f"{agent_id} cannot act: {reason}; ready: {ready}")
        return state, state.turn

    def _open_root(self) -> None:
        limits = self.limits
        task = self.task
        # Without tools the root sees every document in full, so that the monolithic baseline is fair.
        full_text = not limits.delegation and not limits.reading
        brief = Brief(
            Role.ROOT,
            task.prompt,
            keys=tuple(task.context),
            documents=task.context if full_text else {},
            can_delegate=limits.delegation,
            can_read=limits.reading and bool(task.context),
            total_tokens=limits.total_tokens,
            clones=limits.max_clones,
        )
        state = AgentState(ROOT, brief, (), grant=self.ledger.total, born_at=None)
        state = state._replace(messages=self.rules.protocol.open(brief))
        if limits.max_turns == 0 or limits.turn_tokens == 0:
            status = Status.OUT_OF_TURNS if limits.max_turns == 0 else Status.OUT_OF_TOKENS
            self._agents[ROOT] = state._replace(status=status)
            return
        prompt_tokens = self.rules.counter.count(state.messages, Boundary.OPENING)
        least = prompt_tokens + 1  # the prompt and one token of an answer
        if not self.ledger[ROOT].free.covers(Amounts(least, 1)) or not fits_context(limits, least):
            self._agents[ROOT] = state._replace(status=Status.PROMPT_TOO_LONG)
            return
        self.ledger.charge(ROOT, Amounts(prompt_tokens))
        self._agents[ROOT] = state._replace(context_tokens=prompt_tokens)
        self._open_turn(ROOT, prompt_tokens)

    def _append(self, agent_id: AgentId, message: Message) -> int:
        """Append an environment block to an agent's context, charge it, and return its tokens."""
        state = self._agents[agent_id]
        tokens = self.rules.counter.count((message,), state.boundary)
        self.ledger.charge(agent_id, Amounts(tokens))
        self._agents[agent_id] = state._replace(
            block_start=len(state.messages),
            messages=(*state.messages, message),
            context_tokens=state.context_tokens + tokens,
        )
        return tokens

    def _open_turn(self, agent_id: AgentId, prompt_tokens: int) -> None:
        """Grant and reserve the next turn, or end the agent if not one token can be granted.

        Args:
            agent_id: the agent.
            prompt_tokens: tokens of the environment block before the turn.
        """
        state = self._agents[agent_id]
        free = self.ledger[agent_id].free
        grant, end_status = compute_turn_grant(state, free, self.rules)
        if grant == 0 and end_status is not None:
            return self._finish(agent_id, end_status)
        turn_limit = self.rules.turn_limit(state.extra_turns)
        can_extend = end_status is Status.OUT_OF_TURNS and turn_limit != self.rules.max_turns
        has_next_turn = end_status is None or can_extend
        # If the turn fails, a line about its fault follows, so that line is reserved with the turn.
        notice = self.rules.notice_tokens if has_next_turn else 0
        may_spawn = state.brief.can_delegate and free.covers(Amounts(clones=1))
        can_pay = may_spawn and can_pay_call(state, free, self.rules, self._board(agent_id))
        turn = OpenTurn(
            prompt_tokens,
            grant,
            can_delegate=has_next_turn and can_pay,
            can_read=has_next_turn and self._can_read(agent_id),
            cannot_pay_call=may_spawn and not can_pay,
            end_status=end_status,
            reserved=Amounts((grant or 0) + notice, grant or 0),
            can_extend=can_extend,
        )
        self.ledger.reserve(agent_id, turn.reserved)
        self._agents[agent_id] = state._replace(status=Status.READY, turn=turn)
        insort(self._ready, agent_id)

    def _settle(self, agent_id: AgentId, turn: OpenTurn, usage: Usage, fault: Fault | None) -> TurnFacts:
        """Charge a generation and return its facts. An unknown usage, and one over the grant, costs the whole grant."""
        grant = turn.max_new_tokens
        used = usage.generated_tokens
        if used is None or fault is Fault.OVER_GRANT:
            assert grant is not None
            used = grant
        reserved = turn.reserved
        cost = Amounts(used, used)
        if grant is None:  # no limit bounded the turn, so nothing was reserved for its generation
            self.ledger.reserve(agent_id, cost)
            reserved = reserved.plus(cost)
        self.ledger.settle(agent_id, reserved, cost)
        return TurnFacts(turn.prompt_tokens, used, grant, usage.finish_reason, Outcome.ANSWERED)

    def _close_turn(self, agent_id: AgentId, facts: TurnFacts) -> None:
        state = self._agents[agent_id]
        self._agents[agent_id] = state._replace(turns=(*state.turns, facts))

    def _fail_turn(self, agent_id: AgentId, facts: TurnFacts, turn: OpenTurn) -> None:
        """Close a turn with a fault. Tell the agent the fault and open its next turn, or end it after its last one."""
        assert facts.fault is not None
        if turn.end_status is not None:
            return self._finish(agent_id, turn.end_status, last_turn=facts)
        self._close_turn(agent_id, facts)
        num_played = len(self._agents[agent_id].turns)
        message = self._with_reminder(agent_id, self.rules.protocol.fault(facts.fault), num_played)
        self._open_turn(agent_id, self._append(agent_id, message))

    def _with_reminder(self, agent_id: AgentId, message: Message, num_played: int) -> Message:
        """Return the message with a reminder of the turns left after `num_played` turns."""
        turn_limit = self.rules.turn_limit(self._agents[agent_id].extra_turns)
        return self.rules.with_reminder(message, None if turn_limit is None else turn_limit - num_played)

    # Answers

    def _answer(self, agent_id: AgentId, facts: TurnFacts, text: str) -> None:
        if agent_id != ROOT and self._is_too_long(text):
            return self._finish(agent_id, Status.REPLY_TOO_LONG, last_turn=facts)
        self._finish(agent_id, Status.ANSWERED, text, last_turn=facts)

    def _is_too_long(self, reply: str) -> bool:
        """Return whether a reply is over `reply_tokens` in the form that the parent reads, after neutralising."""
        limit = self.limits.reply_tokens
        return limit is not None and self.rules.counter.count_text(self.rules.protocol.neutralise(reply)) > limit

    def _finish(
        self, agent_id: AgentId, status: Status, reply: str | None = None, last_turn: TurnFacts | None = None
    ) -> None:
        """End an agent, after the turn that ended it unless it ends between turns. Join its call if it was the last."""
        state = self._agents[agent_id]
        turns = state.turns if last_turn is None else (*state.turns, last_turn)
        self._agents[agent_id] = state._replace(turns=turns, status=status, reply=reply)
        parent_id = agent_id.parent
        if parent_id is None:
            return
        self._running[parent_id] -= 1
        if not self._running[parent_id]:
            self._join(parent_id)

    # Reading

    def _can_read(self, agent_id: AgentId) -> bool:
        limit = self.limits.max_reads
        return self._agents[agent_id].brief.can_read and (limit is None or self.num_reads < limit)

    def _read(self, agent_id: AgentId, facts: TurnFacts, turn: OpenTurn, keys: tuple[str, ...]) -> None:
        known = frozenset(self.keys_of(agent_id))
        keys = tuple(dict.fromkeys(keys))
        limit = self.limits.max_reads
        documents = self.rules.protocol.documents({key: self.task.context[key] for key in keys if key in known})
        message = self._with_reminder(agent_id, documents, len(self._agents[agent_id].turns) + 1)
        tokens = self.rules.counter.count((message,), Boundary.AFTER_STOP)
        fault: Fault | None = None
        if turn.end_status is not None or not self._agents[agent_id].brief.can_read:
            fault = Fault.NOT_ALLOWED
        elif not keys:
            fault = Fault.BAD_CALL
        elif limit is not None and self.num_reads + len(keys) > limit:
            fault = Fault.TOO_MANY_READS
        elif any(key not in known for key in keys):
            fault = Fault.UNKNOWN_KEY
        else:
            fault = find_shortage(self._agents[agent_id], self.ledger[agent_id].free, self.rules, tokens)
        if fault is not None:
            return self._fail_turn(agent_id, replace(facts, outcome=Outcome.REFUSED, fault=fault), turn)
        self.num_reads += len(keys)
        self._close_turn(agent_id, replace(facts, outcome=Outcome.READ))
        self._open_turn(agent_id, self._append(agent_id, message))

    # Delegation

    def _delegate(
        self,
        agent_id: AgentId,
        facts: TurnFacts,
        turn: OpenTurn,
        requests: tuple[CloneRequest, ...],
    ) -> None:
        if turn.end_status is not None or turn.cannot_pay_call:
            # An agent that cannot pay for the smallest call is not given another turn to repeat it.
            fault = Fault.NOT_ALLOWED if turn.end_status is Status.OUT_OF_TURNS else Fault.OVER_BUDGET
            facts = replace(facts, outcome=Outcome.REFUSED, fault=fault)
            return self._finish(agent_id, turn.end_status or Status.OUT_OF_TOKENS, last_turn=facts)
        state = self._agents[agent_id]
        free = self.ledger[agent_id].free
        reason = find_refusal(state, free, self.rules, requests, self.keys_of(agent_id))
        grants = compute_call_grants(state, free, self.rules, requests) if reason is None else None
        if grants is None:
            reason = reason or Fault.OVER_BUDGET
            return self._fail_turn(agent_id, replace(facts, outcome=Outcome.REFUSED, fault=reason), turn)
        self._spawn(agent_id, facts, requests, grants)

    def _spawn(
        self,
        agent_id: AgentId,
        facts: TurnFacts,
        requests: tuple[CloneRequest, ...],
        grants: list[Amounts],
    ) -> None:
        """Start the children of a call, and let the parent wait for them. Refused children cost nothing."""
        born, refused = self._create_children(agent_id, requests, grants)
        child_ids = iter(born)
        slots = tuple(None if i in refused else next(child_ids) for i in range(len(requests)))
        self._close_turn(agent_id, replace(facts, outcome=Outcome.DELEGATED, children=tuple(born), refused=refused))
        reserved = Amounts(self.rules.reply_bound(len(requests)))
        self.ledger.reserve(agent_id, reserved)
        present = {child_id: child for child_id, child in born.items() if child_id not in self.absent}
        # All grants leave the account in one step, before any child starts: none depends on a running sibling.
        self.ledger.lend(agent_id, {child_id: child.grant for child_id, child in present.items()})
        parent = self._agents[agent_id]
        self._agents[agent_id] = parent._replace(
            status=Status.WAITING,
            call=Call(slots, refused, reserved),
            num_children=parent.num_children + len(born),
        )
        self._running[agent_id] = len(present)
        self._agents.update(born)
        for child_id, child in present.items():
            self.ledger.charge(child_id, Amounts(child.context_tokens))
            self._open_turn(child_id, child.context_tokens)
        if not present:
            self._join(agent_id)

    def _create_children(
        self, parent_id: AgentId, requests: tuple[CloneRequest, ...], grants: list[Amounts]
    ) -> tuple[dict[AgentId, AgentState], dict[int, Fault]]:
        """Return the children whose grants cover their prompts, and the faults of the other objectives by position."""
        parent = self._agents[parent_id]
        born: dict[AgentId, AgentState] = {}
        refused: dict[int, Fault] = {}
        board = self._board(parent_id)
        for i, (request, grant) in enumerate(zip(requests, grants, strict=True)):
            child_id = parent_id.child(parent.num_children + len(born))
            child = self._make_child(child_id, request, grant, board, born_at=len(parent.turns))
            least = child.context_tokens + 1  # its prompt and one token of an answer
            if not grant.covers(Amounts(least, 1)) or not fits_context(self.limits, least):
                refused[i] = Fault.PROMPT_TOO_LONG
            elif child_id in self.absent:
                reply = self.absent[child_id]
                born[child_id] = child._replace(messages=(), context_tokens=0, status=Status.ABSENT, reply=reply)
            else:
                born[child_id] = child
        return born, refused

    def _make_child(
        self, child_id: AgentId, request: CloneRequest, grant: Amounts, board: Mapping[str, str], born_at: int
    ) -> AgentState:
        limits = self.limits
        brief = self.rules.clone_brief(
            child_id.depth,
            request.objective,
            {key: self.task.context[key] for key in request.shared_context},
            grant.total_tokens,
            grant.clones,
            board,
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

    def _board(self, parent_id: AgentId) -> Mapping[str, str]:
        """Return the notes that clones of the next call see. They come from calls of the parent that have joined."""
        if not self.rules.keeps_board:
            return {}
        children = (parent_id.child(i) for i in range(self._agents[parent_id].num_children))
        replies = {child: get_reply(self._agents[child]).text for child in children}
        neutral = {child: self.rules.protocol.neutralise(text) for child, text in replies.items() if text is not None}
        return self.rules.board(neutral)

    def _join(self, parent_id: AgentId) -> None:
        """Join a call whose children have all ended: return unspent grants, then bring all replies in one message."""
        parent = self._agents[parent_id]
        call = parent.call
        assert call is not None
        for child in call.children:
            if child is not None and child not in self.absent:
                self.ledger.close(child)
        replies = [
            Reply(failure=call.refused[i]) if child is None else get_reply(self._agents[child])
            for i, child in enumerate(call.children)
        ]
        self.ledger.settle(parent_id, call.reserved, ZERO)
        self._agents[parent_id] = parent._replace(call=None)
        message = self._with_reminder(parent_id, self.rules.protocol.replies(replies), len(parent.turns))
        tokens = self._append(parent_id, message)
        # Without a limit on replies there is no bound.
        bound = None if self.limits.reply_tokens is None else call.reserved.total_tokens
        assert bound is None or tokens <= bound, "a message of replies costs more than its bound"
        self._open_turn(parent_id, tokens)
