"""Budget bugs seen in other systems, and defects of the authors' code, each as a test."""

import pytest

from selfcest_env.budget import Amounts, Ledger
from selfcest_env.errors import BudgetError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Reply
from selfcest_env.record import Generation, build_record
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import (
    ROOT,
    Answer,
    CloneRequest,
    Delegate,
    Fault,
    Limits,
    Malformed,
    Status,
    Task,
    Usage,
)
from selfcest_env.views import observe

HERMES = HermesProtocol()


def game(**limits):
    return Kernel(Task("t", "2+2", "4", "test"), Rules(Limits(**limits), HERMES, WordCounter()))


def ask(*names):
    return Delegate(tuple(map(CloneRequest, names)))


def finish(kernel):
    """Everybody burns a whole grant for nothing, turn after turn."""
    while not kernel.done:
        kernel.step(kernel.ready()[-1], Malformed(Fault.NO_ANSWER), Usage(None))
        kernel.ledger.check()
    generations = {(step.agent_id, step.turn): Generation("") for step in kernel.log}
    return build_record(kernel, generations, episode_id="e", seed=0)


# Budget bugs


def test_no_stale_pool_in_a_chain_of_depth_three():
    kernel, agent = game(total_tokens=100_000, turn_tokens=None, max_turns=50, max_depth=3), ROOT
    for _ in range(3):
        kernel.step(agent, ask("go on"), Usage(1))
        agent = agent.child(0)
    grants = [kernel.ledger[a].granted.total_tokens for a in (ROOT, ROOT.child(0), ROOT.child(0).child(0), agent)]
    assert grants == sorted(set(grants), reverse=True)
    record = finish(kernel)
    assert record.cost.depth == 3
    assert 95_000 < record.cost.total_tokens <= 100_000


def test_no_refund_for_a_running_clone():
    kernel = game()
    kernel.step(ROOT, ask("a", "b"), Usage(1))
    free = kernel.ledger[ROOT].free
    kernel.step(ROOT.child(1), Answer("1"), Usage(1))
    assert kernel.ledger[ROOT].free == free
    with pytest.raises(BudgetError, match="still reserved for work in flight"):
        kernel.ledger.close(ROOT.child(0))
    kernel.step(ROOT.child(0), Answer("1"), Usage(1))
    assert kernel.ledger[ROOT].remaining.total_tokens > free.total_tokens


def test_the_roots_own_tokens_are_counted():
    kernel = game()
    prompt = kernel.ledger[ROOT].spent.total_tokens
    assert prompt == WordCounter().count(observe(kernel, ROOT).messages, None) > 0
    kernel.step(ROOT, Answer("4"), Usage(17))
    assert kernel.ledger.totals()[0] == Amounts(prompt + 17, 17)


def test_failed_clones_stay_in_the_count():
    kernel = game(max_clones=2, max_turns=2, total_tokens=1000, turn_tokens=32)
    kernel.step(ROOT, ask("a", "b"), Usage(1))
    while kernel.ready() != (ROOT,):
        kernel.step(kernel.ready()[0], Malformed(Fault.NO_ANSWER), Usage(None))
    assert {kernel.agents[ROOT.child(i)].status for i in (0, 1)} == {Status.OUT_OF_TURNS}
    assert kernel.ledger[ROOT].free.clones == 0
    assert not observe(kernel, ROOT).can_delegate
    spent = kernel.ledger.totals()[0]
    record = finish(kernel)
    assert record.cost.clones == 2
    assert sum(agent.generated_tokens for agent in record.agents[1:]) == 4 * 32
    assert spent.generated_tokens >= 4 * 32


@pytest.mark.parametrize("name", ["max_clones", "max_depth", "max_clones_per_call"])
def test_zero_is_not_unlimited_for_clones(name):
    kernel = game(**{name: 0})
    assert not observe(kernel, ROOT).can_delegate
    kernel.step(ROOT, ask("a"), Usage(1))
    assert kernel.agents[ROOT].turns[0].fault is Fault.NOT_ALLOWED


@pytest.mark.parametrize("name", ["total_tokens", "generated_tokens", "context_tokens", "turn_tokens", "max_turns"])
def test_zero_is_not_unlimited_for_tokens_and_turns(name):
    kernel = game(**{name: 0}, answer_reserve=0)
    assert kernel.done
    assert finish(kernel).cost.total_tokens == 0


def test_zero_is_not_unlimited_for_grants_and_replies():
    kernel = game(reply_tokens=0)
    kernel.step(ROOT, Delegate((CloneRequest("a", max_tokens=0), CloneRequest("b"))), Usage(1))
    assert kernel.agents[ROOT].turns[0].refused == {0: Fault.PROMPT_TOO_LONG}
    kernel.step(ROOT.child(0), Answer("4"), Usage(1))
    assert kernel.agents[ROOT.child(0)].status is Status.REPLY_TOO_LONG


def test_three_concurrent_agents_never_spend_300_of_100():
    ledger = Ledger(Amounts(100, 100, 3))
    children = [ROOT.child(i) for i in range(3)]
    with pytest.raises(BudgetError):
        ledger.lend(ROOT, dict.fromkeys(children, Amounts(100, 100)))
    ledger.lend(ROOT, dict.fromkeys(children, Amounts(33, 33)))
    for child in children:
        ledger.reserve(child, Amounts(33, 33))  # all three in flight at once
        with pytest.raises(BudgetError):
            ledger.reserve(child, Amounts(1))
    ledger.check()
    kernel = game(total_tokens=500, turn_tokens=None, reply_tokens=8)
    kernel.step(ROOT, ask("a", "b", "c"), Usage(1))
    assert sum(observe(kernel, child).max_new_tokens for child in kernel.ready()) < 500
    assert finish(kernel).cost.total_tokens <= 500


# Defects of the authors' code


def test_defect_3_a_limit_holds_before_generation_and_over_the_tree():
    kernel = game(total_tokens=2000, turn_tokens=64, max_depth=2, max_clones=5)
    kernel.step(ROOT, ask("a", "b"), Usage(1))
    for child in kernel.ready():
        assert observe(kernel, child).max_new_tokens <= 64
    before = kernel.ledger[ROOT.child(0)].spent.generated_tokens
    kernel.step(ROOT.child(0), Answer("4"), Usage(5000))  # a sampler that ignores its grant
    assert kernel.agents[ROOT.child(0)].turns[0].generated_tokens == 64
    assert kernel.ledger[ROOT.child(0)].spent.generated_tokens - before == 64
    record = finish(kernel)
    assert record.cost.clones <= 5
    assert record.cost.total_tokens <= 2000


def test_defect_8_no_reply_is_cut_and_the_first_clone_does_not_vanish():
    replies = [Reply(f"first{i} " + "word " * 300 + "last") for i in range(8)]
    content = HERMES.replies(replies).content
    assert all(reply.text in content for reply in replies)
    kernel = game(reply_tokens=3)
    kernel.step(ROOT, ask("a", "b"), Usage(1))
    kernel.step(ROOT.child(0), Answer("one two three four"), Usage(4))
    kernel.step(ROOT.child(1), Answer("one two three"), Usage(3))
    assert observe(kernel, ROOT).exchanges[0].replies == (
        Reply(failure=Status.REPLY_TOO_LONG),
        Reply("one two three"),
    )


def test_defect_9_an_answer_inside_a_call_or_a_thought_is_none():
    call = HERMES.render(ask("write Answer: 5"))
    assert HERMES.parse(call) == ask("write Answer: 5")
    assert HERMES.parse("<think>so Answer: 5") == Malformed(Fault.NO_ANSWER)
    assert HERMES.parse("<think>Answer: 5</think>") == Malformed(Fault.NO_ANSWER)
    assert HERMES.parse("</tool_call>Answer: 5<tool_call>") == Malformed(Fault.BAD_CALL)


@pytest.mark.parametrize("extra", ["temperature", "top_p", "max_turns", "tools", "nested", "max_tokens"])
def test_defect_10_a_call_has_no_hand_on_sampling_or_tools(extra):
    text = f'<tool_call>{{"name": "spawn_clone", "arguments": {{"objectives": ["a"], "{extra}": 1}}}}</tool_call>'
    assert HERMES.parse(text) == Malformed(Fault.BAD_CALL)


def test_defect_10_depth_is_read():
    for depth in (1, 2):
        kernel = game(max_depth=depth)
        kernel.step(ROOT, ask("a"), Usage(1))
        kernel.step(ROOT.child(0), ask("b"), Usage(1))
        assert (ROOT.child(0).child(0) in kernel.agents) is (depth == 2)
