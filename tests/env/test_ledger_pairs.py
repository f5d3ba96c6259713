"""Counts over pairs of ledgers: the answer by an independent count, and experts that are right in every style."""

from __future__ import annotations

import re

import numpy as np
import pytest

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.errors import ConfigError
from selfcest_env.record import EpisodeRecord
from selfcest_env.tasks.ledger_pairs import LedgerPairs, parse
from selfcest_env.tasks.source import Style
from selfcest_env.types import Limits, Task

LIMITS = Limits(
    total_tokens=1600, turn_tokens=500, reply_tokens=4, answer_reserve=12, max_turns=12, max_depth=1, max_reads=16
)


def play(source: LedgerPairs, style: Style, count: int = 60) -> list[EpisodeRecord]:
    language = TinyLanguage()
    rules = language.rules(LIMITS)
    rng = np.random.default_rng(0)
    requests = [RolloutRequest(str(i), source.draw(rng), i) for i in range(count)]
    policy = ScriptedPolicy(OracleActor(source, rules.protocol, style), language.codec)
    records = rollout(requests, policy, rules)
    return [record for record in records if isinstance(record, EpisodeRecord)]


def test_the_answer_is_the_number_of_equal_entries_over_all_pairs() -> None:
    rng = np.random.default_rng(3)
    source = LedgerPairs()
    for _ in range(100):
        task = source.draw(rng)
        keys = re.findall("[A-Z]", task.prompt)
        texts = [task.context[key] for key in keys]
        entries = [re.findall("[a-z][0-9]", text) for text in texts]
        equal = 0
        for i in range(len(keys)):
            for j in range(i):
                equal += len(set(entries[i]) & set(entries[j]))
        assert task.answer == str(equal % 10)
        assert task.metadata["size"] == len(keys) * (len(keys) - 1) // 2 * len(entries[0])


@pytest.mark.parametrize(
    ("reading", "style", "clones", "reads"),
    [("again", Style.DELEGATE, True, 0), ("again", Style.READ, False, 6), ("table", Style.READ, False, 4)],
)
def test_experts_are_right(reading: str, style: Style, clones: bool, reads: int) -> None:
    records = play(LedgerPairs(min_named=4, reading=reading), style)
    assert all(record.answer == record.task.answer for record in records)
    assert {record.cost.clones for record in records} == ({6} if clones else {0})
    assert {sum(turn.generation.text.endswith("</read>") for _, turn in record.turns()) for record in records} == {
        reads
    }


def test_reading_again_costs_what_clones_cost_and_a_table_costs_less() -> None:
    def mean_cost(reading: str, style: Style, cost: str) -> float:
        source = LedgerPairs(min_named=4, max_named=4, min_length=12, max_length=12, reading=reading)
        return float(np.mean([getattr(record.cost, cost) for record in play(source, style, 5)]))

    total = mean_cost("again", Style.DELEGATE, "total_tokens")
    assert mean_cost("again", Style.READ, "total_tokens") == pytest.approx(total, rel=0.1)
    assert mean_cost("table", Style.READ, "total_tokens") < 0.6 * total
    path = mean_cost("again", Style.DELEGATE, "critical_path_tokens")
    assert path < 0.35 * mean_cost("again", Style.READ, "critical_path_tokens")
    assert path < 0.6 * mean_cost("table", Style.READ, "critical_path_tokens")


def test_a_table_by_hand() -> None:
    """Fields a and b: 1 and 2 in C, 1 and 3 in E, 1 and 2 in A. C and E agree in a, C and A in both, E and A in a."""
    context = {"A": "a1b2", "C": "a1b2", "E": "a1b3"}
    task = Task("t", "*[1]C[2]E[3]A", "4", "ledger_pairs", context)
    language = TinyLanguage()
    rules = language.rules(LIMITS)
    policy = ScriptedPolicy(OracleActor(LedgerPairs(reading="table"), rules.protocol, Style.READ), language.codec)
    (record,) = rollout([RolloutRequest("e", task, 0)], policy, rules)
    assert isinstance(record, EpisodeRecord)
    assert record.answer == "4"
    assert [turn.generation.text for _, turn in record.turns()] == [
        "=0[1]C<read>C</read>",
        "=0a100b200[2]E<read>E</read>",
        "=0a1111b2301[3]A<read>A</read>",
        "=1a11123b23214<ans>4<end>",
    ]


def test_a_bound_on_comparisons_holds() -> None:
    rng = np.random.default_rng(0)
    source = LedgerPairs(max_comparisons=20)
    assert max(int(source.draw(rng).metadata["size"]) for _ in range(200)) <= 20
    assert LedgerPairs(min_length=5, max_comparisons=5).draw(rng).metadata["size"] == 5
    with pytest.raises(ConfigError, match=r"max_comparisons is 4; expected null or at least 5, the pairs of min_named"):
        LedgerPairs(min_length=5, max_comparisons=4)


def test_a_clone_question_is_told_from_the_root_question() -> None:
    assert parse("*[1]C[2]E") == ("C", "E")
    assert parse("*[1]") == ()
    assert parse("*[1]C") is None
    assert parse("?[1]C[2]E") is None
