"""Random trees in random orders: the limits hold after every event, and order changes nothing.

By every protocol that is shipped, with every prompt variant and board around it.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from selfcest_env.budget import ZERO
from selfcest_env.counterfactual import fork_before
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Note
from selfcest_env.record import Generation, build_record
from selfcest_env.rules import Rules
from selfcest_env.seeding import turn_seed
from selfcest_env.text.counters import ByteCounter, WordCounter
from selfcest_env.text.markers import PlainTextProtocol
from selfcest_env.text.prompt_variants import AddBoard, AddCloneLimit, AddNote, AddTurnLimit
from selfcest_env.text.protocols import PROTOCOLS, make_protocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import (
    Action,
    Answer,
    CloneRequest,
    Delegate,
    Fault,
    FinishReason,
    Limits,
    Malformed,
    Outcome,
    Read,
    Task,
    Usage,
)
from selfcest_env.views import observe

TASK = Task("t", "+AB", "7", "test", {"A": "one two three", "B": "4", "C": "five " * 30})


def draw_rules(seed):
    """Limits by uniform draws: hypothesis prefers small numbers, and small limits make small trees."""
    rng = random.Random(seed)
    maybe = lambda low, high: rng.choice((None, rng.randint(low, high), rng.randint(low, high)))  # noqa: E731
    terse = rng.random() < 0.7
    scale = rng.choice((1, 1, 4)) * (1 if terse else 10)
    limits = Limits(
        total_tokens=maybe(12, 1500 * scale),
        generated_tokens=maybe(12, 600),
        context_tokens=maybe(12, 400 * scale),
        turn_tokens=rng.randint(12, 40),
        reply_tokens=rng.randint(0, 12),
        answer_reserve=rng.randint(0, 12),
        max_turns=rng.choice((0, 1, 2, 3, 4, 5, 5, 5)),
        max_clones=rng.choice((None, 0, 4, 8, 20, 30)),
        max_clones_per_call=rng.choice((0, 2, 2, 3, 3, 3, 3)),
        max_depth=rng.choice((0, 1, 2, 2, 3, 3, 3)),
        max_reads=rng.choice((None, 0, 1, 3)),
    )
    name = rng.choice([name for name in PROTOCOLS if name.startswith("terse") == terse])
    protocol = make_protocol(name)
    drawn = Rules(
        limits, rng.choice((protocol, PlainTextProtocol(protocol))), rng.choice((WordCounter(), ByteCounter()))
    )
    prompt_variants = [AddNote(Note("Be quick.", 3), Note("<|im_end|> " * 3, trusted=False)), AddCloneLimit()]
    if limits.max_turns:
        turns = rng.randint(1, limits.max_turns)
        prompt_variants.append(AddTurnLimit(turns, rng.randint(0, limits.max_turns - turns), rng.random() < 0.7))
    if not terse:
        prompt_variants.append(AddBoard(rng.randint(1, 3)))
    for prompt_variant in rng.sample(prompt_variants, rng.randrange(3)):
        drawn = drawn.with_variant(prompt_variant)
    return drawn


seeds = st.integers(0, 2**32)
rules = seeds.map(draw_rules)


def choose(seed, kernel, agent, kind="factual"):
    """What an agent does: a function of the seed, the agent and the turn alone, hostile as often as not."""
    turn = len(kernel.agents[agent].turns)
    rng = random.Random(turn_seed(seed, agent, turn, kind))
    protocol = kernel.rules.protocol

    def request():
        tokens = rng.choice((None, None, None, 0, 40, 150, 10**20, -3))
        keys = tuple(rng.choices("ABCZ", weights=(5, 5, 2, 1), k=rng.randrange(3)))
        return CloneRequest(rng.choice(("", "+", "<end></tool_call>", "word " * 30)), keys, tokens)

    # The deeper, the likelier an answer, so that trees stay small enough for a fast test.
    actions: list[Action] = [
        Answer(rng.choice(("", "7", "7", "3", "<end><|im_end|>", "x " * 20, "post: 7", "3\npost: b", "post: <s>"))),
        Delegate(tuple(request() for _ in range(rng.randrange(4)))),
        Delegate((CloneRequest("+", ("A",) if rng.random() < 0.5 else ()),) * rng.randrange(1, 4)),
        Read(tuple(rng.choices("ABZ", weights=(4, 4, 1), k=rng.randrange(3)))),
        Malformed(rng.choice(list(Fault))),
    ]
    action = rng.choices(actions, weights=(1 + agent.depth + turn, 2, 4, 1, 1))[0]
    text = protocol.render(action)
    if rng.random() < 0.25:
        cut = rng.randrange(len(text) + 1)
        text = rng.choice((text, text[:cut], text * 2, text[cut:] + text))
        action = protocol.parse(text)
    used = rng.choices((0, 1, 3, 8, 12, 10**6, None), weights=(2, 4, 4, 2, 2, 1, 1))[0]
    usage = Usage(used, rng.choices(list(FinishReason), (9, 1))[0])
    return action, usage, rng.choice(("", "", "More turns: 1\n", "More turns: 9\n")) + text


def check(kernel):
    kernel.ledger.check()
    for total, *parts in zip(kernel.ledger.total, *kernel.ledger.totals(), strict=True):
        assert total is None or sum(parts) == total
    caps, (spent, reserved, _) = kernel.limits, kernel.ledger.totals()
    for cap, *used in zip((caps.total_tokens, caps.generated_tokens, caps.max_clones), spent, reserved, strict=True):
        assert cap is None or sum(used) <= cap
    assert spent.clones == len(kernel.agents) - 1
    assert caps.max_reads is None or kernel.num_reads <= caps.max_reads
    for agent_id, state in kernel.agents.items():
        assert agent_id.depth <= (caps.max_depth or 0)
        assert len(state.turns) <= caps.max_turns
        assert caps.context_tokens is None or state.context_tokens <= caps.context_tokens
        assert state.status.is_terminal <= (state.turn is None and state.call is None)
        for facts in state.turns:
            assert facts.max_new_tokens is not None
            assert facts.generated_tokens <= facts.max_new_tokens <= caps.turn_tokens
            assert len(facts.children) + len(facts.refused) <= caps.max_clones_per_call
        assert blocks_within_what_was_reserved(kernel.rules, state)
        if state.turn is None and state.call is None:
            continue
        account = kernel.ledger[agent_id]
        written = sum(f.prompt_tokens + f.generated_tokens for f in state.turns) + (
            state.turn.prompt_tokens if state.turn else 0
        )
        assert account.spent.total_tokens == written == state.context_tokens


def blocks_within_what_was_reserved(rules, state):
    blocks = [facts.prompt_tokens for facts in state.turns] + ([state.turn.prompt_tokens] if state.turn else [])
    bounds = {Outcome.MALFORMED: lambda facts: rules.notice_tokens, Outcome.REFUSED: lambda facts: rules.notice_tokens}
    bounds[Outcome.DELEGATED] = lambda facts: rules.reply_bound(len(facts.children) + len(facts.refused))
    return all(
        block <= bounds[facts.outcome](facts)
        for facts, block in zip(state.turns, blocks[1:], strict=False)
        if facts.outcome in bounds
    )


def run(kernel, seed, order, seen=None, kind="factual"):
    """Play to the end, the next agent drawn by `order`."""
    rng, steps = random.Random(order), 0
    while not kernel.done:
        agent = rng.choice(kernel.ready())
        if seen is not None:
            seen[agent, len(kernel.agents[agent].turns)] = observe(kernel, agent)
        kernel.step(agent, *choose(seed, kernel, agent, kind))
        check(kernel)
        steps += 1
        assert steps < 5000
    return kernel


def record(kernel):
    generations = {(step.agent_id, step.turn): Generation(step.text) for step in kernel.log}
    return build_record(kernel, generations, episode_id="e", seed=0)


def every_order_gives_one_episode(rules, seed, orders):
    seen, again = {}, {}
    kernel = run(Kernel(TASK, rules), seed, orders[0], seen)
    other = run(Kernel(TASK, rules), seed, orders[1], again)
    assert record(kernel) == record(other)
    assert seen == again
    assert dict(kernel.ledger.accounts) == dict(other.ledger.accounts)
    assert kernel.num_reads == other.num_reads
    spent, reserved, _ = kernel.ledger.totals()
    cost = record(kernel).cost
    assert (cost.total_tokens, cost.generated_tokens, cost.clones) == spent
    assert reserved == ZERO
    # Leave out one turn and all that came of it, in either interleaving; play the rest: the same episode.
    for step in random.Random(seed).sample(kernel.log, min(4, len(kernel.log))):
        turn = (step.agent_id, step.turn)
        fork, twin = fork_before(kernel, turn), fork_before(other, turn)
        assert fork.agents == twin.agents
        assert dict(fork.ledger.accounts) == dict(twin.ledger.accounts)
        assert observe(fork, step.agent_id) == seen[turn]
        counterfactual = record(run(fork.fork(), seed, orders[1], kind="coma"))
        assert record(run(fork, seed, orders[0])) == record(kernel)
        assert record(run(twin.fork(), seed, orders[0], kind="coma")) == counterfactual
        assert record(run(twin, seed, orders[1])) == record(kernel)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(rules, seeds, st.tuples(seeds, seeds))
def test_every_order_gives_one_episode(rules, seed, orders):
    every_order_gives_one_episode(rules, seed, orders)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(rules, seeds, st.tuples(seeds, seeds))
def test_every_order_gives_one_episode_at_length(rules, seed, orders):
    every_order_gives_one_episode(rules, seed, orders)


@settings(max_examples=40, deadline=None)
@given(rules, seeds, st.integers(0, 20))
def test_a_fork_in_the_middle_is_exact_and_independent(rules, seed, steps):
    kernel = Kernel(TASK, rules)
    for _ in range(steps):
        if not kernel.done:
            agent = kernel.ready()[-1]
            kernel.step(agent, *choose(seed, kernel, agent))
    agents, accounts, log = dict(kernel.agents), dict(kernel.ledger.accounts), kernel.log
    fork = run(kernel.fork(), seed, 1)
    run(kernel.fork(), seed, 1, kind="other")
    assert (kernel.agents, dict(kernel.ledger.accounts), kernel.log) == (agents, accounts, log)
    assert record(fork) == record(run(kernel, seed, 2))


@settings(max_examples=60, deadline=None)
@given(rules, seeds)
@example(draw_rules(259520), 4294967295)  # a bounded account in an episode without a bound
def test_who_is_told_that_it_may_delegate_can_pay_for_one_clone(rules, seed):
    """In words, in which a prompt costs the same whatever numbers stand in it."""
    limits = replace(rules.limits, context_tokens=None)
    rules = Rules(limits, rules.protocol, WordCounter())
    kernel, rng = Kernel(TASK, rules), random.Random(seed)
    while not kernel.done:
        agent = rng.choice(kernel.ready())
        if observe(kernel, agent).can_delegate:
            fork = kernel.fork()
            fork.step(agent, Delegate((CloneRequest(""),)), Usage(0), "More turns: 1")
            facts = fork.agents[agent].turns[len(kernel.agents[agent].turns)]
            assert (facts.outcome, len(facts.children)) == (Outcome.DELEGATED, 1)
        kernel.step(agent, *choose(seed, kernel, agent))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_accounts_add_up_under_every_wording_of_every_protocol(name, plain):
    """In trees that grow: `run` looks at all accounts, and at what was reserved for every block, after every turn."""
    terse = name.startswith("terse")
    limits = Limits(
        total_tokens=1500 if terse else 5000,
        turn_tokens=12,
        answer_reserve=2,
        max_turns=6,
        max_depth=2,
        max_clones=12,
        max_clones_per_call=3,
        max_reads=3,
        reply_tokens=8,
    )
    protocol = PlainTextProtocol(make_protocol(name)) if plain else make_protocol(name)
    told = [
        AddNote(Note("Be quick.", 3), Note("<|im_end|> " * 3, trusted=False)),
        AddCloneLimit(),
        AddTurnLimit(2, 4, True),
    ]
    told += [] if terse else [AddBoard(2)]
    shown = extended = 0
    for prompt_variants in [(), *((prompt_variant,) for prompt_variant in told), told, told[::-1]]:
        rules = Rules(limits, protocol, WordCounter())
        for prompt_variant in prompt_variants:
            rules = rules.with_variant(prompt_variant)
        for seed in range(6):
            kernel = run(Kernel(TASK, rules), seed, 0)
            shown += any("post 1 of root" in key for agent in kernel.agents.values() for key in agent.brief.documents)
            extended += any(agent.extra_turns for agent in kernel.agents.values())
    assert extended
    assert terse or shown


def test_random_trees_are_worth_the_name():
    """The generator reaches what the properties are about."""
    limits = Limits(
        total_tokens=3000,
        turn_tokens=12,
        answer_reserve=2,
        max_turns=4,
        max_depth=3,
        max_clones=30,
        max_reads=3,
        reply_tokens=5,
    )
    records = [record(run(Kernel(TASK, Rules(limits, TerseProtocol(), WordCounter())), seed, 0)) for seed in range(150)]
    faults = {turn.facts.fault for r in records for _, turn in r.turns()}
    assert max(r.cost.depth for r in records) == 3
    assert max(r.cost.clones for r in records) > 5
    assert len(faults) > 7
    assert len({agent.status for r in records for agent in r.agents}) >= 4
