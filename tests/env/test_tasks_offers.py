"""Offers: what the root writes, what an answer is worth, and demonstrations that say nothing about when to stop."""

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
from selfcest_env.errors import ConfigError, RewardError
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import make_reward
from selfcest_env.tasks import make_source
from selfcest_env.tasks.offers import FoundOffer, OfferQuery, Offers, look_up, parse, write_state
from selfcest_env.tasks.source import Style
from selfcest_env.types import Limits, Status, Task

LIMITS = Limits(total_tokens=400, turn_tokens=20, reply_tokens=1, answer_reserve=12, max_turns=7, max_depth=1)
REWARD = make_reward("correct", correct=None, offer={}, clone_cost={"price": 0.002, "price_key": "price"})


def draw_tasks(source: Offers, count: int) -> list[Task]:
    rng = np.random.default_rng(1)
    return [source.draw(rng) for _ in range(count)]


def play(source: Offers, count: int, style: Style = Style.DELEGATE, limits: Limits = LIMITS) -> list[EpisodeRecord]:
    language = TinyLanguage()
    rules = language.rules(limits)
    requests = [RolloutRequest(str(i), task, i) for i, task in enumerate(draw_tasks(source, count))]
    return rollout(requests, ScriptedPolicy(OracleActor(source, rules.protocol, style), language.codec), rules)


def test_a_question_is_read_as_it_is_written() -> None:
    assert OfferQuery("k", 5).write() == "?k;05"
    assert parse("?k;05") == OfferQuery("k", 5)
    assert parse("?k;5") is parse("k") is parse("?K;05") is None
    assert look_up("k3a2", "a") == "2"
    assert look_up("k3a2", "q") == look_up("k3a", "k") == ""


@pytest.mark.parametrize(
    ("digits", "state"), [("", ""), ("3", "A3A3;25"), ("35", "B5B5;25"), ("353", "C3B5;25"), ("355", "C5B5;25")]
)
def test_the_root_writes_the_last_offer_the_first_best_one_and_the_price(digits: str, state: str) -> None:
    offers = [FoundOffer(key, digit) for key, digit in zip("ABC", digits, strict=False)]
    assert write_state(offers, OfferQuery("k", 25)) == state


def test_offers_are_uniform_and_the_task_states_them() -> None:
    counts: Counter[str] = Counter()
    for task in draw_tasks(Offers(), 1500):
        query = parse(task.prompt)
        assert query is not None
        assert query.price == task.metadata["price"]
        assert list(task.context) == list("ABCDEF")
        offers = [look_up(document, query.field) for document in task.context.values()]
        assert task.metadata["offers"] == "".join(offers)
        assert offers["ABCDEF".index(task.answer)] == max(offers)
        counts.update(offers)
    # Four standard errors of a share over 9,000 digits are 0.013.
    assert all(abs(counts[str(digit)] / 9000 - 0.1) < 0.013 for digit in range(10))


def test_one_clone_is_called_at_a_time_and_the_answer_is_the_best_offer_so_far() -> None:
    for record in play(Offers(), 200):
        query = parse(record.task.prompt)
        assert query is not None
        asked = "ABCDEF"[: record.cost.clones]
        offers = [FoundOffer(key, look_up(record.task.context[key], query.field)) for key in asked]
        assert [agent.reply for agent in record.agents[1:]] == [offer.digit for offer in offers]
        best = max(offer.digit for offer in offers)
        assert record.answer == next(offer.key for offer in offers if offer.digit == best)
        assert record.root.turns[-1].generation.text == f"{write_state(offers, query)}<ans>{record.answer}<end>"
        assert REWARD.grade(record).correct
        expected = int(best) / 10 - 0.002 * query.price * record.cost.clones
        assert REWARD.score(record).team_return == pytest.approx(expected)


@pytest.mark.slow
def test_demonstrations_stop_at_random() -> None:
    """Half of them stop after each reply, with bad offers as with good ones, at low prices as at high ones."""
    stopped: dict[str, list[bool]] = {"all": [], "low": [], "high": [], "cheap": [], "dear": []}
    for record in play(Offers(), 1500):
        offers = str(record.task.metadata["offers"])
        for number in range(1, min(record.cost.clones, 5) + 1):
            is_last = number == record.cost.clones
            is_low = max(offers[:number]) < "7"
            is_cheap = int(record.task.metadata["price"]) < 50
            for group in ("all", "low" if is_low else "high", "cheap" if is_cheap else "dear"):
                stopped[group].append(is_last)
    assert {record.cost.clones for record in play(Offers(), 300)} == set(range(1, 7))
    for choices in stopped.values():
        assert len(choices) > 800
        assert abs(np.mean(choices) - 0.5) < 4 * 0.5 / len(choices) ** 0.5


def test_an_offer_that_no_clone_saw_is_worth_nothing() -> None:
    """A root that knew where the best offer is, or that gave a clone two documents for one price, earns nothing."""
    record = next(record for record in play(Offers(), 50) if record.cost.clones == 2)
    task = replace(record.task, metadata={**record.task.metadata, "offers": "479999"})
    record = replace(record, task=task)

    def score(answer: str | None) -> float:
        status = Status.ANSWERED if answer is not None else Status.OUT_OF_TURNS
        root = replace(record.root, reply=answer, status=status)
        terms = REWARD.score(replace(record, agents=(root, *record.agents[1:]))).reward_terms
        assert terms is not None
        return terms["offer"]

    assert [score(answer) for answer in ("A", " B\n", "C", "AB", "9", "", None)] == [0.4, 0.7, 0, 0, 0, 0, 0]
    root, first, second = record.agents
    record = replace(record, agents=(root, first, replace(second, shared_context=("B", "C"))))
    assert [score(answer) for answer in "ABC"] == [0.4, 0, 0]
    record = replace(record, agents=(root, replace(first, status=Status.ABSENT), second))
    assert [score(answer) for answer in "AB"] == [0, 0.7], "a clone that a replay leaves out saw nothing"


def test_a_task_without_offers_is_an_error() -> None:
    record = play(Offers(), 1)[0]
    for offers in (None, 123456, "12345", "12345x"):
        metadata = {key: value for key, value in record.task.metadata.items() if key != "offers"}
        metadata |= {} if offers is None else {"offers": offers}
        with pytest.raises(RewardError, match="expected a text with a digit for each of its 6 documents"):
            REWARD.score(replace(record, task=replace(record.task, metadata=metadata)))


def test_without_clones_the_expert_reads_every_document() -> None:
    records = play(Offers(), 50, Style.SOLVE, Limits(total_tokens=400, turn_tokens=20, max_turns=2, max_depth=0))
    assert all(record.answer == record.task.answer for record in records)
    assert {record.cost.clones for record in records} == {0}
    assert {REWARD.score(record).team_return for record in records} == {0.0}


@pytest.mark.parametrize(
    ("options", "words"), [({"prices": []}, "prices"), ({"prices": [100]}, "prices"), ({"documents": 27}, "documents")]
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_source("offers", **options)
