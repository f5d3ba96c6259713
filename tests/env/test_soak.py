"""The recount of `benchmarks/soak.py`: it agrees with the game, and finds a game that counts wrongly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from selfcest_env import grants, kernel
from selfcest_env.budget import ZERO, Amounts, Ledger
from selfcest_env.record import EpisodeRecord, write_episode
from selfcest_env.symbolic.transition import Transition
from selfcest_env.types import Limits

sys.path.insert(0, str(Path(__file__).parent))

from text_play import make, play

ROOT = Path(__file__).parents[2]
TEXT = ("kernel", "scattered", "threads", "pettingzoo", "twin")


@pytest.fixture(scope="module")
def soak() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import soak

    yield soak
    sys.path.remove(str(ROOT / "benchmarks"))


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
    found = grants.call_grants(state, free, rules, requests)
    return found and [grant.plus(Amounts(1)) for grant in found]


def keeps_nothing(state: Any, free: Amounts, rules: Any) -> Any:
    """A turn that leaves no room for one more answer."""
    tokens, last = grants.turn_grant(state, free, rules)
    return tokens and tokens + (last is None), last


def goes_deeper(state: Any, free: Amounts, rules: Any, requests: Any) -> Any:
    found = grants.call_grants(state, free, rules, requests)
    return found and [grant._replace(clones=9) for grant in found]


def never_flows_back(ledger: Ledger, child_id: Any) -> None:
    account = ledger._accounts[child_id]
    ledger._accounts[child_id] = account._replace(reserved=ZERO, spent=account.granted)
    if None not in account.granted:
        CLOSE(ledger, child_id)
    else:
        ledger._accounts[child_id] = account
        CLOSE(ledger, child_id)


def forgets_a_prompt(ledger: Ledger, agent_id: Any, cost: Amounts) -> None:
    CHARGE(ledger, agent_id, ZERO if agent_id.depth else cost)


CLOSE, CHARGE, JOIN, GRANTS = Ledger.close, Ledger.charge, Transition._join, Transition._grants


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        (kernel, "call_grants", shares_one_too_many),
        (kernel, "call_grants", goes_deeper),
        (kernel, "turn_grant", keeps_nothing),
        (Ledger, "close", never_flows_back),
        (Ledger, "charge", forgets_a_prompt),
    ],
)
def test_a_ledger_that_counts_wrongly_is_found(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(place, name, broken)
    chunk = soak.play("kernel", 0, 60)
    assert any(": root" in text or " costs at least " in text for text in chunk.findings), chunk.findings


def a_token_too_many(self: Transition, left: Any, who: Any, action: Any) -> Any:
    return GRANTS(self, left, who, action) + np.array([[1], [0], [0]], np.int32)


def joins_for_free(self: Transition) -> None:
    before = self.flat.prompt_tokens.copy()
    JOIN(self)
    self.flat.tokens_left += self.flat.prompt_tokens - before


@pytest.mark.parametrize(("name", "broken"), [("_grants", a_token_too_many), ("_join", joins_for_free)])
def test_a_game_in_numbers_that_counts_wrongly_is_found(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Transition, name, broken)
    found = soak.play("symbolic", 0, 256).findings + soak.play("symbolic", 1, 256).findings
    assert any("environment" in text for text in found)


def test_every_limit_is_counted_from_the_record_alone(soak: ModuleType) -> None:
    """A record of an ordinary episode, with each of its limits lowered to below what it used."""
    env = make(protocol="hermes", counter="words")
    records = [play(env, seed) for seed in range(40)]

    def findings(record: EpisodeRecord) -> list[str]:
        again = soak.Recount("hermes", soak.COUNTS["words"], "words", {}, drops=True)
        again(write_episode(record))
        return [*again.findings, *soak.contradictions(again.prices)]

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


def test_half_a_line_of_the_store_is_played_again_and_prices_must_agree(soak: ModuleType, tmp_path: Path) -> None:
    chunk = soak.play("kernel", 3, 20)
    line = chunk.row()
    (tmp_path / "store").write_text(line + line[: len(line) // 2], encoding="utf-8")
    [found] = soak.stored(tmp_path / "store")
    assert found == chunk
    one, other = soak.Price(3, 9, "a", "a"), soak.Price(10, 12, "b", "b")
    one.meet(other)
    assert soak.contradictions({"x": one}) == ["x costs at least 10 in b and at most 9 in a"]
