"""Replays worked by hand: what they keep, what they cost, and the ledger they begin with.

Prices are those of plain_game.py; an absent clone is read as a failed one, 1 long. Every delegating agent keeps 6 for
one more answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_game import A, B, Plain, Unit, ask, game, play

from selfcest_env.budget import Amounts
from selfcest_env.counterfactual import check_replay, fork_before, replay_seed, restore, start_replay
from selfcest_env.errors import CreditError, GameError, RecordError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Reply
from selfcest_env.record import EpisodeRecord, Generation, build_record, from_json, to_json
from selfcest_env.render import render_record
from selfcest_env.replay import Intervention, Replay
from selfcest_env.rules import Rules
from selfcest_env.seeding import turn_seed
from selfcest_env.types import ROOT, AgentId, Answer, Limits, Outcome, Status, Task, Usage
from selfcest_env.views import observe

DEFAULT, RESAMPLE = Intervention.DEFAULT, Intervention.RESAMPLE
C, D = ROOT.child(2), ROOT.child(3)


def fork(kernel: Kernel, **interventions: Intervention) -> Kernel:
    """By agents `root_0`: how the replay with these interventions begins."""
    named = {AgentId.parse(name.replace("_", ".")): what for name, what in interventions.items()}
    other = start_replay(Replay.of("e", named), kernel)
    other.ledger.check()
    return other


def two_clones(order: tuple[AgentId, ...] = (A, B)) -> tuple[Kernel, dict[AgentId, Kernel]]:
    """root calls a and b, then answers; and the episode as it stood before each clone's only turn."""
    kernel = game()
    play(kernel, ROOT, ask("a", "b"), 5)
    before = {}
    for child in order:
        before[child] = kernel.fork()
        play(kernel, child, Answer("3" if child == A else "12"), 2 if child == A else 4)
    play(kernel, ROOT, Answer("15"), 1)
    return kernel, before


def free(kernel: Kernel, agent: AgentId = ROOT) -> int | None:
    return kernel.ledger[agent].remaining.total_tokens


# One call


def test_the_ledger_at_birth_is_restored_exactly() -> None:
    kernel, before = two_clones(order=(B, A))
    resampled = fork(kernel, root_0=RESAMPLE)
    assert resampled.ready() == (A,)
    assert resampled.ledger.accounts == before[A].ledger.accounts
    assert resampled.agents == before[A].agents
    assert observe(resampled, A) == observe(before[A], A)
    # Completion order cannot matter: a was last here and is first there.
    other, _ = two_clones(order=(A, B))
    assert fork(other, root_0=RESAMPLE).ledger.accounts == resampled.ledger.accounts
    assert fork(other, root_0=RESAMPLE).agents == resampled.agents


def test_an_absent_clone_costs_nothing_and_its_sibling_is_kept() -> None:
    kernel, _ = two_clones()
    # 100 - prompt 5 - call 5 - a (3 + 2) - b (3 + 4) - replies (2 + 1 + 2)
    assert kernel.ledger[ROOT].spent.total_tokens == 5 + 5 + 5 + 1
    other = fork(kernel, root_0=DEFAULT)
    assert other.ready() == (ROOT,)
    assert other.agents[B] == kernel.agents[B]
    assert other.agents[B].grant.total_tokens == 37  # not 74: the split stays
    # 100 - prompt 5 - call 5 - b (3 + 4) - replies (2 + 1 + 2)
    assert free(other) == 78
    assert other.ledger.totals()[0] == Amounts(5 + 5 + 7 + 5, 5 + 4, 1)
    assert observe(other, ROOT).exchanges[0].replies == (Reply(failure=Status.ABSENT), Reply("12"))
    assert observe(other, ROOT).block[0].content == "..!12"
    assert (other.agents[A].status, other.agents[A].turns) == (Status.ABSENT, ())
    assert (other.agents[A].messages, other.agents[A].context_tokens) == ((), 0)
    assert A not in other.ledger.accounts


def test_all_clones_absent_join_at_once() -> None:
    kernel, _ = two_clones()
    other = fork(kernel, root_0=DEFAULT, root_1=DEFAULT)
    assert other.ready() == (ROOT,)
    assert free(other) == 100 - 5 - 5 - 4
    assert other.ledger.totals()[0] == Amounts(14, 5, 0)


def test_one_absent_while_the_other_is_sampled_anew() -> None:
    kernel, _ = two_clones()
    other = fork(kernel, root_0=DEFAULT, root_1=RESAMPLE)
    assert other.ready() == (B,)
    assert other.agents[ROOT].status is Status.WAITING
    assert observe(other, B).budget.granted.total_tokens == 37
    play(other, B, Answer("1"), 1)
    assert free(other) == 100 - 5 - 5 - (3 + 1) - (2 + 1 + 1)


def test_a_reply_put_in_is_read_and_costs_nobody_anything() -> None:
    kernel, _ = two_clones()
    other = fork(kernel, root_0=Intervention.replace("77"))
    assert other.ready() == (ROOT,)
    assert observe(other, ROOT).exchanges[0].replies == (Reply("77"), Reply("12"))
    assert (other.agents[A].status, other.agents[A].turns, other.agents[A].reply) == (Status.ABSENT, (), "77")
    # as without it, but for the reply: 100 - prompt 5 - call 5 - b (3 + 4) - replies (2 + 2 + 2)
    assert free(other) == 77
    assert other.ledger.totals()[0] == Amounts(5 + 5 + 7 + 6, 5 + 4, 1)
    spoken = Kernel(TASK, rules())
    speak(spoken, scripted)
    record = speak(start_replay(Replay.of("e", {A: Intervention.replace("7")}), spoken), scripted)
    assert 'its parent was given "7"' in render_record(record)
    assert (record.by_id[A].reply, record.by_id[A].absent, record.by_id[A].failed) == ("7", True, False)
    assert from_json(to_json(record)) == record
    assert restore(record, rules()).agents[A].reply == record.by_id[A].reply


def test_a_reply_that_no_clone_could_have_sent_is_refused() -> None:
    kernel, _ = two_clones()
    with pytest.raises(
        CreditError, match=r"root\.0=replace:[0-9a-f]{16}/sample0: the reply for root\.0 has \d+ tokens"
    ):
        start_replay(Replay.of("e", {A: Intervention.replace("1" * 500)}), kernel)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Intervention("defualt"),
            "intervention is 'defualt'; expected 'default', 'replace', 'resample' or 'again'",
        ),
        (lambda: Intervention("default", reply="x"), "'default' has the reply 'x'; only 'replace' takes a text"),
        (lambda: Replay.of("e", {A: "default"}), r"replay of e: root\.0 has 'default'; expected an Intervention"),
    ],
)
def test_what_is_no_intervention_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(CreditError, match=words):
        make()


@pytest.mark.parametrize("kind", [Intervention.again, Intervention.resample])
def test_the_root_from_the_join_on_keeps_its_clones(kind: Callable[[int], Intervention]) -> None:
    kernel, _ = two_clones()
    other = fork(kernel, root=kind(1))
    assert other.ready() == (ROOT,)
    assert (other.agents[A], other.agents[B]) == (kernel.agents[A], kernel.agents[B])
    assert other.agents[ROOT].turns == kernel.agents[ROOT].turns[:1]
    assert fork(kernel, root=kind(0)).log == ()


def test_the_root_resampled_is_the_whole_episode_anew() -> None:
    kernel, _ = two_clones()
    other = fork(kernel, root=RESAMPLE)
    assert (other.ready(), other.log) == ((ROOT,), ())
    assert other.ledger.accounts == game().ledger.accounts


# Calls in series


def in_series() -> Kernel:
    """root calls a and b, then c, then answers."""
    kernel = game()
    play(kernel, ROOT, ask("a", "b"), 5)
    play(kernel, A, Answer("1"), 10)
    play(kernel, B, Answer("2"), 1)
    play(kernel, ROOT, ask("c"), 2)
    play(kernel, C, Answer("3"), 1)
    play(kernel, ROOT, Answer("6"), 1)
    return kernel


def test_a_clone_of_the_second_call_leaves_the_first_whole() -> None:
    kernel = in_series()
    other = fork(kernel, root_2=DEFAULT)
    assert [(step.agent_id, step.turn) for step in other.log] == [(ROOT, 0), (A, 0), (B, 0), (ROOT, 1)]
    assert other.ready() == (ROOT,)
    # prompt 5, call 5, a 13, b 4, replies 4; call 2, c nothing, replies 3
    assert free(other) == 100 - 31 - 5
    resampled = fork(kernel, root_2=RESAMPLE)
    assert resampled.ready() == (C,)
    assert resampled.agents[C].grant == kernel.agents[C].grant


def test_a_clone_of_the_first_call_takes_the_second_with_it_and_its_leftover_changes_later_grants() -> None:
    kernel = in_series()
    # 100 - 5 - 5 - 13 - 4 - 4 - 2 leaves 67, less replies 2 + 4 and an answer 6
    assert kernel.agents[C].grant.total_tokens == 55
    other = fork(kernel, root_0=DEFAULT)
    assert other.ready() == (ROOT,)
    assert C not in other.agents
    play(other, ROOT, ask("c"), 2)
    assert other.agents[C].grant.total_tokens == 55 + 13  # what a had spent; its own share had been 37 before and after
    assert ROOT.child(1) in other.agents  # ids number on as if a had been there
    resampled = fork(kernel, root_0=RESAMPLE)
    play(resampled, A, Answer("1"), 4)
    play(resampled, ROOT, ask("c"), 2)
    assert resampled.agents[C].grant.total_tokens == 55 + 6


# Nested calls


def nested() -> Kernel:
    """root calls a and b; a calls a.0 and a.1 and answers; root answers."""
    kernel = game(max_depth=2)
    play(kernel, ROOT, ask("a", "b"), 5)
    play(kernel, A, ask("x", "y"), 2)
    play(kernel, B, Answer("2"), 1)
    play(kernel, A.child(0), Answer("3"), 1)
    play(kernel, A.child(1), Answer("4"), 1)
    play(kernel, A, Answer("7"), 2)
    play(kernel, ROOT, Answer("9"), 1)
    return kernel


def test_a_grandchild_keeps_its_sibling_and_its_uncle() -> None:
    kernel = nested()
    other = fork(kernel, root_0_0=DEFAULT)
    assert other.ready() == (A,)
    assert [(s.agent_id, s.turn) for s in other.log] == [(ROOT, 0), (A, 0), (B, 0), (A.child(1), 0)]
    assert other.agents[A.child(1)] == kernel.agents[A.child(1)]
    # a's 37 - prompt 3 - call 2 - a.1 (3 + 1) - replies (2 + 1 + 1)
    assert free(other, A) == 37 - 3 - 2 - 4 - 4
    assert other.ledger.totals()[0].clones == 3


def test_a_clone_left_out_takes_its_subtree_with_it() -> None:
    kernel = nested()
    other = fork(kernel, root_0=DEFAULT)
    assert sorted(map(str, other.agents)) == ["root", "root.0", "root.1"]
    assert other.ledger.totals()[0] == Amounts(5 + 5 + 4 + 4, 6, 1)
    # and together with a cousin's sibling, in two branches at once
    both = fork(kernel, root_0_1=RESAMPLE, root_1=DEFAULT)
    assert both.ready() == (A.child(1),)
    assert B not in both.ledger.accounts


# Records of replays


def speak(kernel: Kernel, script: Callable[[AgentId, int], str], order: int = 0) -> EpisodeRecord:
    """Play to the end by a script of (agent, turn), the next agent drawn by `order`."""
    rng = random.Random(order)
    while not kernel.done:
        agent = rng.choice(kernel.ready())
        text = script(agent, len(kernel.agents[agent].turns))
        kernel.step(agent, kernel.rules.protocol.parse(text), Usage(len(text)), text)
        kernel.ledger.check()
    generations = {(step.agent_id, step.turn): Generation(step.text) for step in kernel.log}
    return build_record(kernel, generations, episode_id="e", seed=7)


def rules(**limits: int) -> Rules:
    base = Limits(total_tokens=500, turn_tokens=40, reply_tokens=4, answer_reserve=12, max_turns=4, max_depth=2)
    return Rules(replace(base, **limits), Plain(), Unit())


TASK = Task("t", "q", "7", "test")
SCRIPT = {
    "root": ["<call>a<sep>b</call>", "<call>c</call>", "<ans>7<end>"],
    "root.0": ["junk", "<call>x</call>", "<ans>1<end>"],
    "root.0.0": ["<ans>2<end>"],
    "root.1": ["<ans>too long<end>"],
    "root.2": ["<ans>" + "over the grant " * 5],
}


def scripted(agent: AgentId, turn: int) -> str:
    return SCRIPT[str(agent)][turn] if turn < len(SCRIPT[str(agent)]) else "<ans>3<end>"


def test_restored_from_its_texts_an_episode_is_what_it_was() -> None:
    kernel = Kernel(TASK, rules())
    record = speak(kernel, scripted)
    assert {agent.status for agent in record.agents} == {Status.ANSWERED, Status.REPLY_TOO_LONG}
    assert record.by_id[C].turns[0].facts.outcome is Outcome.MALFORMED  # over the grant
    again = restore(from_json(to_json(record)), rules())
    assert again.agents == kernel.agents
    assert again.ledger.accounts == kernel.ledger.accounts


def test_a_replayed_record_goes_through_json_and_can_be_replayed_itself() -> None:
    kernel = Kernel(TASK, rules())
    factual = speak(kernel, scripted)
    record = speak(start_replay(Replay.of("e", {A: DEFAULT}), kernel), scripted)
    assert from_json(to_json(record)) == record
    absent = record.by_id[A]
    assert (absent.status, absent.turns, absent.reply, absent.absent, absent.failed) == (
        Status.ABSENT, (), None, True, False,
    )  # fmt: skip
    assert record.root.turns[0] == factual.root.turns[0]
    assert record.root.turns[0].facts.children == (A, B)
    # root.1 and root.2, but neither root.0 nor root.0.0
    assert (factual.cost.clones, factual.cost.depth) == (4, 2)
    assert (record.cost.clones, record.cost.depth) == (2, 1)
    assert record.cost.critical_path_tokens < factual.cost.critical_path_tokens
    again = restore(record, rules())
    cost = record.cost
    assert again.ledger.totals()[0] == Amounts(cost.total_tokens, cost.generated_tokens, cost.clones)
    without_b = start_replay(Replay.of("e", {B: DEFAULT}), again)
    assert set(without_b.absent) == {A, B}
    assert speak(without_b, scripted).cost.clones == 1


def test_every_clone_absent_is_an_episode_without_clones() -> None:
    kernel = Kernel(TASK, rules())
    speak(kernel, scripted)
    record = speak(start_replay(Replay.of("e", {A: DEFAULT, B: DEFAULT}), kernel), lambda a, t: "<ans>7<end>")
    assert (record.cost.clones, record.cost.depth, record.cost.turns) == (0, 0, 2)
    assert record.cost.critical_path_tokens == record.root.generated_tokens


def test_other_rules_do_not_restore() -> None:
    record = speak(Kernel(TASK, rules()), scripted)
    with pytest.raises(RecordError, match="episode e cannot be restored: under these rules"):
        restore(record, rules(reply_tokens=10))
    with pytest.raises(RecordError, match="pass the limits"):
        restore(record, rules(max_turns=5))  # nobody came so far, but a replay might

    class Dear(Unit):
        def count(self, messages: object, boundary: object) -> int:
            return int(super().count(messages, boundary)) + 1

    with pytest.raises(RecordError, match="the token counter"):
        restore(record, Rules(rules().limits, Plain(), Dear()))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_completion_order_cannot_matter(seed: int, orders: tuple[int, int]) -> None:
    """Two interleavings of one episode, one set of interventions: the same replay, in whatever order it is played."""

    def noise(agent: AgentId, turn: int, kind: str = "factual") -> str:
        rng = random.Random(turn_seed(seed, agent, turn, kind))
        calls = ["<call>a</call>", "<call>a<sep>b</call>", "<call>a<sep>b<sep>c</call>"]
        return rng.choice(["<ans>1<end>", "<ans>22<end>", "<ans>too long<end>", "junk", *(calls * (3 - agent.depth))])

    one, two = Kernel(TASK, rules(total_tokens=900)), Kernel(TASK, rules(total_tokens=900))
    record = speak(one, noise, orders[0])
    assert speak(two, noise, orders[1]) == record
    rng = random.Random(seed)
    chosen: dict[AgentId, Intervention] = {}
    for agent in rng.sample(record.agents[1:], len(record.agents) - 1):
        try:
            check_replay(Replay.of("e", {**chosen, agent.agent_id: DEFAULT}), record)
            chosen[agent.agent_id] = rng.choice((DEFAULT, RESAMPLE))
        except CreditError:
            pass
    if not chosen:
        return
    replay = Replay.of("e", chosen)
    anew = [start_replay(replay, kernel) for kernel in (one, two)]
    assert anew[0].agents == anew[1].agents
    assert anew[0].ledger.accounts == anew[1].ledger.accounts
    again = start_replay(replay, restore(record, rules(total_tokens=900)))
    assert again.agents == anew[0].agents
    for step in anew[0].log:
        assert anew[0].agents[step.agent_id].turns[step.turn] == record.by_id[step.agent_id].turns[step.turn].facts
    replayed = [speak(anew[i], lambda a, t: noise(a, t, "after"), orders[i]) for i in (0, 1)]
    assert replayed[0] == replayed[1]
    absent = {agent_id for agent_id, what in chosen.items() if what == DEFAULT}
    assert {agent.agent_id for agent in replayed[0].agents if agent.absent} == absent
    assert not any(agent.agent_id.is_under(gone) for gone in absent for agent in replayed[0].agents if agent.turns)


# Questions that cannot be asked


def test_replays_print_and_compare() -> None:
    replay = Replay.of("e7", {C: DEFAULT, A: RESAMPLE}, 1)
    assert str(replay) == "e7/root.0=resample,root.2=default/sample1"
    assert replay == Replay("e7", ((A, RESAMPLE), (C, DEFAULT)), 1)
    assert len({replay, Replay.of("e7", {A: RESAMPLE, C: DEFAULT}, 1), Replay.of("e7", {A: RESAMPLE}, 1)}) == 2
    later = Replay.of("e7", {A: Intervention.resample(2), ROOT: Intervention.again(1)})
    assert str(later) == "e7/root=again@1,root.0=resample@2/sample0"
    put_in = [Replay.of("e7", {A: Intervention.replace(text)}) for text in ("/sample3", "x=y", "x=y")]
    assert [str(one).count("/") for one in put_in] == [2, 2, 2], "a reply cannot forge a part of the name"
    assert len({str(one) for one in put_in}) == len(set(put_in)) == 2


@pytest.mark.parametrize(
    ("interventions", "sample", "why"),
    [
        ((), 0, "has no interventions"),
        (((B, DEFAULT), (A, DEFAULT)), 0, "agents in tree order, each once"),
        (((A, DEFAULT), (A, RESAMPLE)), 0, "agents in tree order, each once"),
        (((ROOT, DEFAULT),), 0, "e/root=default/sample0: the root has no parent"),
        (((A, DEFAULT),), -1, "sample is -1; expected a whole number >= 0"),
        (((A, DEFAULT),), True, "sample is True"),
        (((ROOT, Intervention.replace("7")),), 0, "the root has no parent"),
        (((A, Intervention.resample(-1)),), 0, "turn of root.0 is -1; expected a whole number >= 0"),
        (((A, Intervention("default", 1)),), 0, "turn of root.0 is 1; expected 0, as an absent agent takes none"),
    ],
)
def test_impossible_replays(interventions: tuple[tuple[AgentId, Intervention], ...], sample: int, why: str) -> None:
    with pytest.raises(CreditError, match=why):
        Replay("e", interventions, sample)


def test_replays_that_an_episode_cannot_answer() -> None:
    record = speak(Kernel(TASK, rules()), scripted)
    for agents, why in (
        ([D], "agent root.3 took no turn in episode e; expected one of root, root.0, root.0.0, root.1, root.2"),
        ([A, A.child(0)], "root.0.0/turn0 descends from root.0/turn0"),
        ([A, C], "root.2/turn0 descends from root.0/turn0, so it may not exist"),
        ([ROOT, B], "root.1/turn0 descends from root/turn0"),
    ):
        with pytest.raises(CreditError, match=why):
            check_replay(Replay.of("e", dict.fromkeys(agents, RESAMPLE)), record)
    check_replay(Replay.of("e", {A.child(0): RESAMPLE, B: DEFAULT}), record)
    turns = len(record.root.turns)
    with pytest.raises(CreditError, match=f"root took {turns} turns in episode e; expected turn 0 to {turns - 1}"):
        check_replay(Replay.of("e", {ROOT: Intervention.again(turns)}), record)
    with pytest.raises(CreditError, match="root/turn1 descends from root.1/turn0"):
        check_replay(Replay.of("e", {ROOT: Intervention.again(1), B: DEFAULT}), record)
    check_replay(Replay.of("e", {ROOT: Intervention.again(turns - 1)}), record)
    alone = build_record(Kernel(TASK, rules(max_turns=0)), {}, episode_id="e", seed=0)
    with pytest.raises(CreditError, match="agent root took no turn"):
        check_replay(Replay.of("e", {ROOT: RESAMPLE}), alone)


def test_forks_before_turns_that_never_were() -> None:
    kernel, _ = two_clones()
    with pytest.raises(GameError, match="root.1/turn1: the episode has no such turn"):
        fork_before(kernel, (A, 0), (B, 1))


def test_streams_are_named_by_what_they_are_for() -> None:
    replay = Replay.of("e", {A: RESAMPLE, B: DEFAULT}, 3)
    assert replay_seed(replay, 5, A, 0) == turn_seed(5, A, 0, "resample", 3)
    assert replay_seed(replay, 5, A.child(0), 1) == turn_seed(5, A.child(0), 1, "resample", 3)
    assert replay_seed(replay, 5, ROOT, 1) == turn_seed(5, ROOT, 1, "after", 3)
    assert replay_seed(replay, 5, C, 0) == turn_seed(5, C, 0, "after", 3)
    assert replay_seed(Replay.of("e", {ROOT: RESAMPLE}), 5, A, 0) == turn_seed(5, A, 0, "resample", 0)
    # The end of an episode once more, on the stream of its counterfactual ends.
    again = Replay.of("e", {ROOT: Intervention.again(1)}, 3)
    assert replay_seed(again, 5, ROOT, 1) == replay_seed(replay, 5, ROOT, 1) != turn_seed(5, ROOT, 1)
    assert replay_seed(again, 5, C, 0) == replay_seed(replay, 5, C, 0)
    assert replay_seed(Replay.of("e", {ROOT: Intervention.resample(1)}, 3), 5, ROOT, 1) != replay_seed(
        again, 5, ROOT, 1
    )
