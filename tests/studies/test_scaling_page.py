"""The simulation of the study `scaling`: its clock by hand and against `rollout`; the page against the evidence."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from selfcest_agents.policy import PolicyRequest, ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_agents.tiny import TinyLanguage
from selfcest_env.record import Generation
from selfcest_env.tasks import make_source
from selfcest_env.text.protocols import make_protocol
from selfcest_env.types import Limits, TurnKey

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scaling() -> ModuleType:
    return importlib.import_module("studies.scaling.study")


def curve(scaling: ModuleType, *points: tuple[int, float]) -> Any:
    return scaling.ThroughputCurve("e", "m", "here", "by hand", points)


TWO = [[(1, 10, [1, 2]), (1, 5, [])], [(1, 20, [])], [(1, 4, []), (1, 4, [])]]  # a root that calls two


def test_a_tree_by_hand(scaling: ModuleType) -> None:
    unit = curve(scaling, (1, 1.0), (2, 2.0), (4, 4.0))  # a token of every row each second
    assert scaling.part_seconds([TWO], unit, 4) == 10 + 20 + 5
    assert scaling.part_seconds([TWO], unit, 1) == 10 + 20 + 4 + 4 + 5
    assert scaling.tokens([TWO]) == 43
    slower = curve(scaling, (1, 1.0), (2, 1.0))  # two rows are half as fast each
    assert scaling.part_seconds([TWO], slower, 2) == 10 + (8 * 2 + 12) + 5


def test_weights_come_as_the_lag_says(scaling: ModuleType) -> None:
    assert scaling.order_of_steps(0, 4) == [0, 1, 2, 3]
    assert scaling.order_of_steps(1, 4) == [0, 0, 1, 2]
    assert scaling.order_of_steps(3, 5) == [0, 0, 0, 0, 1]


def test_steps_by_hand(scaling: ModuleType) -> None:
    parts = [[4.0, 10.0]] * 3
    assert scaling.timeline(parts, 0, 2.0) == [12, 24, 36]
    assert scaling.timeline(parts, 1, 2.0) == [12, 22, 32]
    assert scaling.timeline(parts, 1, 15.0) == [25, 40, 55]


def test_a_worker_goes_on_while_another_decodes(scaling: ModuleType) -> None:
    unit = curve(scaling, (1, 1.0), (64, 64.0))
    short, long = [[(1, 4, [])]], [[(1, 10, [])]]
    work = [[[short], [long]], [[long], [short]], [[short], [long]]]
    # Weights of the first update are there at 12; until then the second step runs behind the first.
    assert scaling.overlapped(work, 1, 2.0, unit) == [12, 14, 24]
    # Without a lag a worker waits for the weights, and with one row the parts of a worker queue.
    assert scaling.overlapped(work, 0, 2.0, unit) == [12, 24, 36]


class Clocked:
    """A policy that says what was recorded, when the simulated engine has decoded it."""

    def __init__(self, scaling: ModuleType, records: Sequence[Any], clock: Any) -> None:
        self._said = {
            TurnKey(record.episode_id, agent.agent_id, i): turn.generation
            for record in records
            for agent in record.agents
            for i, turn in enumerate(agent.turns)
        }
        self._clock, self._ready = clock, list[tuple[TurnKey, Generation]]()

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        for request in requests:
            made = self._said[request.key]
            self._clock.decode(len(made.token_ids), lambda key=request.key, made=made: self._ready.append((key, made)))

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        self._clock.run(over=lambda: bool(self._ready))
        found, self._ready = self._ready, []
        return found

    def cancel(self, keys: Any) -> None: ...


@pytest.mark.parametrize("slots", [4, 512])
def test_a_part_takes_what_it_takes_in_rollout(scaling: ModuleType, slots: int) -> None:
    language = TinyLanguage()
    rules = language.rules(Limits(total_tokens=600, turn_tokens=64))
    source = make_source("range_sum", min_length=4, max_length=16)
    rng = np.random.default_rng(0)
    requests = [RolloutRequest(f"e{i}", source.draw(rng), i) for i in range(24)]
    records = rollout(requests, ScriptedPolicy(OracleActor(source, make_protocol("terse")), language.codec), rules)
    assert sum(record.cost.clones for record in records) > 24
    measured = scaling.curves()["measured"]
    clock = scaling.Clock(measured, slots)
    again = rollout(requests, Clocked(scaling, records, clock), rules)
    assert [record.cost for record in again] == [record.cost for record in records]
    shapes = [scaling.shape_of(record) for record in records]
    exact = slots == 512  # a full engine takes what ended together in another order
    assert scaling.part_seconds(shapes, measured, slots) == pytest.approx(clock.now, rel=1e-9 if exact else 0.02)


def test_balance_is_of_what_is_cut_and_dealt(scaling: ModuleType) -> None:
    pool = json.loads((scaling.STORE / "episodes.json").read_text(encoding="utf-8"))["episodes"]
    step = scaling.draws(pool, "recorded", scaling.STRONG, 0)
    sizes = scaling.micro_batches(step)
    assert max(sizes) <= scaling.BATCH
    assert sum(sizes) >= sum(turn[0] + turn[1] for episode in step for agent in episode for turn in agent)
    assert scaling.stored()["results"]["balance"]["recorded"] == list(scaling.balance(pool, "recorded"))


def test_a_stored_row_is_made_again(scaling: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scaling.stored()
    monkeypatch.setattr(scaling, "WORKERS", (1, 2))
    for kind, of_engine in scaling.curves().items():
        rows = list(scaling.simulate(found["episodes"]["episodes"], of_engine, "heavy", weak=True))
        assert rows == found["results"][f"{kind} curve, heavy tail, weak scaling"][: len(rows)]


def test_the_page_is_what_the_evidence_says(scaling: ModuleType) -> None:
    found, page = scaling.stored(), scaling.PAGE.read_text(encoding="utf-8")
    assert scaling.section(found["results"], found["episodes"]) in page
    assert scaling.with_section(page, scaling.section(found["results"], found["episodes"])) == page
