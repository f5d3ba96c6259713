"""One rulebook: random episodes in numbers, played again through the kernel of the text game, are the same game."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfcest_env.counterfactual import restore
from selfcest_env.errors import ConfigError, RecordError
from selfcest_env.protocol import Brief, Reply
from selfcest_env.record import from_json, to_json
from selfcest_env.symbolic.batch import BatchDelegation
from selfcest_env.symbolic.rules import FIRST_ANSWER, WAIT, make_rules
from selfcest_env.symbolic.state import (
    ABSENT,
    ANSWERED,
    OUT_OF_TOKENS,
    OUT_OF_TURNS,
    READY,
    WAITING,
    get_agent_ids,
)
from selfcest_env.symbolic.tasks import COUPLINGS
from selfcest_env.symbolic.twin import (
    SymbolicText,
    episode_record,
    make_text_rules,
    replay,
    write_action,
)
from selfcest_env.symbolic.vectors import get_answer
from selfcest_env.text.counters import WordCounter
from selfcest_env.types import ROOT, AgentId, Answer, Boundary, CloneRequest, Delegate, Fault, Role, Status, Usage

seeds = st.integers(0, 2**32)
STATUSES = {
    READY: Status.READY,
    WAITING: Status.WAITING,
    ANSWERED: Status.ANSWERED,
    OUT_OF_TURNS: Status.OUT_OF_TURNS,
    OUT_OF_TOKENS: Status.OUT_OF_TOKENS,
}


def draw_rules(seed):
    """Limits by uniform draws: hypothesis prefers small numbers, and small limits make small trees."""
    rng = random.Random(seed)
    task = rng.choice(("chain", "chain", "noisy", "noisy", "lookup", "deep", "cells"))
    if task == "cells":
        return draw_joined_rules(rng)
    if task == "lookup":
        keys = rng.randint(2, 6)
        options = {"hops": (1, rng.randint(1, keys)), "keys": keys, "values": rng.randint(2, 5)}
        longest = 1
    else:
        longest = rng.choice((1, 3, 8, 16, 20))
        splits = tuple(set(rng.choices((2, 2, 3, 4, 8), k=rng.randint(0, 3))))
        options = {"items": (1, longest), "modulus": rng.randint(2, 32), "splits": splits}
        options |= {"window": rng.choice((1, 2, 4) if task == "deep" else (None, 1, 2, 4))}
        options |= {"rot": rng.choice((0.0, 0.3, 1.0)), "clear": rng.randint(0, 3)} if task == "noisy" else {}
    if rng.random() < 0.3:
        return rng.choice((draw_refusing_rules, draw_deep_rules))(rng)
    tight = rng.choice((4, 12, 40, 100, 400, 400))
    return make_rules(
        task,
        options,
        max_clones=rng.choice((rng.randint(0, 12), rng.randint(0, 12), 30)),
        max_depth=rng.randint(0, 1) if task == "lookup" else rng.choice((0, 1, 2, 3, 3, 3)),
        max_turns=rng.randint(1, 5),
        total_tokens=rng.choice((None, longest + 2, longest + 2 + rng.randrange(tight), longest + 2 + tight)),
        generated_tokens=rng.choice((None, None, 1 + rng.randrange(8), 1 + rng.randrange(60))),
        token_cost=rng.choice((0.0, 0.01)),
    )


def draw_joined_rules(rng):
    """Cells with a purse that is just enough, or a little more."""
    cells = rng.choice((2, 3, 8))
    options = {"cells": cells, "modulus": rng.choice((2, 8)), "hidden": rng.choice((0.0, 0.5))}
    enough, calls = 8 * cells + 3, 2 * cells + 1
    return make_rules(
        "cells",
        options | {"coupling": rng.choice(COUPLINGS)},
        max_clones=cells + rng.choice((0, 3)),
        max_turns=rng.randint(2, 4),
        total_tokens=rng.choice((None, enough, enough + rng.randrange(4 * cells))),
        generated_tokens=rng.choice((None, calls, calls + rng.randrange(cells))),
        token_cost=rng.choice((0.0, 0.01)),
    )


def draw_refusing_rules(rng):
    """A first split whose equal shares carry the shorter parts and not the longer ones, which is rare otherwise."""
    parts = rng.randint(2, 5)
    items = parts * rng.randint(1, 4) + rng.randint(1, parts - 1)
    least = (1 + items) + parts + (1 + parts + 1) + parts * (1 + items // parts + 1)
    limits = {"max_clones": 12, "max_turns": 4, "total_tokens": least + rng.randrange(parts)}
    return make_rules("chain", {"items": items, "splits": (parts,)}, **limits)


def draw_deep_rules(rng):
    limits = {"max_clones": 30, "max_depth": 3, "max_turns": 4, "total_tokens": rng.choice((None, 150, 400))}
    return make_rules("noisy", {"items": 16, "splits": (2,)}, **limits)


def play(rules, seed, hostile=0.1, delegate=0.6):
    """A random episode: its beginning and its actions. Calls are preferred, so that trees grow."""
    rng = np.random.default_rng(seed)
    batch = BatchDelegation(rules, 1)
    batch.reset(seed)
    start, steps = batch.get_snapshot(), []
    while not batch.done[0]:
        actions = batch.sample_actions(rng)[0]
        masks = batch.action_masks()[0]
        for seat in range(batch.num_agents):
            calls = rules.first_call + np.flatnonzero(masks[seat, rules.first_call :])
            if calls.size and rng.random() < delegate:
                actions[seat] = rng.choice(calls)
            if rng.random() < hostile:
                actions[seat] = rng.integers(-3, rules.num_actions + 3)
        steps.append(actions)
        batch.step(actions[None])
        assert len(steps) < 1000
    return start, steps, batch


def check_agents(rules, batch, kernel):
    """Spends, grants, balances, statuses of everybody born so far."""
    state, ids = batch.state, get_agent_ids(batch.state)
    assert set(ids.values()) == set(kernel.agents)
    assert {ids[seat] for seat in np.flatnonzero(batch.can_act[0])} == set(kernel.ready())
    kernel.ledger.check()
    for seat, agent_id in ids.items():
        agent = kernel.agents[agent_id]
        assert STATUSES[state.status[0, seat]] is agent.status
        open_prompt = agent.turn.prompt_tokens if agent.turn else 0
        assert state.prompt_tokens[0, seat] == sum(t.prompt_tokens for t in agent.turns) + open_prompt
        assert state.generated_tokens[0, seat] == sum(t.generated_tokens for t in agent.turns)
        assert state.turns[0, seat] == len(agent.turns)
        assert state.num_clones[0, seat] == agent.num_children
        assert state.depth[0, seat] == agent_id.depth
        given = "_".join("x" if v == rules.missing else str(v) for v in get_answer(state, rules, seat))
        assert agent.reply == (given if agent.status is Status.ANSWERED else None)
        if rules.total_tokens is not None:
            assert state.granted[0, seat] == agent.grant.total_tokens
        if not closed(kernel, agent_id):
            check_balance(rules, state, seat, kernel.ledger[agent_id].remaining)
        if agent.status is Status.READY:
            words = kernel.rules.counter.count_text(agent.messages[-1].content) if len(agent.turns) == 0 else None
            assert words in (None, state.segment_length[0, seat])


def closed(kernel, agent_id):
    """Whether the call it was born of has joined."""
    if agent_id == ROOT:
        return False
    call = kernel.agents[agent_id.parent].call
    return call is None or agent_id not in call.children


def check_balance(rules, state, seat, remaining):
    tokens, generated, clones = remaining
    if rules.total_tokens is not None:
        assert state.tokens_left[0, seat] == tokens
    if rules.generated_tokens is not None:
        assert state.generated_left[0, seat] == generated
    assert state.clones_left[0, seat] == clones


def check_legality(rules, batch, kernel):
    """A call is legal just where the kernel grants it and a clone is born; an answer too, within the task's window."""
    ids, masks = get_agent_ids(batch.state), batch.action_masks()[0]
    for seat in np.flatnonzero(batch.can_act[0]):
        length = batch.state.segment_length[0, seat]
        assert (masks[seat, FIRST_ANSWER : rules.first_call] == rules.answerable[length]).all()
        assert masks[seat, WAIT] == (not masks[seat, 1:].any())
        for action in [FIRST_ANSWER, *range(rules.first_call, rules.num_actions)]:
            is_call = action >= rules.first_call
            if is_call and not rules.task.part_lengths(int(rules.action_kinds[action]), int(length)):
                assert not masks[seat, action]
                continue
            text, fork = write_action(rules, batch.state, int(seat), action), kernel.fork()
            usage = Usage(kernel.rules.counter.count_text(text))
            fork.step(ids[seat], kernel.rules.protocol.parse(text), usage, text)
            if is_call:
                assert masks[seat, action] == bool(fork.agents[ids[seat]].turns[-1].children)
            else:
                assert fork.agents[ids[seat]].status is Status.ANSWERED
    for seat in np.flatnonzero(~batch.can_act[0]):
        assert masks[seat, WAIT]
        assert masks[seat].sum() == 1


def check_calls(rules, batch, kernel):
    """Who was refused, one by one."""
    for seat, agent_id in get_agent_ids(batch.state).items():
        if batch.state.status[0, seat] == WAITING:
            call = kernel.agents[agent_id].call
            parts, born = batch.state.segment_length[0, seat], batch.state.call_clones[0, seat]
            assert list(call.refused) == list(range(parts - born))
            assert all(fault is Fault.PROMPT_TOO_LONG for fault in call.refused.values())
            assert len(call.children) == parts


def same_game(seed):
    rules = draw_rules(seed)
    start, steps, played = play(rules, seed)
    for batch, kernel in replay(rules, start, steps):
        check_agents(rules, batch, kernel)
        check_legality(rules, batch, kernel)
        check_calls(rules, batch, kernel)
    assert kernel.done
    assert batch.done[0]
    record = episode_record(rules, start, steps, episode_id="e")
    assert record.team_return == played.state.team_return[0]
    assert record.cost.total_tokens == played.total_tokens()[0]
    assert record.cost.clones == played.state.num_born[0] - 1
    assert from_json(to_json(record)) == record
    assert restore(record, make_text_rules(rules)).agents == kernel.agents
    return record


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_random_episodes_are_the_same_game_in_words(seed):
    same_game(seed)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(seeds)
def test_random_episodes_are_the_same_game_in_words_at_length(seed):
    same_game(seed)


@pytest.mark.slow
def test_the_random_episodes_are_worth_the_name():
    records = [same_game(seed) for seed in range(250)]
    agents = [agent for record in records for agent in record.agents]
    assert max(record.cost.depth for record in records) == 3
    assert max(record.cost.clones for record in records) >= 8
    assert {agent.status for agent in agents} == {Status.ANSWERED, Status.OUT_OF_TURNS, Status.OUT_OF_TOKENS}
    refused = sum(len(turn.facts.refused) for record in records for _, turn in record.turns())
    assert refused > 20
    assert any(record.team_return > 0 for record in records)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_who_is_removed_is_absent_in_words(seed):
    """At one level of clones, and with clones to spare: in words an absent clone's birth is not counted."""
    rng = random.Random(seed)
    limits = {"max_clones": 60, "max_depth": 1, "total_tokens": rng.choice((None, 60, 120)), "token_cost": 0.01}
    rules = make_rules("noisy", {"items": (4, 16), "splits": (2, 3, 5)}, **limits)
    batch, numbers = BatchDelegation(rules, 1), np.random.default_rng(seed)
    batch.reset(seed)
    start, steps, absent = batch.get_snapshot(), [], set()
    while not batch.done[0]:
        before = batch.state.num_born[0]
        steps.append(batch.sample_actions(numbers)[0])
        batch.step(steps[-1][None])
        gone = np.array([seat for seat in range(before, batch.state.num_born[0]) if rng.random() < 0.4], int)
        batch.remove(np.zeros_like(gone), gone)
        absent |= {get_agent_ids(batch.state)[seat] for seat in gone.tolist()}
    ends = list(replay(rules, start, steps, frozenset(absent)))
    (again, kernel), ids = ends[-1], get_agent_ids(batch.state)
    assert again.state.team_return[0] == batch.state.team_return[0]
    assert {agent_id for agent_id, agent in kernel.agents.items() if agent.status is Status.ABSENT} == absent
    for seat, agent_id in ids.items():
        agent = kernel.agents[agent_id]
        assert (STATUSES | {ABSENT: Status.ABSENT})[batch.state.status[0, seat]] is agent.status
        assert batch.state.prompt_tokens[0, seat] == sum(turn.prompt_tokens for turn in agent.turns)
        assert batch.state.generated_tokens[0, seat] == sum(turn.generated_tokens for turn in agent.turns)
        assert rules.total_tokens is None or batch.state.granted[0, seat] == agent.grant.total_tokens
    if rules.total_tokens is not None:
        assert batch.state.tokens_left[0, 0] == kernel.ledger[ROOT].remaining.total_tokens


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_who_is_removed_from_a_forced_join_is_absent_in_words(seed):
    rng = random.Random(seed)
    rules = make_rules("cells", {"cells": 4}, max_clones=60, total_tokens=rng.choice((None, 35, 60)), token_cost=0.01)
    batch = BatchDelegation(rules, 1)
    batch.reset(seed)
    start, call = batch.get_snapshot(), np.full(61, rules.first_call)
    batch.step(call[None])
    gone = np.array([seat for seat in range(1, 5) if rng.random() < 0.5], int)
    batch.remove(np.zeros_like(gone), gone)
    steps = [call]
    while not batch.done[0]:
        steps.append(batch.sample_actions(np.random.default_rng(seed))[0])
        batch.step(steps[-1][None])
    ids = get_agent_ids(batch.state)
    *_, (again, kernel) = replay(rules, start, steps, frozenset(ids[seat] for seat in gone.tolist()))
    assert again.state.team_return[0] == batch.state.team_return[0]
    assert kernel.done
    for seat, agent_id in ids.items():
        agent = kernel.agents[agent_id]
        assert (STATUSES | {ABSENT: Status.ABSENT})[batch.state.status[0, seat]] is agent.status
        assert batch.state.prompt_tokens[0, seat] == sum(turn.prompt_tokens for turn in agent.turns)
        assert batch.state.generated_tokens[0, seat] == sum(turn.generated_tokens for turn in agent.turns)
    said = str(kernel.agents[ROOT].reply).split("_")
    assert [seat for seat, word in enumerate(said, 1) if word == "x"] == gone.tolist()


def test_a_game_by_hand():
    """Five items, window 4, one split in two: 3 and 2 items. Prices worked out from the module docstring of `rules`."""
    rules = make_rules("chain", {"items": 5}, max_clones=2, max_depth=1, total_tokens=40, token_cost=0.01)
    batch = BatchDelegation(rules, 1)
    batch.reset(0)
    start = batch.get_snapshot()
    start.tape[0, 1:6], start.target[0] = (3, 1, 4, 1, 0), 4
    seats = lambda *actions: np.array(actions)  # noqa: E731
    answer = lambda value: FIRST_ANSWER + value  # noqa: E731
    steps = [seats(rules.first_call, 0, 0), seats(0, answer(3), answer(1)), seats(answer(4), 0, 0)]
    record = episode_record(rules, start, steps, episode_id="e")
    root, left, right = record.agents
    assert [turn.generation.text for turn in root.turns] == ["_3_1_4 _1_0", "4"]
    assert (root.objective, left.objective, right.objective) == ("3 1 4 1 0", "3 1 4", "1 0")
    # 40 - 6 (opening) - 2 (call) - 3 (replies) - 1 (one more answer) = 28, half each.
    assert (left.granted_tokens, right.granted_tokens) == (14, 14)
    assert (root.prompt_tokens, root.generated_tokens) == (6 + 3, 2 + 1)
    assert (left.prompt_tokens, left.generated_tokens) == (4, 1)
    assert (right.prompt_tokens, right.generated_tokens) == (3, 1)
    assert record.team_return == pytest.approx(1 - 0.01 * (12 + 5 + 4))
    assert record.cost.critical_path_tokens == 2 + 1 + 1


def test_lookup_hands_on_facts_by_key():
    rules = make_rules("lookup", {"hops": 1, "keys": 3, "values": 2}, max_depth=1)
    batch = BatchDelegation(rules, 1)
    batch.reset(5)
    start = batch.get_snapshot()
    key = int(start.tape[0, 1])
    value = FIRST_ANSWER + int(start.target[0])
    nothing = np.zeros(rules.num_agents, int)
    call, read, answer = nothing.copy(), nothing.copy(), nothing.copy()
    call[0], read[1], answer[0] = rules.first_call + key, value, value
    record = episode_record(rules, start, [call, read, answer], episode_id="e")
    assert record.agents[1].shared_context == (f"key{key}",)
    assert record.agents[1].objective == ""
    assert record.agents[1].prompt_tokens == 2
    assert record.team_return == 1


def test_prices_are_those_of_the_symbolic_rules():
    rules = make_text_rules(make_rules())
    assert rules.notice_tokens == 1
    assert [rules.reply_bound(count) for count in (1, 2, 4)] == [2, 3, 5]
    assert rules.answer_tokens == 1
    opening = rules.protocol.open(Brief(Role.CLONE, "3 x 4"))
    assert rules.counter.count(opening, Boundary.OPENING) == 4
    replies = rules.protocol.replies([Reply("3"), Reply(failure=Status.OUT_OF_TURNS)])
    assert [part.text for part in replies.parts] == ["3", "x"]
    assert rules.counter.count((replies,), Boundary.AFTER_STOP) == 3


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (Answer("3"), "3"),
        (Delegate((CloneRequest("3 1"), CloneRequest("x"))), "_3_1 _x"),
        (Delegate((CloneRequest("", ("key2",)),)), "key2"),
    ],
)
def test_texts_are_read_as_they_are_written(action, text):
    protocol = SymbolicText()
    assert protocol.render(action) == text
    assert protocol.parse(text) == action
    spoken = len(action.requests) if isinstance(action, Delegate) else 1
    assert WordCounter().count_text(text) == spoken


def test_what_is_no_beginning_is_refused():
    rules = make_rules()
    start, steps, _ = play(rules, 3)
    batch = BatchDelegation(rules, 2)
    batch.reset(0)
    with pytest.raises(ConfigError, match="start holds 2 episodes"):
        next(replay(rules, batch.get_snapshot(), steps))
    (batch, _), _ = zip(*replay(rules, start, steps[:1]), strict=True)
    with pytest.raises(ConfigError, match=r"after \[1\] joint steps"):
        next(replay(rules, batch.get_snapshot(), steps))
    with pytest.raises(RecordError, match="has not ended"):
        episode_record(rules, start, steps[:-1], episode_id="e")


def test_an_agent_is_named_by_its_path():
    rules = make_rules("chain", {"items": 16}, max_clones=12, total_tokens=400)
    batch = BatchDelegation(rules, 1)
    batch.reset(0)
    four = np.full((1, rules.num_agents), rules.first_call + 1)
    two = np.full((1, rules.num_agents), rules.first_call)
    batch.step(two)
    batch.step(four)
    paths = [(), (0,), (1,), (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert list(get_agent_ids(batch.state).values()) == [AgentId(path) for path in paths]
