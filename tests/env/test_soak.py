"""The recount of `tests/stress/soak.py`: it agrees with the game, and finds a game that counts wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from text_play import make, play

from selfcest_env import grants, kernel
from selfcest_env.budget import ZERO, Amounts, Ledger
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord, write_episode
from selfcest_env.symbolic.transition import Transition
from selfcest_env.text.counters import WordCounter
from selfcest_env.types import Boundary, Fault, Limits

ROOT = Path(__file__).parents[2]
TEXT = ("kernel", "scattered", "threads", "pettingzoo", "twin")


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    import soak

    return soak


@pytest.mark.parametrize("kind", [*TEXT, "symbolic"])
def test_a_few_hundred_hostile_episodes_add_up(soak: ModuleType, kind: str) -> None:
    found = soak.play(kind, 0, {"symbolic": 256, "twin": 25}.get(kind, 75))
    assert found.findings == []
    assert found.counts["with_clones"] > 0.15 * found.counts["episodes"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*TEXT, "symbolic"])
def test_whole_chunks_add_up_and_a_third_of_their_episodes_have_clones(soak: ModuleType, kind: str) -> None:
    found = soak.play(kind, 1)
    assert found.findings == []
    assert found.counts["with_clones"] > found.counts["episodes"] / 3


def shares_one_too_many(state: Any, free: Amounts, rules: Any, requests: Any) -> Any:
    found = grants.compute_call_grants(state, free, rules, requests)
    return found and [grant.plus(Amounts(1)) for grant in found]


def first_child_gets_a_clone_less(state: Any, free: Amounts, rules: Any, requests: Any) -> Any:
    found = grants.compute_call_grants(state, free, rules, requests)
    return found and [found[0]._replace(clones=found[0].clones and found[0].clones - 1), *found[1:]]


def goes_deeper(state: Any, free: Amounts, rules: Any, requests: Any) -> Any:
    found = grants.compute_call_grants(state, free, rules, requests)
    return found and [grant._replace(clones=9) for grant in found]


def keeps_nothing(state: Any, free: Amounts, rules: Any) -> Any:
    """A turn that leaves no room for one more answer."""
    tokens, last = grants.compute_turn_grant(state, free, rules)
    return tokens and tokens + (last is None), last


def grants_a_token_less(state: Any, free: Amounts, rules: Any) -> Any:
    tokens, last = grants.compute_turn_grant(state, free, rules)
    return (tokens - 1 if tokens and tokens > 1 else tokens), last


def refuses_pairs(state: Any, free: Amounts, rules: Any, requests: Any, keys: Any) -> Any:
    return Fault.OVER_BUDGET if len(requests) > 1 else grants.find_refusal(state, free, rules, requests, keys)


def names_another_reason(state: Any, free: Amounts, rules: Any, requests: Any, keys: Any) -> Any:
    found = grants.find_refusal(state, free, rules, requests, keys)
    return Fault.OVER_BUDGET if found is Fault.CONTEXT_FULL else found


def never_flows_back(ledger: Ledger, child_id: Any) -> None:
    account = ledger._accounts[child_id]
    if None not in account.granted:
        ledger._accounts[child_id] = account._replace(reserved=ZERO, spent=account.granted)
    CLOSE(ledger, child_id)


def forgets_a_prompt(ledger: Ledger, agent_id: Any, cost: Amounts) -> None:
    CHARGE(ledger, agent_id, ZERO if agent_id.depth else cost)


def later_blocks_at_half(counter: Any, messages: Any, boundary: Boundary) -> int:
    """Faults, replies and documents, in the ledger and in the facts."""
    return COUNT(counter, messages, boundary) // (1 if boundary is Boundary.OPENING else 2)


def openings_at_half(counter: Any, messages: Any, boundary: Boundary) -> int:
    return COUNT(counter, messages, boundary) // (2 if boundary is Boundary.OPENING else 1)


def clones_open_for_one(self: Kernel, *newborn: Any, **born_at: Any) -> Any:
    return NEWBORN(self, *newborn, **born_at)._replace(context_tokens=1)


def reply_limit(by: int) -> Callable[..., None]:
    def answer(self: Kernel, agent_id: Any, facts: Any, text: str) -> None:
        kept, limit = self.limits, self.limits.reply_tokens
        self.limits = kept if not limit else replace(kept, reply_tokens=limit + by)
        ANSWER(self, agent_id, facts, text)
        self.limits = kept

    return answer


CLOSE, CHARGE, JOIN, GRANTS = Ledger.close, Ledger.charge, Transition._join, Transition._share_balance
COUNT, NEWBORN, ANSWER = WordCounter.count, Kernel._make_child, Kernel._answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        (kernel, "compute_call_grants", shares_one_too_many),
        (kernel, "compute_call_grants", first_child_gets_a_clone_less),
        (kernel, "compute_call_grants", goes_deeper),
        (kernel, "compute_turn_grant", keeps_nothing),
        (kernel, "compute_turn_grant", grants_a_token_less),
        (kernel, "find_refusal", refuses_pairs),
        (kernel, "find_refusal", names_another_reason),
        (Ledger, "close", never_flows_back),
        (Ledger, "charge", forgets_a_prompt),
        (WordCounter, "count", later_blocks_at_half),
        (WordCounter, "count", openings_at_half),
        (Kernel, "_make_child", clones_open_for_one),
        (Kernel, "_answer", reply_limit(1)),
        (Kernel, "_answer", reply_limit(-1)),
    ],
)
def test_a_game_that_counts_wrongly_is_found(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(place, name, broken)
    found = (text for number in range(12) for text in soak.play("kernel", number, 60).findings)
    assert any(": root" in text for text in found)


def a_token_too_many(self: Transition, balance: Any, agents: Any, actions: Any) -> Any:
    return GRANTS(self, balance, agents, actions) + np.array([[1], [0], [0]], np.int32)


def joins_for_free(self: Transition, ended: Any) -> Any:
    before = self.flat.prompt_tokens.copy()
    ended_roots = JOIN(self, ended)
    self.flat.tokens_left += self.flat.prompt_tokens - before
    return ended_roots


@pytest.mark.parametrize(("name", "broken"), [("_share_balance", a_token_too_many), ("_join", joins_for_free)])
def test_a_game_in_numbers_that_counts_wrongly_is_found(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Transition, name, broken)
    found = soak.play("symbolic", 0, 256).findings + soak.play("symbolic", 1, 256).findings
    assert any("environment" in text for text in found)


def test_numbers_and_words_must_cost_the_same(soak: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def unrecorded(self: Transition, ended: Any) -> Any:
        before = self.flat.prompt_tokens.copy()
        ended_roots = JOIN(self, ended)
        self.flat.prompt_tokens[:] = before
        return ended_roots

    monkeypatch.setattr(Transition, "_join", unrecorded)
    assert any("in numbers" in text for text in soak.play("twin", 0, 15).findings)


def test_every_limit_is_counted_from_the_record_alone(soak: ModuleType) -> None:
    """A record of an ordinary episode, with each of its limits lowered to below what it used."""
    env = make(protocol="hermes", counter="words")
    records = [play(env, seed) for seed in range(40)]

    def findings(record: EpisodeRecord) -> list[str]:
        again = soak.RecordRecount("plain hermes", "words", drops=True)
        again(write_episode(record))
        return list(again.findings)

    assert all(findings(record) == [] for record in records)
    missed = []
    for item in fields(Limits):
        lowered = {"answer_reserve": 9}.get(item.name, 0)
        changed = [replace(record, limits=lower(record.limits, item.name, lowered)) for record in records]
        if not any(findings(record) for record in changed):
            missed.append(item.name)
    assert missed == []


def lower(limits: Any, name: str, value: int) -> Any:
    """Limits that the game would refuse, too."""
    other = object.__new__(type(limits))
    other.__dict__.update(limits.__dict__ | {name: value})
    return other


def test_half_a_line_of_the_store_and_chunks_of_an_earlier_format_are_played_again(
    soak: ModuleType, tmp_path: Path
) -> None:
    chunk = soak.play("kernel", 3, 20)
    line = chunk.row()
    earlier = json.dumps({name: value for name, value in json.loads(line).items() if name != "format"}) + "\n"
    (tmp_path / "store").write_text(earlier + line + line[: len(line) // 2], encoding="utf-8")
    assert list(soak.stored(tmp_path / "store")) == [chunk]
