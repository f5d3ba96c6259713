"""Grants: the tokens of a turn and the accounts of a call's children. Pure functions of states and balances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selfcest_env.budget import Amounts
from selfcest_env.rules import Rules
from selfcest_env.tree import AgentState
from selfcest_env.types import CloneRequest, Fault, Limits, Status


def fits_context(limits: Limits, context_tokens: int) -> bool:
    return limits.context_tokens is None or context_tokens <= limits.context_tokens


def compute_turn_grant(state: AgentState, free: Amounts, rules: Rules) -> tuple[int | None, Status | None]:
    """Return the tokens of an agent's next turn, and the status with which anything but an answer would end it.

    A grant of 0 ends the agent now. If another turn can follow, or the agent can ask for one, the grant leaves room for
    one line of environment text and one more answer.
    """
    limits = rules.limits
    used = len(state.turns)
    turn_limit = rules.turn_limit(state.extra_turns)
    window = None if limits.context_tokens is None else limits.context_tokens - state.context_tokens
    room = _least(limits.turn_tokens, window, free.total_tokens, free.generated_tokens)
    if turn_limit is not None and used >= turn_limit:
        return 0, Status.OUT_OF_TURNS
    if room is not None and room < 1:
        return 0, Status.OUT_OF_TOKENS
    if rules.max_turns is not None and used + 1 >= rules.max_turns:
        return room, Status.OUT_OF_TURNS
    reserve = rules.answer_tokens
    notice = rules.notice_tokens
    # The grant if another turn is to follow.
    grant = _least(
        limits.turn_tokens,
        None if window is None else window - notice - reserve,
        None if free.total_tokens is None else free.total_tokens - notice - reserve,
        None if free.generated_tokens is None else free.generated_tokens - reserve,
    )
    if grant is not None and grant < reserve:
        return room, Status.OUT_OF_TOKENS  # too little for both, so this turn gets all of it
    return grant, Status.OUT_OF_TURNS if turn_limit is not None and used + 1 >= turn_limit else None


def find_shortage(state: AgentState, free: Amounts, rules: Rules, tokens: int) -> Fault | None:
    """Return the fault if an agent cannot pay for, or fit, a block of `tokens` and one more answer; else `None`."""
    reserve = rules.answer_tokens
    if not free.covers(Amounts(tokens + reserve, reserve)):
        return Fault.OVER_BUDGET
    if not fits_context(rules.limits, state.context_tokens + tokens + reserve):
        return Fault.CONTEXT_FULL
    return None


def can_pay_call(state: AgentState, free: Amounts, rules: Rules, board: Mapping[str, str]) -> bool:
    """Return whether an agent's account and context can carry the smallest call, whose clone would see this board."""
    if not _can_reserve_replies(free, rules):
        return False
    context = state.context_tokens + rules.reply_bound(1) + rules.answer_tokens
    return free.covers(rules.smallest_call(state.agent_id.depth, board)) and fits_context(rules.limits, context + 1)


def find_refusal(
    state: AgentState, free: Amounts, rules: Rules, requests: Sequence[CloneRequest], keys: Sequence[str]
) -> Fault | None:
    """Return the first fault for which a whole call is refused, before grants are computed; `None` if there is none.

    Args:
        state: the calling agent.
        free: its free balance.
        rules: the rules of the episode.
        requests: the objectives of the call.
        keys: documents that the agent may name.
    """
    per_call = rules.limits.max_clones_per_call
    if not state.brief.can_delegate:
        return Fault.NOT_ALLOWED
    if not requests or any((request.max_tokens or 0) < 0 for request in requests):
        return Fault.BAD_CALL
    if (per_call is not None and len(requests) > per_call) or not free.covers(Amounts(clones=len(requests))):
        return Fault.TOO_MANY_CLONES
    known = frozenset(keys)
    if not all(known.issuperset(request.shared_context) for request in requests):
        return Fault.UNKNOWN_KEY
    if not _can_reserve_replies(free, rules):
        return Fault.OVER_BUDGET
    return find_shortage(state, free, rules, rules.reply_bound(len(requests)))


def _can_reserve_replies(free: Amounts, rules: Rules) -> bool:
    """Return whether a bound of the replies is known, or none is needed.

    Without `reply_tokens` a reply may have any length. A call may still lend a clone a finite account, which could not
    reserve room for the replies to a call of its own.
    """
    return rules.limits.reply_tokens is not None or free.total_tokens is None


def compute_call_grants(
    state: AgentState, free: Amounts, rules: Rules, requests: Sequence[CloneRequest]
) -> list[Amounts] | None:
    """Return the grant of each child, or `None` if the parent cannot pay.

    A child gets the total tokens that it requests, or an equal share of the rest. Children share generated tokens and
    clones equally.
    """
    limits = rules.limits
    reserve = rules.answer_tokens
    count = len(requests)
    # The parent keeps the replies at their upper bound and one more answer, and each birth costs it a clone.
    available = free.minus(Amounts(rules.reply_bound(count) + reserve, reserve, count))
    requested = sum(request.max_tokens or 0 for request in requests)
    num_sharing = sum(request.max_tokens is None for request in requests)
    share: int | None = None
    if available.total_tokens is not None:
        if requested > available.total_tokens:
            return None
        share = (available.total_tokens - requested) // max(1, num_sharing)
    generated = None if available.generated_tokens is None else available.generated_tokens // count
    is_leaf = limits.max_depth is not None and state.agent_id.depth + 1 >= limits.max_depth
    clones: int | None = None if available.clones is None else available.clones // count
    if is_leaf:  # a clone that cannot delegate needs no clones of its own
        clones = 0
    return [
        Amounts(share if request.max_tokens is None else request.max_tokens, generated, clones) for request in requests
    ]


def _least(*limits: int | None) -> int | None:
    least = None
    for limit in limits:
        if limit is not None and (least is None or limit < least):
            least = limit
    return least
