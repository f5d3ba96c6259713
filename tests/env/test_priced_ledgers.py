"""Priced ledgers: what a prompt states, the window that the game enforces, the price of a clone, and the expert."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.errors import ConfigError, RewardError
from selfcest_env.record import EpisodeRecord, from_json, to_json
from selfcest_env.reward import CloneCost, make_reward
from selfcest_env.tasks import make_source
from selfcest_env.tasks.long_ledgers import read_entries
from selfcest_env.tasks.priced_ledgers import PricedLedgers, Terms, parse
from selfcest_env.tasks.source import Style
from selfcest_env.types import Limits, Task

LIMITS = Limits(
    total_tokens=480, turn_tokens=100, reply_tokens=4, answer_reserve=1, max_turns=6, max_depth=1, max_reads=4
)


def draw_tasks(source: PricedLedgers, count: int) -> list[Task]:
    rng = np.random.default_rng(1)
    return [source.draw(rng) for _ in range(count)]


def play(source: PricedLedgers, style: Style, count: int = 150) -> list[EpisodeRecord]:
    language = TinyLanguage()
    rules = language.rules(LIMITS)
    requests = [RolloutRequest(str(i), task, i) for i, task in enumerate(draw_tasks(source, count))]
    policy = ScriptedPolicy(OracleActor(source, rules.protocol, style), language.codec)
    records = rollout(requests, policy, rules)
    return [record for record in records if isinstance(record, EpisodeRecord)]


def is_right(record: EpisodeRecord) -> bool:
    return record.answer == record.task.answer


def test_a_prompt_states_what_was_drawn() -> None:
    for task in draw_tasks(PricedLedgers(), 100):
        stated = parse(task.prompt)
        assert stated is not None
        entries = sum(len(read_entries(task.context[key])) for key in re.findall("[A-Z]", stated[0]))
        assert stated[1] == (task.metadata["size"], task.metadata["room"], task.metadata["price"])
        assert stated[1].size == entries
        assert task.context_tokens == 82 + 5 * (stated[1].room or 0)
        assert task.metadata["stated_size"] == entries


def test_sizes_are_missing_and_wrong_as_often_as_asked() -> None:
    kinds: Counter[str] = Counter()
    for task in draw_tasks(PricedLedgers(missing=0.3, wrong=0.2), 1000):
        stated = task.metadata["stated_size"]
        kinds["missing" if stated == -1 else "right" if stated == task.metadata["size"] else "wrong"] += 1
    assert 260 < kinds["missing"] < 340
    assert 160 < kinds["wrong"] < 240


@pytest.mark.parametrize(
    ("terms", "written", "thought"),
    [
        (Terms(9, 15, 3), ";09,15,3", "09153+"),
        (Terms(15, 15, 0), ";15,15,0", "15150+"),
        (Terms(16, 15, 0), ";16,15,0", "16150-"),
        (Terms(None, 15, 3), ";??,15,3", "??153?"),
        (Terms(12, None, 3), ";12,??,3", "12??3?"),
    ],
)
def test_terms_are_written_and_read(terms: Terms, written: str, thought: str) -> None:
    assert terms.write() == written
    assert parse("?[1]C" + written) == ("?[1]C", terms)
    assert terms.thought() == thought
    assert parse("?[1]C") is None


def test_a_reader_is_right_exactly_where_the_window_has_room() -> None:
    records = play(PricedLedgers(), Style.READ)
    fits = {is_right(record) for record in records if record.task.metadata["size"] <= record.task.metadata["room"]}
    too_long = {is_right(record) for record in records if record.task.metadata["size"] > record.task.metadata["room"]}
    assert fits == {True}
    assert too_long == {False}
    assert all(record.cost.peak_context <= (record.task.context_tokens or 0) for record in records)
    assert all(record.limits.context_tokens == record.task.context_tokens for record in records)


def test_clones_are_right_in_every_window() -> None:
    assert all(map(is_right, play(PricedLedgers(rooms=(6,)), Style.DELEGATE)))


def test_without_enforcement_both_styles_are_right_at_every_size() -> None:
    source = PricedLedgers(enforced=False, rooms=(6,), missing=0.5)
    for style in (Style.READ, Style.DELEGATE):
        records = play(source, style)
        assert all(map(is_right, records))
        assert all(record.task.context_tokens is None for record in records)
        assert {record.cost.clones for record in records} == ({0} if style is Style.READ else {3})


def test_the_window_of_a_task_only_narrows_the_limits() -> None:
    assert LIMITS.with_window(None) is LIMITS
    assert LIMITS.with_window(90).context_tokens == 90
    narrow = replace(LIMITS, context_tokens=60)
    assert narrow.with_window(90) is narrow


def test_records_keep_the_window_and_others_keep_their_format() -> None:
    record = play(PricedLedgers(), Style.READ, 1)[0]
    assert to_json(record)["format"] == 6
    assert from_json(to_json(record)) == record
    plain = replace(record, task=replace(record.task, context_tokens=None))
    assert to_json(plain)["format"] == 5
    assert "context_tokens" not in to_json(plain)["task"]
    assert from_json(to_json(plain)) == plain


def test_a_clone_costs_what_its_task_says() -> None:
    records = play(PricedLedgers(), Style.DELEGATE, 20)
    term = CloneCost(0.03, price_key="price")
    reward = make_reward("default", clone_cost={"price": 0.03, "price_key": "price"})
    for record in records:
        expected = -0.03 * record.task.metadata["price"] * 3
        assert term(record, reward.grade(record)) == pytest.approx(expected)
        assert sum(map(sum, term.by_turn(record).values())) == pytest.approx(expected)
        scored = reward.score(record)
        assert (scored.reward_terms or {})["clone_cost"] == pytest.approx(expected)


def test_a_task_without_a_price_is_refused() -> None:
    record = play(PricedLedgers(), Style.DELEGATE, 1)[0]
    with pytest.raises(RewardError, match="price_key is 'cost', and the metadata of task .* has None there"):
        CloneCost(price_key="cost").by_turn(record)
    assert CloneCost(0.1, price_key="cost", default_factor=2).by_turn(record) == CloneCost(0.2).by_turn(record)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"missing": 0.7, "wrong": 0.6}, "missing is 0.7 and wrong is 0.6; expected a sum of at most 1"),
        ({"sizes": [2]}, "sizes has 2; expected 3 to 27 entries"),
        ({"sizes": [5], "wrong": 0.1}, "wrong is 0.1 and sizes has one number"),
        ({"rooms": [100]}, "rooms"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_source("priced_ledgers", **options)
