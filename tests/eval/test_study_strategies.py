"""Strategies through the real rollout: budgets, structure, and scores that can be worked out."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_players import CODEC, EXPERT, PROTOCOL, Known, Noise, Scripted

from selfcest_agents.player import Player
from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.graders import Grade
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import make_reward
from selfcest_env.seeding import stream_seed
from selfcest_env.tasks import make_source
from selfcest_env.tasks.quote import Quote
from selfcest_env.types import Fault, FinishReason, Limits, Outcome, Status, Task
from selfcest_eval.play.costs import WALL, costs_of
from selfcest_eval.play.policies import PolicySource
from selfcest_eval.play.samples import BestOfN, SelfConsistency, find_remaining_limits, majority, normal_form
from selfcest_eval.play.scripted_roots import MapReduce, OracleDecomposition, SpawnJoin
from selfcest_eval.play.strategies import (
    STRATEGIES,
    Episodes,
    Instance,
    Monolithic,
    MonolithicRead,
    PlayContext,
    Strategy,
    make_strategy,
)

LIMITS = Limits(turn_tokens=160, reply_tokens=4, answer_reserve=12, max_turns=6)
LEDGER = make_source("ledger_qa", min_documents=3, max_documents=9, min_named=2, max_named=3)
# A board is kept in lines, and the embedded model has none. Ledgers do not name the documents that they need. The
# search needs an extra, and tests/methods/test_long_texts.py plays it.
PLAYABLE = STRATEGIES.keys() - {"board", "oracle_documents", "bm25", "bm25_read", "bm25_sentences"}
SCRIPTABLE = sorted(PLAYABLE - {"always_delegates", "never_delegates"})  # no script goes on from a begun turn
GUESS = Task("guess", "1?", "1", "guess")


def drawn(source: object, count: int) -> list[Task]:
    rng = np.random.default_rng(3)
    return [source.draw(rng) for _ in range(count)]  # type: ignore[attr-defined]


def instances(tasks: list[Task]) -> list[Instance]:
    return [Instance(task, stream_seed("test", i)) for i, task in enumerate(tasks)]


def guesses(count: int) -> list[Instance]:
    return instances([replace(GUESS, task_id=f"guess{i}") for i in range(count)])


def play(strategy: Strategy, asked: list[Instance], policy: PolicySource, limits: Limits = LIMITS) -> list[Episodes]:
    context = PlayContext(limits, 0.8, EXPERT, PROTOCOL)
    strategy.check(context)
    return strategy.play(asked, context, policy.load(0))


def accuracy(strategy: Strategy, played: list[Episodes]) -> float:
    reward = make_reward("correct")
    right = 0
    for episodes in played:
        grades = [reward.grade(episode) for episode in episodes]
        right += grades[strategy.choose(episodes, grades)].correct
    return right / len(played)


# Budgets


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(SCRIPTABLE),
    policy=st.sampled_from([Scripted(), Noise()]),
    swept=st.sampled_from(["total_tokens", "generated_tokens"]),
    budget=st.integers(12, 500),
    seed=st.integers(0, 10_000),
)
def test_no_strategy_ever_spends_more_than_its_budget(
    name: str, policy: Scripted, swept: str, budget: int, seed: int
) -> None:
    limits = replace(LIMITS, **{"total_tokens": 1500, swept: budget})
    tasks = [source.draw(np.random.default_rng(seed)) for source in (LEDGER, make_source("range_sum"))]
    strategy = make_strategy(name, {}, "strategies.x")
    for episodes in play(strategy, [Instance(task, seed) for task in tasks], policy, limits):
        costs = costs_of(episodes, 0.0)
        assert (costs is None) == (not episodes[0].root.turns)
        assert costs is None or costs[swept] <= budget
        assert costs is None or costs["total_tokens"] <= 1500
        spent = 0
        for episode in episodes:  # each was played under what the earlier ones had left
            # `memory_agent` ends without a turn and without budget where too little is left.
            is_end = not episode.root.turns and episode.limits.total_tokens == 0
            assert getattr(episode.limits, swept) == budget - spent or is_end
            spent += getattr(episode.cost, swept)


def test_costs_of_samples() -> None:
    """Tokens add up; what could run side by side counts by its maximum."""
    (episodes,) = play(SelfConsistency(samples=3), guesses(1), Known(right=0.5, tokens=10))
    prompt = CODEC.count_text("1?") + 2  # <root> and <asst>
    assert len(episodes) == 3
    assert costs_of(episodes, 1.5) == {
        "total_tokens": 3 * (prompt + 10), "prompt_tokens": 3 * prompt, "generated_tokens": 30,
        "critical_path_tokens": 10, "peak_context": prompt + 10, "billed_tokens": 3 * (prompt + 10),
        "kv_token_steps": 3 * (10 * prompt + 45), "clones": 0, "turns": 3, "depth": 0, WALL: 1.5,
    }  # fmt: skip


def test_samples_stop_when_find_remaining_limits_could_not_pay_another() -> None:
    # A sample costs 4 + 10 = 14 tokens: of 50 three, 8 are left.
    for budget, count in ((50, 3), (56, 4), (14, 1), (27, 1), (28, 2)):
        limits = replace(LIMITS, total_tokens=budget)
        (episodes,) = play(SelfConsistency(samples=9), guesses(1), Known(right=1.0, tokens=10), limits)
        assert len(episodes) == count, budget


def test_find_remaining_limits_by_hand() -> None:
    (episodes,) = play(SelfConsistency(samples=2), guesses(1), Known(right=1.0, tokens=10))
    limits = replace(LIMITS, total_tokens=60, generated_tokens=40)
    assert find_remaining_limits(limits, ()) == limits
    assert find_remaining_limits(limits, episodes) == replace(limits, total_tokens=60 - 28, generated_tokens=40 - 20)
    assert find_remaining_limits(replace(limits, total_tokens=41), episodes) is None  # 13 are left, and 14 are needed
    assert (
        find_remaining_limits(replace(limits, generated_tokens=31, answer_reserve=12), episodes) is None
    )  # 11, the reserve 12
    assert find_remaining_limits(replace(limits, total_tokens=None), episodes) == replace(
        limits, total_tokens=None, generated_tokens=20
    )


def test_a_budget_below_the_prompt_is_an_ending_and_no_error() -> None:
    long = replace(LIMITS, total_tokens=12)
    for name in sorted(PLAYABLE):
        (episodes,) = play(make_strategy(name, {}, "a"), instances(drawn(LEDGER, 1)), Scripted(), long)
        assert episodes[-1].answer is None
        assert len(episodes) == 1


class Elsewhere(Player):
    """A player to whom everything is sent."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def play(self, *asked: object, **options: object) -> list[EpisodeRecord]:
        sent, named = pickle.loads(pickle.dumps((asked, options)))
        return pickle.loads(pickle.dumps(self._player.play(*sent, **named)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SCRIPTABLE)
def test_what_a_strategy_asks_of_a_player_can_be_sent(name: str) -> None:
    strategy, context = make_strategy(name, {}, "a"), PlayContext(LIMITS, 0.8, EXPERT, PROTOCOL)
    asked, player = instances(drawn(LEDGER, 3)), Scripted().load(0)
    assert strategy.play(asked, context, Elsewhere(player)) == strategy.play(asked, context, player)


# Accuracies that are known


@pytest.mark.slow
def test_majority_of_three_and_best_of_three_score_as_the_binomial_says() -> None:
    # right with .6: two or three of three .648, at least one .936
    asked = guesses(600)
    for strategy, expected in ((SelfConsistency(samples=3), 0.648), (BestOfN(samples=3), 0.936), (Monolithic(), 0.6)):
        found = accuracy(strategy, play(strategy, asked, Known(right=0.6, tokens=5)))
        assert found == pytest.approx(expected, abs=3 * (expected * (1 - expected) / 600) ** 0.5), strategy


def test_the_first_sample_is_the_monolithic_episode_and_both_choices_see_the_same_samples() -> None:
    asked = guesses(5)
    (alone, votes, best) = (
        play(strategy, asked, Known(right=0.5))
        for strategy in (Monolithic(), SelfConsistency(samples=4), BestOfN(samples=4))
    )
    assert [episodes[0].agents for episodes in votes] == [episodes[0].agents for episodes in alone]
    assert votes == best
    assert SelfConsistency(4).recipe == BestOfN(4).recipe != SelfConsistency(5).recipe != Monolithic().recipe

    class Changed(SelfConsistency):
        version: ClassVar[int] = 1

    assert Changed(4).recipe == {**SelfConsistency(4).recipe, "version": 1}, "it plays again"
    assert BestOfN.oracle
    assert not SelfConsistency.oracle


@pytest.mark.parametrize("source", ["ledger_qa", "range_sum"])
def test_oracle_decomposition_with_perfect_clones_is_always_right(source: str) -> None:
    strategy = OracleDecomposition()
    tasks = drawn(make_source(source), 40)
    played = play(strategy, instances(tasks), Scripted())
    assert accuracy(strategy, played) == 1
    assert all(episodes[0].cost.clones for episodes in played)


def test_the_expert_reads_and_sees_everything_where_the_strategy_says_so() -> None:
    asked = instances(drawn(LEDGER, 20))
    for strategy, reads in ((Monolithic(), False), (MonolithicRead(), True), (MonolithicRead(max_reads=3), True)):
        played = play(strategy, asked, Scripted())
        assert accuracy(strategy, played) == 1
        outcomes = {turn.facts.outcome for (episode,) in played for _, turn in episode.turns()}
        assert (Outcome.READ in outcomes) == reads
        assert not any(episode.cost.clones for (episode,) in played)


# Structure of the scripted roots


def objectives(record: EpisodeRecord) -> list[tuple[str, tuple[str, ...]]]:
    return [(agent.objective, agent.shared_context) for agent in record.agents[1:]]


def test_spawn_join_starts_threads_on_the_whole_task_and_then_the_policy_joins() -> None:
    (task,) = drawn(LEDGER, 1)
    ((record,),) = play(SpawnJoin(threads=3), instances([task]), Known(right=1.0, tokens=8, clones=2))
    assert objectives(record) == [(task.prompt, tuple(task.context))] * 3
    first, last = record.root.turns
    assert first.facts.outcome is Outcome.DELEGATED
    assert last.generation.text == "+++++<ans>1<end>", "the policy would delegate, and has no clones left"
    assert first.facts.generated_tokens == len(CODEC.encode_scripted(first.generation.text))


def test_map_reduce_gives_every_document_to_a_clone() -> None:
    (task,) = drawn(LEDGER, 1)
    limits = replace(LIMITS, total_tokens=3000, max_clones_per_call=1, max_clones=1)
    ((record,),) = play(MapReduce(), instances([task]), Known(right=1.0, tokens=8), limits)
    assert objectives(record) == [(task.prompt, (key,)) for key in task.context]
    ((paired,),) = play(MapReduce(documents_per_clone=2), instances([task]), Known(right=1.0, tokens=8), limits)
    keys = list(task.context)
    assert [keys for _, keys in objectives(paired)] == [tuple(keys[i : i + 2]) for i in range(0, len(keys), 2)]
    ((whole,),) = play(MapReduce(), guesses(1), Known(right=1.0, tokens=8))
    assert objectives(whole) == [("1?", ())]


@pytest.mark.parametrize("strategy", [SpawnJoin(), MapReduce(), OracleDecomposition()])
def test_a_script_stops_where_its_grant_ends(strategy: Strategy) -> None:
    """The context that the model goes on from is what the ledger charged, and nothing else."""
    long = make_source("range_sum", min_length=30, max_length=30)
    (task,) = drawn(long if isinstance(strategy, OracleDecomposition) else LEDGER, 1)
    cut = 0
    for budget in range(20, 90):
        ((record,),) = play(
            strategy, instances([task]), Known(right=1.0, tokens=4), replace(LIMITS, total_tokens=budget)
        )
        cut += any(turn.facts.fault is Fault.CUT_BY_LENGTH for turn in record.root.turns)
        assert len(record.root.context_ids) == record.root.prompt_tokens + record.root.generated_tokens
    assert cut


@pytest.mark.parametrize("strategy", [SpawnJoin(threads=4), MapReduce(), OracleDecomposition()])
def test_turn_tokens_bound_the_policy_and_not_the_script(strategy: Strategy) -> None:
    """A call of many documents is longer than any turn that the policy may take, and is played all the same."""
    asked = instances(drawn(LEDGER, 8))
    limits = replace(LIMITS, total_tokens=3000, turn_tokens=12)
    played = play(strategy, asked, Known(right=1.0, tokens=30), limits)
    scripted = 1 if isinstance(strategy, SpawnJoin | MapReduce) else 99
    longest = 0
    for episodes in played:
        assert strategy.executed(episodes) is not None
        (record,) = episodes
        for agent in record.agents:
            script = scripted if agent is record.root else 0
            longest = max([longest, *(turn.facts.generated_tokens for turn in agent.turns[:script])])
            for turn in agent.turns[script:]:
                assert turn.facts.generated_tokens == 12, "the policy thinks for 30"
                assert turn.facts.finish_reason is FinishReason.LENGTH
        assert record.root.turns[0].facts.outcome is Outcome.DELEGATED
    assert longest > 12
    if scripted == 1:
        assert all(strategy.executed(episodes) for episodes in played)


def test_whether_a_script_was_executed() -> None:
    (task,) = drawn(make_source("range_sum", min_length=3, max_length=3), 1)
    poor, rich = (replace(LIMITS, total_tokens=budget) for budget in (60, 600))
    for strategy, limits, expected in (
        (SpawnJoin(threads=4), poor, False),  # refused: the policy goes on alone
        (SpawnJoin(threads=4), rich, True),
        (OracleDecomposition(), rich, True),
        (OracleDecomposition(), replace(LIMITS, total_tokens=12), False),
        (OracleDecomposition(), replace(LIMITS, total_tokens=24), False),  # it answers, and has called nobody
        (Monolithic(), rich, None),
    ):
        (episodes,) = play(strategy, instances([task]), Scripted(), limits)
        assert strategy.executed(episodes) is expected, (strategy, limits)


def test_a_scripted_call_that_the_budget_cannot_pay_leaves_the_policy_on_its_own() -> None:
    (task,) = drawn(make_source("range_sum", min_length=3, max_length=3), 1)
    limits = replace(LIMITS, total_tokens=60)
    ((record,),) = play(SpawnJoin(threads=4), instances([task]), Scripted(), limits)
    assert record.root.turns[0].facts.outcome is Outcome.REFUSED
    assert record.root.status in (Status.ANSWERED, Status.OUT_OF_TOKENS)
    assert not record.agents[1:]
    assert len(record.root.turns) > 1


# Votes


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        (["1", "2", "2"], 1),
        (["1", "2"], 0),
        (["2", "1", "1", "2"], 0),
        ([None, None, "3"], 2),
        ([None, None], 0),
        (["1/2", "7", "0.5"], 0),
        (["7", r"\boxed{\frac12}", "0.50"], 1),
        (["Rome", "The Paris", "paris."], 1),
        (["x+1", "x-1", "x - 1"], 1),
        (["12", "(1, 2)", "(1,2)"], 1),
        (["5 km", "-5 km", "-5 km"], 1),
        ([r"\text{Monday}", "Sunday", "monday"], 0),
        (["4", "x = 5", "5"], 1),
    ],
)
def test_majority(answers: list[str | None], chosen: int) -> None:
    assert majority(answers) == chosen


def test_normal_forms_keep_different_answers_apart() -> None:
    assert len({normal_form(text) for text in ("1", "-1", "10", "x", "y", "!", "?", "the", "3+4*5", "1/3")}) == 10
    assert normal_form("1,000") == normal_form("1000") == normal_form("$1000$")


def test_best_of_n_takes_the_right_one_then_the_best_score_then_the_first() -> None:
    grades = [Grade(0.2, False, True), Grade(0.7, False, True), Grade(0.7, False, True), Grade(0.6, True, True)]
    assert BestOfN().choose((), grades) == 3
    assert BestOfN().choose((), grades[:3]) == 1


# Bad input


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("monolitic", {}, ["unknown strategy 'monolitic'", "Did you mean 'monolithic'"]),
        ("self_consistency", {"samples": 0}, ["strategies.x.options", "samples is 0"]),
        ("spawn_join", {"threads": 2.5}, ["threads is 2.5"]),
        ("map_reduce", {"documents_per_clone": 0}, ["documents_per_clone is 0"]),
        ("delegate", {"clones": 3}, ["clones is unknown"]),
        ("monolithic_read", {"max_reads": 0}, ["max_reads is 0"]),
    ],
)
def test_wrong_strategies(name: str, options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_strategy(name, options, "strategies.x")
    assert all(word in str(caught.value) for word in words)


def test_a_class_that_is_no_strategy() -> None:
    with pytest.raises(PlugInError, match="Noise is no subclass of"):
        make_strategy("study_players:Noise", {}, "strategies.x")


@pytest.mark.parametrize(
    ("strategy", "changes", "words"),
    [
        ("delegate", {"limits": replace(LIMITS, max_depth=0)}, "limits.max_depth is 0"),
        (
            "spawn_join",
            {"limits": replace(LIMITS, max_clones_per_call=3)},
            "max_clones_per_call is 3, and the strategy needs",
        ),
        ("spawn_join", {"temperature": 0.0}, "all threads would be equal"),
        ("self_consistency", {"temperature": 0.0}, "all samples would be equal"),
        ("oracle_decomposition", {"source": object()}, "object has no expert, which the strategy needs"),
    ],
)
def test_strategies_that_could_not_be_what_they_are_named_for(
    strategy: str, changes: dict[str, object], words: str
) -> None:
    context = replace(PlayContext(LIMITS, 0.8, Quote(), PROTOCOL), **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words):
        make_strategy(strategy, {}, "strategies.x").check(context)
