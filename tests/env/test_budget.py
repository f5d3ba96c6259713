"""The ledger by hand-worked numbers, and a random walk that must never break its invariant."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfcest_env.budget import ZERO, Account, Amounts, Ledger
from selfcest_env.errors import BudgetError
from selfcest_env.types import ROOT

A, B = ROOT.child(0), ROOT.child(1)


def snapshot(ledger):
    return dict(ledger.accounts), dict(ledger._open)


def refused(ledger, match, operation, *args):
    before = snapshot(ledger)
    with pytest.raises(BudgetError, match=match):
        getattr(ledger, operation)(*args)
    assert snapshot(ledger) == before
    ledger.check()


def subtract(have, *parts):
    return None if have is None else have - sum(part or 0 for part in parts)


counts = st.integers(-5, 20)
maybe = st.none() | counts
amounts = st.builds(Amounts, maybe, maybe, maybe)
numbers = st.builds(Amounts, counts, counts, counts)


@given(amounts, amounts, amounts, numbers, numbers, numbers)
def test_arithmetic_goes_field_by_field(a, b, granted, spent, reserved, lent):
    assert a.covers(b) == all(have is None or (need is not None and need <= have) for have, need in zip(a, b))  # noqa: B905
    assert a.plus(b) == Amounts(*(None if None in pair else sum(pair) for pair in zip(a, b)))  # noqa: B905
    assert a.minus(b) == Amounts(*map(subtract, a, b))
    account = Account(granted, spent, reserved, lent)
    assert account.free == Amounts(*map(subtract, granted, spent, reserved, lent))
    assert account.remaining == Amounts(*map(subtract, granted, spent, lent))


def test_reserve_settle_and_charge():
    ledger = Ledger(Amounts(100, 40, 2))
    ledger.reserve(ROOT, Amounts(30, 20))
    assert ledger[ROOT].free == Amounts(70, 20, 2)
    assert ledger[ROOT].remaining == Amounts(100, 40, 2)
    ledger.settle(ROOT, Amounts(30, 20), Amounts(12, 12))  # 18 and 8 come back
    assert ledger[ROOT].free == Amounts(88, 28, 2)
    ledger.charge(ROOT, Amounts(8))
    assert ledger[ROOT] == Account(Amounts(100, 40, 2), spent=Amounts(20, 12))
    assert ledger.totals() == (Amounts(20, 12, 0), ZERO, Amounts(80, 28, 2))
    ledger.check()


def test_lend_and_close_return_only_what_is_left():
    ledger = Ledger(Amounts(100, 50, 3))
    ledger.lend(ROOT, {A: Amounts(30, 10, 1), B: Amounts(20, 5, 0)})
    assert ledger[ROOT].free == Amounts(50, 35, 0)  # 3 clones: two born, one lent
    ledger.charge(A, Amounts(11, 4))
    ledger.lend(A, {A.child(0): Amounts(6, 2, 0)})  # A: 30 - 11 - 6
    assert ledger[A].free == Amounts(13, 4, 0)
    ledger.charge(A.child(0), Amounts(5, 2))
    refused(ledger, "before its clones root.0.0", "close", A)
    ledger.close(A.child(0))
    assert ledger[A].free == Amounts(14, 4, 0)
    ledger.close(A)  # consumed 16 total, 6 generated, 1 clone
    assert ledger[ROOT].free == Amounts(64, 39, 0)
    ledger.close(B)
    assert ledger[ROOT].free == Amounts(84, 44, 0)
    assert ledger.totals()[0] == Amounts(16, 6, 3)
    ledger.check()


def test_every_error_changes_nothing():
    ledger = Ledger(Amounts(10, 10, 1))
    refused(ledger, "cannot reserve", "reserve", ROOT, Amounts(11))
    refused(ledger, "cannot reserve", "charge", ROOT, Amounts(1, 11))
    refused(ledger, "expected a number >= 0", "reserve", ROOT, Amounts(-1))
    refused(ledger, "expected a number >= 0", "reserve", ROOT, Amounts(None))
    refused(ledger, "no open account", "reserve", A, Amounts(1))
    refused(ledger, "not its child", "lend", ROOT, {A.child(0): Amounts(1)})
    refused(ledger, "not its child", "lend", ROOT, {ROOT: Amounts(1)})
    refused(ledger, "its own account is limited", "lend", ROOT, {A: Amounts(None, 0, 0)})
    refused(ledger, "expected a number >= 0", "lend", ROOT, {A: Amounts(-1)})
    refused(ledger, "to 2 clones", "lend", ROOT, {A: ZERO, B: ZERO})
    refused(ledger, "no parent", "close", ROOT)
    ledger.reserve(ROOT, Amounts(5, 5))
    refused(ledger, "only .* is reserved", "settle", ROOT, Amounts(6), ZERO)
    refused(ledger, "more than its reservation", "settle", ROOT, Amounts(5), Amounts(5, 1))
    refused(ledger, "expected a number >= 0", "settle", ROOT, Amounts(5), Amounts(-1))
    ledger.settle(ROOT, Amounts(5, 5), ZERO)
    ledger.lend(ROOT, {A: Amounts(4, 4)})
    refused(ledger, "not its child, or not new", "lend", ROOT, {A: ZERO})
    ledger.close(A)
    refused(ledger, "no open account", "close", A)
    refused(ledger, "no open account", "charge", A, ZERO)


def test_unlimited_accounts_count_and_never_refuse():
    ledger = Ledger(Amounts(None, None, None))
    ledger.lend(ROOT, {A: Amounts(None, None, None), B: Amounts(7, None, 0)})
    ledger.charge(A, Amounts(10**9, 5))
    refused(ledger, "cannot reserve", "charge", B, Amounts(8))
    ledger.close(A)
    ledger.close(B)
    assert ledger.totals() == (Amounts(10**9, 5, 2), ZERO, Amounts(None, None, None))
    assert ledger[ROOT].lent == Amounts(10**9, 5, 0)
    ledger.check()


def test_zero_is_zero():
    ledger = Ledger(Amounts(0, 0, 0))
    ledger.charge(ROOT, ZERO)
    refused(ledger, "cannot reserve", "charge", ROOT, Amounts(1))
    refused(ledger, "cannot reserve", "charge", ROOT, Amounts(0, 1))
    refused(ledger, "cannot lend", "lend", ROOT, {A: ZERO})


def test_copies_are_independent():
    ledger = Ledger(Amounts(10, 10, 1))
    other = ledger.copy()
    other.charge(ROOT, Amounts(3))
    other.lend(ROOT, {A: Amounts(2)})
    assert ledger[ROOT].free == Amounts(10, 10, 1)
    assert other[ROOT].free == Amounts(5, 10, 0)


amount = st.integers(-1, 12)
limit = st.none() | st.integers(0, 40)
costs = st.builds(Amounts, amount, amount, st.just(0))
grants = st.builds(Amounts, st.none() | amount, st.none() | amount, st.none() | st.integers(0, 2))


@settings(max_examples=150, deadline=None)
@given(st.builds(Amounts, limit, limit, limit), st.data())
def test_random_walk_keeps_the_invariant(total, data):
    ledger = Ledger(total)
    for _ in range(data.draw(st.integers(1, 20))):
        agent = data.draw(st.sampled_from(sorted(ledger.accounts)))
        before = snapshot(ledger)
        try:
            match data.draw(st.sampled_from(("reserve", "settle", "charge", "lend", "close"))):
                case "lend":
                    first = sum(other.parent == agent for other in ledger.accounts)
                    wanted = data.draw(st.lists(grants, max_size=3))
                    ledger.lend(agent, {agent.child(first + i): grant for i, grant in enumerate(wanted)})
                case "settle":
                    ledger.settle(agent, data.draw(costs), data.draw(costs))
                case "close":
                    ledger.close(agent)
                case operation:
                    getattr(ledger, operation)(agent, data.draw(costs))
        except BudgetError:
            assert snapshot(ledger) == before
        ledger.check()
        spent, reserved, _ = ledger.totals()
        for cap, *used in zip(total, spent, reserved, strict=True):
            assert cap is None or sum(used) <= cap
