"""Nested token accounts. Every agent has an account, and a parent funds the accounts of its children from its own.

One invariant holds on every account: `granted == spent + reserved + lent + free`, where `lent` is the sum of the
children's grants. Over the tree it follows that `spent + reserved + free == total`. A child spends, delegates and sees
only its own account. Its unspent balance flows back when its account is closed. The kernel closes accounts only after
the whole call has joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from selfcest_env.errors import BudgetError
from selfcest_env.types import ROOT, AgentId


class Amounts(NamedTuple):
    """Total tokens, generated tokens and clones. `None`, in a grant or a free balance, means unlimited."""

    total_tokens: int | None = 0
    generated_tokens: int | None = 0
    clones: int | None = 0

    # These methods name the three amounts one by one, because every turn calls them a dozen times, and a loop over the
    # fields takes three times as long.

    def covers(self, cost: Amounts) -> bool:
        total, generated, clones = self
        needed_total, needed_generated, needed_clones = cost
        return (
            (total is None or (needed_total is not None and needed_total <= total))
            and (generated is None or (needed_generated is not None and needed_generated <= generated))
            and (clones is None or (needed_clones is not None and needed_clones <= clones))
        )

    def plus(self, other: Amounts) -> Amounts:
        total, generated, clones = self
        more_total, more_generated, more_clones = other
        return Amounts(
            None if total is None or more_total is None else total + more_total,
            None if generated is None or more_generated is None else generated + more_generated,
            None if clones is None or more_clones is None else clones + more_clones,
        )

    def minus(self, other: Amounts) -> Amounts:
        """Return the difference. Unlimited stays unlimited, and an unlimited amount takes nothing away."""
        total, generated, clones = self
        less_total, less_generated, less_clones = other
        return Amounts(
            None if total is None else total - (less_total or 0),
            None if generated is None else generated - (less_generated or 0),
            None if clones is None else clones - (less_clones or 0),
        )


ZERO = Amounts()


class Account(NamedTuple):
    """One agent's account. Only `granted` may hold `None`: what is spent, reserved or lent is always a number.

    An unlimited grant to a child lends nothing: the child's spending is added to `lent` when its account is closed.
    """

    granted: Amounts
    spent: Amounts = ZERO
    reserved: Amounts = ZERO
    lent: Amounts = ZERO

    @property
    def free(self) -> Amounts:
        (total, generated, clones), spent, reserved, lent = self
        return Amounts(
            None if total is None else total - (spent[0] or 0) - (reserved[0] or 0) - (lent[0] or 0),
            None if generated is None else generated - (spent[1] or 0) - (reserved[1] or 0) - (lent[1] or 0),
            None if clones is None else clones - (spent[2] or 0) - (reserved[2] or 0) - (lent[2] or 0),
        )

    @property
    def remaining(self) -> Amounts:
        """The balance that the agent can still use: free, or reserved for its own work in flight."""
        return self.granted.minus(self.spent).minus(self.lent)


class Ledger:
    """All accounts of one episode. Every operation checks first and changes nothing when it raises `BudgetError`."""

    def __init__(self, total: Amounts) -> None:
        self._check_amounts("grant", total, unlimited=True)
        self.total = total
        self._accounts: dict[AgentId, Account] = {ROOT: Account(granted=total)}
        self._open: dict[AgentId, int] = {ROOT: 0}  # by open account, how many open accounts it has funded

    def copy(self) -> Ledger:
        """Return an independent copy. Accounts are immutable, so the copy shares them."""
        other = Ledger.__new__(Ledger)
        other.total = self.total
        other._accounts = dict(self._accounts)
        other._open = dict(self._open)
        return other

    @property
    def accounts(self) -> Mapping[AgentId, Account]:
        return self._accounts

    def __getitem__(self, agent_id: AgentId) -> Account:
        return self._find_open(agent_id)

    def reserve(self, agent_id: AgentId, cost: Amounts) -> None:
        """Set `cost` aside before the work starts."""
        account = self._find_covering(agent_id, cost)
        self._accounts[agent_id] = Account(account.granted, account.spent, account.reserved.plus(cost), account.lent)

    def settle(self, agent_id: AgentId, reserved: Amounts, used: Amounts) -> None:
        """End a reservation: `used` of it is spent for good, the rest is free again."""
        account = self._find_open(agent_id)
        self._check_amounts("use", used)
        self._check_amounts("reservation", reserved)
        if not account.reserved.covers(reserved):
            raise BudgetError(f"{agent_id} cannot settle {reserved}: only {account.reserved} is reserved")
        if not reserved.covers(used):
            raise BudgetError(f"{agent_id} used {used}, more than its reservation {reserved}")
        spent = account.spent.plus(used)
        self._accounts[agent_id] = Account(account.granted, spent, account.reserved.minus(reserved), account.lent)

    def charge(self, agent_id: AgentId, cost: Amounts) -> None:
        """Spend `cost` without a reservation, for text that the environment writes."""
        account = self._find_covering(agent_id, cost)
        self._accounts[agent_id] = Account(account.granted, account.spent.plus(cost), account.reserved, account.lent)

    def lend(self, parent_id: AgentId, grants: Mapping[AgentId, Amounts]) -> None:
        """Open an account per child, funded from the parent's free balance in one step. A birth spends one clone."""
        parent = self._find_open(parent_id)
        free = parent.free
        births = Amounts(clones=len(grants))
        lent = ZERO
        for child_id, grant in grants.items():
            if child_id.parent != parent_id or child_id in self._accounts:
                raise BudgetError(f"{parent_id} cannot open an account for {child_id}: not its child, or not new")
            self._check_amounts("grant", grant, unlimited=True)
            # A limited parent could never cover the spending of an unlimited child.
            if None in grant and any(
                granted is None and left is not None for granted, left in zip(grant, free, strict=True)
            ):
                raise BudgetError(f"{parent_id} cannot lend {grant}: its own account is limited, free {free}")
            lent = lent.plus(_finite(grant))
        if not free.covers(lent.plus(births)):
            raise BudgetError(f"{parent_id} cannot lend {lent} to {len(grants)} clones: only {free} is free")
        spent = parent.spent.plus(births)
        self._accounts[parent_id] = Account(parent.granted, spent, parent.reserved, parent.lent.plus(lent))
        self._accounts.update({child_id: Account(granted=grant) for child_id, grant in grants.items()})
        self._open[parent_id] += len(grants)
        self._open.update(dict.fromkeys(grants, 0))

    def close(self, child_id: AgentId) -> None:
        """Close a child's account and return its balance to the parent. Nothing may be reserved or open below it."""
        child = self._find_open(child_id)
        parent_id = child_id.parent
        if parent_id is None:
            raise BudgetError("the root's account has no parent to return to")
        if child.reserved != ZERO:
            raise BudgetError(f"{child_id} cannot be closed: {child.reserved} is still reserved for work in flight")
        if self._open[child_id]:
            still_open = ", ".join(str(agent_id) for agent_id in self._open if agent_id.parent == child_id)
            raise BudgetError(f"{child_id} cannot be closed before its clones {still_open}")
        consumed = child.spent.plus(child.lent)
        # The parent's `lent` must stay the sum of its children's `granted`, so both shrink to the child's consumption.
        parent = self._find_open(parent_id)
        lent = parent.lent.minus(_finite(child.granted)).plus(consumed)
        self._accounts[parent_id] = Account(parent.granted, parent.spent, parent.reserved, lent)
        self._accounts[child_id] = Account(consumed, child.spent, child.reserved, child.lent)
        self._open[parent_id] -= 1
        del self._open[child_id]

    def totals(self) -> tuple[Amounts, Amounts, Amounts]:
        """Return (spent, reserved, free) over the tree. They add up to `total` wherever it is limited."""
        spent = ZERO
        reserved = ZERO
        free: list[int | None] = [None if limit is None else 0 for limit in self.total]
        for account in self._accounts.values():
            spent = spent.plus(account.spent)
            reserved = reserved.plus(account.reserved)
            for i, amount in enumerate(account.free):
                # Under an unlimited total, a child's finite balance was taken from no other account.
                if free[i] is not None and amount is not None:
                    free[i] = (free[i] or 0) + amount
        return spent, reserved, Amounts(*free)

    def check(self) -> None:
        """Assert the invariant on every account and over the tree."""
        for agent_id, account in self._accounts.items():
            for kind in (account.spent, account.reserved, account.lent, account.free):
                assert all(amount is None or amount >= 0 for amount in kind), f"{agent_id} is overdrawn: {account}"
            funded = ZERO
            for other_id, other in self._accounts.items():
                if other_id.parent == agent_id:
                    funded = funded.plus(_finite(other.granted))
            assert funded == account.lent, f"{agent_id} lent {account.lent}, its children hold {funded}"
        spent, reserved, free = self.totals()
        for name, limit, *shares in zip(Amounts._fields, self.total, spent, reserved, free, strict=True):
            if limit is not None:
                assert sum(share or 0 for share in shares) == limit, f"{name}: {shares} do not add up to {limit}"

    def _find_open(self, agent_id: AgentId) -> Account:
        if agent_id not in self._open:
            raise BudgetError(f"{agent_id} has no open account")
        return self._accounts[agent_id]

    def _find_covering(self, agent_id: AgentId, cost: Amounts) -> Account:
        """Return an open account whose free balance covers `cost`."""
        account = self._find_open(agent_id)
        self._check_amounts("reservation", cost)
        if not account.free.covers(cost):
            raise BudgetError(f"{agent_id} cannot reserve {cost}: only {account.free} is free in its account")
        return account

    @staticmethod
    def _check_amounts(what: str, amounts: Amounts, unlimited: bool = False) -> None:
        if amounts.covers(ZERO) and (unlimited or None not in amounts):
            return
        for name, amount in zip(Amounts._fields, amounts, strict=True):
            if (amount is None and not unlimited) or (amount is not None and amount < 0):
                raise BudgetError(f"a {what} of {amount!r} {name} is impossible; expected a number >= 0")


def _finite(grant: Amounts) -> Amounts:
    return grant if None not in grant else Amounts(*(amount or 0 for amount in grant))
