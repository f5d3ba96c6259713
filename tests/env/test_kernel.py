"""Episodes worked by hand, at the prices of plain_game.py."""

import sys
from dataclasses import replace

import pytest
from growth import growth
from plain_game import A, B, Plain, ask, game, play

from selfcest_env.budget import Amounts
from selfcest_env.counterfactual import fork_before
from selfcest_env.errors import GameError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Reply
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import (
    ROOT,
    AgentId,
    Answer,
    Boundary,
    CloneRequest,
    Delegate,
    Fault,
    FinishReason,
    Limits,
    Malformed,
    Outcome,
    Read,
    Status,
    Task,
    Usage,
)
from selfcest_env.views import observe


def last(kernel, agent=ROOT):
    return kernel.agents[agent].turns[-1]


def refused(kernel, action, fault, agent=ROOT):
    play(kernel, agent, action)
    assert (last(kernel, agent).outcome, last(kernel, agent).fault) == (Outcome.REFUSED, fault)
    assert kernel.agents[agent].num_children == 0


# Episodes


def test_answer_at_once():
    kernel = game()
    # free 95; keeps a notice 1 and an answer 6: 88, so turn_tokens = 20 is the bound
    assert observe(kernel, ROOT).max_new_tokens == 20
    assert kernel.ledger[ROOT].reserved == Amounts(21, 20)
    play(kernel, ROOT, Answer("7"), 3)
    assert kernel.done
    assert kernel.ready() == ()
    assert kernel.agents[ROOT].reply == "7"
    assert kernel.ledger.totals() == (Amounts(8, 3), Amounts(), Amounts(92, None, 16))
    with pytest.raises(GameError, match="root cannot act: it is answered; ready: no agent"):
        play(kernel, ROOT, Answer("8"))


def test_one_call_with_two_clones_and_leftovers_that_wait_for_the_join():
    kernel = game()
    play(kernel, ROOT, ask("a", "b"), 5)
    # free 90; the reply message at most 2 + 2*4 = 10, one more answer 6: 74, 37 each
    assert [kernel.ledger[child].granted for child in (A, B)] == [Amounts(37, None, 0)] * 2  # at depth 1, no clones
    assert kernel.ledger[ROOT].free.total_tokens == 6
    assert kernel.ready() == (A, B)
    play(kernel, B, Answer("12"), 4)
    assert kernel.ledger[ROOT].free.total_tokens == 6  # b is done, its 30 stay lent
    assert kernel.agents[ROOT].status is Status.WAITING
    play(kernel, A, Answer("3"), 2)
    # a: 3 + 2, b: 3 + 4; replies 2 + 1 + 2 = 5; 90 - 5 - 7 - 5 = 73, of which the open turn holds 21
    assert kernel.ledger[ROOT].free.total_tokens == 73 - 21
    assert observe(kernel, ROOT).exchanges[0].replies == (Reply("3"), Reply("12"))
    assert observe(kernel, ROOT).block[0].content == "..312"
    play(kernel, ROOT, Answer("15"), 1)
    assert kernel.ledger.totals()[0] == Amounts(5 + 5 + 5 + 7 + 5 + 1, 12, 2)


def test_calls_in_series_number_children_on():
    kernel = game()
    for index in range(3):
        play(kernel, ROOT, ask("a"), 1)
        assert kernel.ready() == (ROOT.child(index),)
        play(kernel, ROOT.child(index), Answer("1"), 1)
    # each round 1 + 3 + 1 + (2 + 1) = 8
    assert kernel.ledger[ROOT].remaining.total_tokens == 95 - 3 * 8
    assert [facts.children for facts in kernel.agents[ROOT].turns] == [(A,), (B,), (ROOT.child(2),)]


def test_nested_depth_two_keeps_a_reserve_at_every_depth():
    kernel = game(max_depth=2)
    play(kernel, ROOT, ask("a"), 5)
    assert kernel.ledger[A].granted.total_tokens == 90 - 6 - 6  # replies 2 + 4, reserve 6
    play(kernel, A, ask("b"), 5)
    deep = A.child(0)
    # 78 - prompt 3 - call 5 - replies 6 - reserve 6
    assert kernel.ledger[deep].granted.total_tokens == 58
    assert kernel.ledger[A].free.total_tokens == kernel.ledger[ROOT].free.total_tokens == 6
    assert not observe(kernel, deep).can_delegate
    assert observe(kernel, deep).depth == 2
    refused(kernel, ask("c"), Fault.NOT_ALLOWED, deep)
    play(kernel, deep, Answer("1"), 1)
    play(kernel, A, Answer("2"), 1)
    play(kernel, ROOT, Answer("3"), 1)
    # root 5+5+3+1, a 3+5+3+1, deep 3+2+1+1
    assert kernel.ledger.totals()[0].total_tokens == 14 + 12 + 7


def test_explicit_grants_and_equal_shares_of_the_rest():
    kernel = game()
    play(kernel, ROOT, ask(CloneRequest("a", max_tokens=30), "b", "c"), 5)
    # free 90 - (2 + 3*4) - 6 = 70; 30 asked, 40 left for two
    assert [kernel.ledger[ROOT.child(i)].granted.total_tokens for i in range(3)] == [30, 20, 20]
    kernel = game(generated_tokens=50, max_clones=9, max_depth=3)
    play(kernel, ROOT, ask("a", "b", "c"), 5)
    # generated 45 - 6 = 39 for three; clones 9 - 3 = 6 for three
    assert kernel.ledger[A].granted == Amounts(70 // 3, 13, 2)


def test_a_child_that_its_grant_cannot_carry_is_unborn_and_uncharged():
    kernel = game()
    play(kernel, ROOT, ask("long", CloneRequest("a", max_tokens=3), CloneRequest("b", max_tokens=4)), 5)
    # 'long' has (90-14-6-7)//1 = 63: born. A grant of 3 leaves no token after a prompt of 3; one of 4 leaves one.
    assert last(kernel).refused == {1: Fault.PROMPT_TOO_LONG}
    assert kernel.ready() == (A, B)
    kernel = game()
    play(kernel, ROOT, ask("long", "long"), 5)  # 37 each is under 51: nobody is born, the refusals cost 2 + 2
    assert kernel.ready() == (ROOT,)
    assert kernel.ledger[ROOT].spent == Amounts(5 + 5 + 4, 5, 0)
    assert observe(kernel, ROOT).exchanges[0].replies == (Reply(failure=Fault.PROMPT_TOO_LONG),) * 2
    kernel = game()
    play(kernel, ROOT, ask(CloneRequest("a", max_tokens=0)), 5)  # 0 is zero
    assert last(kernel).refused == {0: Fault.PROMPT_TOO_LONG}
    kernel = game(context_tokens=40)
    play(kernel, ROOT, ask("long"), 5)  # 50 + 1 is over its context
    assert last(kernel).refused == {0: Fault.PROMPT_TOO_LONG}


# Refusals of a whole call


@pytest.mark.parametrize(
    ("limits", "action", "fault"),
    [
        ({"max_depth": 0}, ask("a"), Fault.NOT_ALLOWED),
        ({"max_clones_per_call": 1}, ask("a", "b"), Fault.TOO_MANY_CLONES),
        ({"max_clones": 1}, ask("a", "b"), Fault.TOO_MANY_CLONES),
        ({}, ask(CloneRequest("a", ("C",))), Fault.UNKNOWN_KEY),
        ({}, ask(CloneRequest("a", max_tokens=10**30)), Fault.OVER_BUDGET),
        ({"total_tokens": 49}, ask(*"abcdefgh"), Fault.OVER_BUDGET),  # 49 - 5 - 5 = 39 < (2 + 8*4) + 6
        ({"context_tokens": 40}, ask(*"abcdefg"), Fault.CONTEXT_FULL),  # 5 + 5 + (2 + 28) + 6 > 40
        ({}, Delegate(()), Fault.BAD_CALL),
        ({"generated_tokens": 50}, Delegate(()), Fault.BAD_CALL),
        ({}, ask(CloneRequest("a", max_tokens=-9), "b"), Fault.BAD_CALL),
        ({}, Read(("A",)), Fault.NOT_ALLOWED),
        ({"max_reads": 1}, Read(("A", "B")), Fault.TOO_MANY_READS),
        ({"max_reads": 1}, Read(("C",)), Fault.UNKNOWN_KEY),
        ({"max_reads": 1}, Read(()), Fault.BAD_CALL),
        ({"max_reads": 1, "total_tokens": 18}, Read(("A",)), Fault.OVER_BUDGET),  # 18 - 5 - 5 = 8 < 4 + 6
        ({"max_reads": 1, "context_tokens": 18}, Read(("A",)), Fault.CONTEXT_FULL),  # 5 + 5 + 4 + 6 > 18
    ],
)
def test_refusals(limits, action, fault):
    kernel = game(**limits)
    play(kernel, ROOT, action, 5)
    assert (last(kernel).outcome, last(kernel).fault) == (Outcome.REFUSED, fault)
    assert kernel.ready() == (ROOT,)
    assert kernel.agents[ROOT].num_children == 0
    assert observe(kernel, ROOT).block[0].content == "."


def test_a_key_that_is_named_twice_is_one_read():
    kernel = game(max_reads=1)
    play(kernel, ROOT, Read(("A", "A")), 5)
    assert last(kernel).outcome is Outcome.READ
    assert kernel.num_reads == 1


@pytest.mark.parametrize("fault", [Fault.NO_ANSWER, Fault.BAD_CALL])
def test_malformed_turns_use_a_turn_and_go_on(fault):
    kernel = game()
    play(kernel, ROOT, Malformed(fault), 5)
    assert (last(kernel).outcome, last(kernel).fault) == (Outcome.MALFORMED, fault)
    assert kernel.ledger[ROOT].spent == Amounts(5 + 5 + 1, 5)
    assert observe(kernel, ROOT).turn == 1


@pytest.mark.parametrize("action", [Answer("7"), ask("a"), Read(("A",))])
def test_cut_by_length_is_never_an_answer_nor_a_call(action):
    kernel = game(max_reads=1)
    play(kernel, ROOT, action, 20, FinishReason.LENGTH)
    assert (last(kernel).outcome, last(kernel).fault) == (Outcome.MALFORMED, Fault.CUT_BY_LENGTH)
    assert observe(kernel, ROOT).boundary is Boundary.AFTER_LENGTH
    assert kernel.num_reads == 0


def test_over_long_generation_costs_its_grant_and_is_never_shown():
    kernel = game()
    play(kernel, ROOT, Answer("SECRET"), 21, text="SECRET")
    assert (last(kernel).generated_tokens, last(kernel).fault) == (20, Fault.OVER_GRANT)
    assert kernel.ledger[ROOT].spent == Amounts(5 + 20 + 1, 20)
    assert "SECRET" not in repr(observe(kernel, ROOT))


@pytest.mark.parametrize(
    ("usage", "fault"),
    [(Usage(21), Fault.OVER_GRANT), (Usage(3, FinishReason.LENGTH), Fault.CUT_BY_LENGTH)],
)
def test_what_cannot_count_is_not_parsed(usage, fault):
    class Unread(Plain):
        def parse(self, text):
            raise AssertionError("parsed")

    kernel = game(Unread())
    kernel.play(ROOT, "<call>a</call>", usage)
    assert last(kernel).fault is fault
    with pytest.raises(AssertionError, match="parsed"):
        kernel.play(ROOT, "<call>a</call>", Usage(20))
    with pytest.raises(GameError, match="cannot act: no such agent"):
        kernel.play(A, "<ans>1", Usage(20))


@pytest.mark.parametrize("call", [lambda keys: ask(CloneRequest("a", keys)), Read])
def test_keys_are_looked_up_in_linear_time(call):
    def refuse(count):
        keys = tuple(map(str, range(count)))
        kernel = Kernel(Task("t", "q", "7", "test", dict.fromkeys(keys, "")), rules)
        play(kernel, ROOT, call((*keys, "unknown")))
        assert last(kernel).fault is Fault.UNKNOWN_KEY

    rules = game(max_reads=10_000).rules
    assert growth(refuse, 500) < 9


def test_unknown_usage_costs_the_whole_grant():
    kernel = game()
    play(kernel, ROOT, Answer("7"), None)
    assert kernel.done
    assert kernel.ledger[ROOT].spent == Amounts(25, 20)
    with pytest.raises(GameError, match="expected a number >= 0"):
        play(game(), ROOT, Answer("7"), -1)


# Endings


def test_last_turn_by_turns():
    for action in (ask("a"), Read(("A",)), Malformed(Fault.NO_ANSWER)):
        kernel = game(max_turns=1, max_reads=1)
        seen = observe(kernel, ROOT)
        assert seen.is_last
        assert not seen.can_delegate
        assert not seen.can_read
        play(kernel, ROOT, action)
        assert kernel.agents[ROOT].status is Status.OUT_OF_TURNS
        assert kernel.agents[ROOT].reply is None
        assert kernel.ledger[ROOT].spent == Amounts(7, 2)  # no notice that nobody would read
    kernel = game(max_turns=1)
    play(kernel, ROOT, Answer("7"))
    assert kernel.agents[ROOT].status is Status.ANSWERED


def test_last_turn_by_tokens():
    kernel = game(
        total_tokens=17
    )  # 12 free, less notice 1 and reserve 6: 5 < 6, so this is the last and may use all 12
    assert observe(kernel, ROOT).is_last
    assert observe(kernel, ROOT).max_new_tokens == 12
    play(kernel, ROOT, Malformed(Fault.NO_ANSWER))
    assert kernel.agents[ROOT].status is Status.OUT_OF_TOKENS
    kernel = game(total_tokens=18)  # 13 - 7 = 6: one answer now, one later
    assert not observe(kernel, ROOT).is_last
    assert observe(kernel, ROOT).max_new_tokens == 6
    play(kernel, ROOT, Malformed(Fault.NO_ANSWER), 6)
    assert observe(kernel, ROOT).is_last
    assert observe(kernel, ROOT).max_new_tokens == 6


def test_a_call_that_was_never_affordable_ends_out_of_tokens():
    # smallest call: replies 2+4, reserve 6, prompt 3, one token: 16; free is 15
    kernel = game(total_tokens=20)
    assert not observe(kernel, ROOT).can_delegate
    assert not observe(kernel, ROOT).is_last
    play(kernel, ROOT, ask("a"))
    assert kernel.agents[ROOT].status is Status.OUT_OF_TOKENS
    assert last(kernel).fault is Fault.OVER_BUDGET
    assert observe(game(total_tokens=21), ROOT).can_delegate


def test_a_call_must_fit_the_context_with_one_more_answer():
    # prompt 5, replies 2 + 10, one more answer 6, and the call itself at least 1: 24
    for context_tokens in (23, 24):
        seen = observe(game(context_tokens=context_tokens, reply_tokens=10), ROOT)
        assert seen.can_delegate == (context_tokens == 24)
        assert not seen.is_last


def test_a_root_prompt_over_a_limit_is_a_typed_ending_and_free():
    for limits in ({"total_tokens": 5}, {"context_tokens": 5}, {"generated_tokens": 0}):
        kernel = game(**limits, answer_reserve=0)
        assert kernel.done
        assert kernel.agents[ROOT].status is Status.PROMPT_TOO_LONG
        assert kernel.ledger[ROOT].spent == Amounts()
        assert kernel.ready() == ()
    assert game(total_tokens=6, answer_reserve=0).ready() == (ROOT,)


@pytest.mark.parametrize(
    ("limits", "status"), [({"max_turns": 0}, Status.OUT_OF_TURNS), ({"turn_tokens": 0}, Status.OUT_OF_TOKENS)]
)
def test_no_turn_at_all_costs_nothing(limits, status):
    kernel = game(**limits, answer_reserve=0)
    assert kernel.done
    assert kernel.agents[ROOT].status is status
    assert kernel.ledger[ROOT].spent == Amounts()


def test_reply_too_long_is_a_failure_and_nothing_is_cut():
    kernel = game()
    play(kernel, ROOT, ask("a", "b"))
    play(kernel, A, Answer("12345"))
    play(kernel, B, Answer("1234"))
    assert kernel.agents[A].status is Status.REPLY_TOO_LONG
    assert observe(kernel, ROOT).block[0].content == "..!1234"
    kernel = game()
    play(kernel, ROOT, Answer("12345"))
    assert kernel.agents[ROOT].status is Status.ANSWERED  # the bound is on what a parent must read


def test_unlimited_replies_under_an_unlimited_total():
    kernel = game(total_tokens=None, reply_tokens=None)
    play(kernel, ROOT, ask("a"))
    play(kernel, A, Answer("x" * 400))
    assert last(kernel).outcome is Outcome.DELEGATED
    assert len(observe(kernel, ROOT).block[0].content) == 402


def test_a_finite_account_makes_no_call_whose_replies_have_no_bound():
    """The answer of the clone's clone raised an error, and nobody could act again."""
    kernel = game(total_tokens=None, reply_tokens=None, max_depth=2)
    play(kernel, ROOT, Delegate((CloneRequest("a", max_tokens=600),)))
    play(kernel, A, ask("b"))
    assert kernel.agents[A].status is Status.OUT_OF_TOKENS
    assert last(kernel, A).fault is Fault.OVER_BUDGET
    # An account without a limit lends one without a limit.
    play(kernel, ROOT, ask("c"))
    play(kernel, B, ask("d"))
    play(kernel, B.child(0), Answer("x" * 400))
    play(kernel, B, Answer("2"))
    play(kernel, ROOT, Answer("3"))
    assert kernel.done


def test_a_window_of_the_task_below_the_reserve_ends_the_episode():
    limits = Limits(context_tokens=99, answer_reserve=6)
    assert limits.with_window(4) == replace(limits, context_tokens=4, answer_reserve=4)
    rules = game().rules
    kernel = Kernel(Task("t", "1+1", "2", "test", context_tokens=4), rules)
    assert kernel.agents[ROOT].status is Status.PROMPT_TOO_LONG


def test_a_reserve_of_zero_still_leaves_one_token_for_an_answer():
    kernel = game(answer_reserve=0, total_tokens=20)
    assert observe(kernel, ROOT).max_new_tokens == 13  # 15 - notice 1 - 1
    play(kernel, ROOT, Malformed(Fault.NO_ANSWER), 13)
    assert observe(kernel, ROOT).is_last
    assert observe(kernel, ROOT).max_new_tokens == 1


# Reading, full text


def test_reading():
    kernel = game(max_reads=2)
    assert observe(kernel, ROOT).can_read
    play(kernel, ROOT, Read(("A", "B")))
    seen = observe(kernel, ROOT)
    assert seen.exchanges[0].documents == {"A": "doc a", "B": "doc b"}
    assert not seen.can_read
    assert last(kernel).outcome is Outcome.READ
    assert kernel.ledger[ROOT].spent == Amounts(5 + 2 + 4, 2)
    play(kernel, ROOT, ask(CloneRequest("a", ("A",))))
    assert kernel.agents[A].brief.documents == {"A": "doc a"}
    assert kernel.keys_of(A) == ("A",)
    refused(kernel, Read(("A",)), Fault.NOT_ALLOWED, A)


def test_full_text_only_when_delegation_and_reading_are_off():
    for limits, full in (({"max_depth": 0}, True), ({"max_depth": 0, "max_reads": 1}, False), ({}, False)):
        kernel = game(TerseProtocol(), **limits)
        assert bool(kernel.agents[ROOT].brief.documents) is full
        assert ("doc a" in observe(kernel, ROOT).messages[0].content) is full


def test_no_observation_depends_on_a_running_sibling():
    kernel = game(max_depth=2, max_clones=16)
    play(kernel, ROOT, ask("a", "b"))
    before = observe(kernel, B)
    play(kernel, A, Malformed(Fault.NO_ANSWER), 5)
    assert observe(kernel, B) == before
    play(kernel, A, ask("c"))
    play(kernel, A.child(0), Answer("1"))
    play(kernel, A, Answer("2"))
    assert observe(kernel, B) == before


def test_only_ready_agents_act_or_see():
    kernel = game()
    play(kernel, ROOT, ask("a"))
    with pytest.raises(GameError, match="it is waiting; ready: root.0"):
        play(kernel, ROOT, Answer("7"))
    with pytest.raises(GameError, match="no such agent"):
        play(kernel, AgentId((7,)), Answer("7"))
    with pytest.raises(GameError, match="no open turn"):
        observe(kernel, ROOT)


def test_forks_of_turns_that_never_were():
    kernel = game()
    play(kernel, ROOT, Answer("7"))
    for before in ((ROOT, 1), (ROOT, -1), (A, 0)):
        with pytest.raises(GameError, match="no such turn"):
            fork_before(kernel, before)
    assert fork_before(kernel, (ROOT, 0)).ready() == (ROOT,)


def calls_per_clone(num_clones):
    """Python functions entered per clone of one call: a measure of work that no other work on the machine moves."""
    kernel = game(total_tokens=10**6, max_clones=None, max_clones_per_call=None)
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        kernel.step(ROOT, ask(*["+"] * num_clones), Usage(2))
        while not kernel.done:
            agent = kernel.ready()[0]
            observe(kernel, agent)
            kernel.step(agent, Answer("7"), Usage(2))
    finally:
        sys.setprofile(None)
    assert len(kernel.agents) == num_clones + 1
    return calls / num_clones


def test_a_clone_costs_the_same_in_a_large_tree():
    assert calls_per_clone(256) <= calls_per_clone(32)  # less, as the root's own turns are shared by more
