"""Witnesses: noisy copies, the order of replies, and demonstrations that say nothing about when to stop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import make_reward
from selfcest_env.tasks import make_source
from selfcest_env.tasks.source import Style
from selfcest_env.tasks.witnesses import Witnesses, WitnessQuery, group_replies, look_up, parse, write_state
from selfcest_env.types import Limits, Task

LIMITS = Limits(total_tokens=400, turn_tokens=40, reply_tokens=1, answer_reserve=16, max_turns=8, max_depth=1)


def draw_tasks(source: Witnesses, count: int) -> list[Task]:
    rng = np.random.default_rng(1)
    return [source.draw(rng) for _ in range(count)]


def play(source: Witnesses, count: int, style: Style = Style.DELEGATE, limits: Limits = LIMITS) -> list[EpisodeRecord]:
    language = TinyLanguage()
    rules = language.rules(limits)
    requests = [RolloutRequest(str(i), task, i) for i, task in enumerate(draw_tasks(source, count))]
    return rollout(requests, ScriptedPolicy(OracleActor(source, rules.protocol, style), language.codec), rules)


@pytest.mark.parametrize(
    ("replies", "grouped"),
    [
        ("", ""),
        ("3", "3"),
        ("302", "302"),
        ("300", "003"),
        ("3003", "0033"),
        ("30033", "33300"),
        ("01233", "33012"),
    ],
)
def test_the_first_digit_is_the_plurality_and_an_equal_number_does_not_overtake(replies: str, grouped: str) -> None:
    assert group_replies(replies) == grouped


def test_a_question_is_read_as_it_is_written() -> None:
    assert WitnessQuery("k", 5).write() == "?k;05"
    assert parse("?k;05") == WitnessQuery("k", 5)
    assert parse("?k;5") is parse("k") is parse("?K;05") is None
    assert look_up("k3a2", "a") == "2"
    assert look_up("k3a2", "q") == look_up("k3a", "k") == ""


@pytest.mark.parametrize(
    ("replies", "state"), [("", ""), ("3", "3;25;10"), ("302", "302;25;11"), ("30033", "33300;25;32")]
)
def test_the_root_writes_replies_price_and_sizes(replies: str, state: str) -> None:
    assert write_state(replies, WitnessQuery("k", 25)) == state


def test_a_copy_is_right_as_often_as_asked_and_errors_are_uniform() -> None:
    source = Witnesses(accuracy=0.6, digits=4, witnesses=7)
    shifts: Counter[int] = Counter()
    for task in draw_tasks(source, 2000):
        query = parse(task.prompt)
        assert query is not None
        assert query.price == task.metadata["price"]
        assert list(task.context) == list("ABCDEFG")
        for document in task.context.values():
            shifts[(int(look_up(document, query.field)) - int(task.answer)) % 4] += 1
    total = shifts.total()
    # Four standard errors of a share over 14,000 digits are at most 0.017.
    assert abs(shifts[0] / total - 0.6) < 0.017
    assert all(abs(shifts[shift] / total - 0.4 / 3) < 0.017 for shift in (1, 2, 3))


def test_one_witness_is_asked_per_call_and_the_answer_is_the_plurality() -> None:
    for record in play(Witnesses(), 200):
        query = parse(record.task.prompt)
        assert query is not None
        asked = "ABCDEFG"[: record.cost.clones]
        replies = [look_up(record.task.context[key], query.field) for key in asked]
        assert [agent.reply for agent in record.agents[1:]] == replies
        assert record.answer == group_replies(replies)[0]
        last = record.root.turns[-1].generation.text
        assert last == f"{write_state(replies, query)}<ans>{record.answer}<end>"


def test_demonstrations_stop_at_random() -> None:
    """Each number of witnesses is equally likely at every price."""
    records = play(Witnesses(), 1400)
    counts = Counter(record.cost.clones for record in records)
    assert set(counts) == set(range(1, 8))
    assert all(150 < count < 250 for count in counts.values())
    by_price = [(int(record.task.metadata["price"]), record.cost.clones) for record in records]
    cheap = [clones for price, clones in by_price if price < 50]
    dear = [clones for price, clones in by_price if price >= 50]
    # Four standard errors of the difference of two means of 700 uniform numbers from 1 to 7.
    assert abs(np.mean(cheap) - np.mean(dear)) < 4 * 2 * (2 / 700) ** 0.5


def test_a_demonstration_is_right_where_pluralities_are_accepted() -> None:
    reward = make_reward("correct")
    strict = [reward.grade(record).correct for record in play(Witnesses(), 100)]
    assert 50 < sum(strict) < 95
    records = play(Witnesses(accepts_pluralities=True), 100)
    assert all(reward.grade(record).correct for record in records)
    assert any(record.answer != record.task.answer for record in records)
    task = Witnesses(accepts_pluralities=True).draw(np.random.default_rng(1))
    assert task == replace(Witnesses().draw(np.random.default_rng(1)), aliases=task.aliases)
    assert set(task.aliases) < set("0123")


def test_the_reward_is_a_right_answer_minus_the_price_of_the_clones() -> None:
    reward = make_reward("default", token_cost=None, clone_cost={"price": 0.001, "price_key": "price"})
    for record in play(Witnesses(prices=(25,)), 20):
        expected = (record.answer == record.task.answer) - 0.025 * record.cost.clones
        assert reward.score(record).team_return == pytest.approx(expected)


def test_without_clones_the_expert_reads_every_copy() -> None:
    source = Witnesses(accuracy=0.9)
    records = play(source, 100, Style.SOLVE, Limits(total_tokens=400, turn_tokens=40, max_turns=2, max_depth=0))
    assert sum(record.answer == record.task.answer for record in records) > 95
    assert {record.cost.clones for record in records} == {0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accuracy": 0.25}, "accuracy is 0.25 and digits 4; expected an accuracy above 1 / digits"),
        ({"prices": []}, "prices"),
        ({"prices": [100]}, "prices"),
        ({"witnesses": 10}, "witnesses"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_source("witnesses", **options)
