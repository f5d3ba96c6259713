"""`tests/stress/faults.py`: some of its faults, and that it sees a run that does not keep its promise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def faults() -> Iterator[ModuleType]:
    """With a run that is smaller still."""
    import faults

    whole = faults.RUN, faults.STEPS
    faults.RUN, faults.STEPS = deepcopy(faults.RUN), 2
    variant = faults.RUN["variants"]["delegating"]
    variant["rl"]["steps"] = 2
    variant["warmstart"]["phases"][0]["tokens"] = variant["warmstart"]["pool_tokens"] = 1000
    faults.RUN["evaluation"]["episodes"] = 2
    yield faults
    faults.RUN, faults.STEPS = whole


@pytest.fixture(scope="module")
def bench(faults: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    bench = faults.Bench(tmp_path_factory.mktemp("faults"))
    bench.base()
    return bench


@pytest.mark.slow
def test_a_killed_run_comes_to_the_same_bits(faults: ModuleType, bench: Any) -> None:
    fault = faults.inject(bench, "kill", 4)
    assert "update" in fault.what
    assert (fault.findings, fault.ended, fault.hits) == ([], "same bits", ["update"])
    assert fault.steps_lost <= 1
    assert fault.tokens_off == fault.bytes_lost == fault.crashes == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "kill:10",
        "term:9",
        "whole:1",
        "disk:0",
        "rot:0",
        "rot:3",
        "engine:0",
        "engine:1",
        "server:0",
        "server:1",
        "server:2",
    ],
)
def test_a_fault_of_every_kind_ends_as_is_promised(faults: ModuleType, bench: Any, name: str) -> None:
    kind, number = name.split(":")
    fault = faults.inject(bench, kind, int(number))
    assert fault.findings == []
    assert fault.ended
    assert set(fault.hits) <= set(faults.AIMS.get(kind, fault.hits))
    assert fault.hits


@pytest.mark.slow
def test_the_plan_is_a_hundred_and_hits_every_place(
    faults: ModuleType, bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(faults.PLAN.values()) == 100
    assert faults.PLAN["whole"] >= 10
    # Every kind takes its first place in turn from its number.
    asked: list[str] = []

    def asks(name: str, *_: Any) -> tuple[str, Any]:
        asked.append(name)
        return name, lambda: None

    monkeypatch.setattr(faults, "place", asks)
    monkeypatch.setattr(faults, "start", lambda *_, **__: faults.Ended(0, ""))
    for kind in ("kill", "term"):
        asked.clear()
        for number in range(faults.PLAN[kind]):
            faults.INJECT[kind](bench, faults.Fault(kind, number), tmp_path, faults.random.Random(number))
        assert set(asked) >= set(faults.PLACES)
    assert {n % len(faults.WHOLE) for n in range(faults.PLAN["whole"])} == set(range(len(faults.WHOLE)))


def test_a_run_that_was_over_before_its_fault_is_drawn_again(
    faults: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = []

    def late(bench: Any, fault: Any, output: Path, rng: Any) -> None:
        draws.append(rng.random())
        fault.cpu_s = 1.0
        if len(draws) == 3:
            fault.hits, fault.ended = ["update"], "same bits"

    monkeypatch.setitem(faults.INJECT, "kill", late)
    fault = faults.inject(bench, "kill", 0)
    assert (fault.drawn_again, fault.cpu_s, len(set(draws))) == (2, 3.0, 3)
    monkeypatch.setitem(faults.INJECT, "kill", lambda *_: None)
    assert "no fault came about" in faults.inject(bench, "kill", 0).findings[0]


@pytest.mark.slow
def test_damage_to_the_newest_checkpoint_is_a_step_lost(
    faults: ModuleType, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "ROTS", {"deleted": faults.ROTS["deleted"]})
    chosen = iter(["delegating/seed0/checkpoints/rl_000002", "manifest.json"])

    class Chooses:
        def choice(self, of: Any) -> Any:
            wanted = next(chosen)
            return next(one for one in of if str(one).endswith(wanted))

    fault = faults.Fault("rot", 2)
    with bench.output("rot:2") as output:
        faults.rot(bench, fault, output, Chooses())
    assert (fault.findings, fault.ended, fault.steps_lost) == ([], "same bits", 1)
    assert fault.tokens_off == fault.bytes_lost == 0


def change(path: Path, before: bytes, after: bytes) -> None:
    data = path.read_bytes()
    assert before in data
    path.write_bytes(data.replace(before, after, 1))


def test_a_run_that_does_not_keep_its_promise_is_seen(faults: ModuleType, bench: Any, tmp_path: Path) -> None:
    job = tmp_path / "run" / faults.JOB
    shutil.copytree(bench.folder / "base", tmp_path, dirs_exist_ok=True)

    def judged() -> Any:
        fault = faults.Fault("kill", 0)
        bench.behind(fault, tmp_path)
        bench.judge(fault, tmp_path, faults.Ended(0, ""))
        return fault

    assert judged().findings == []
    metrics = (job / "metrics.jsonl").read_bytes()
    row = next(row for row in faults.rows_of(job) if row["stage"] == "rl")
    booked = b'"sampled_tokens": %d' % row["sampled_tokens"]
    change(job / "metrics.jsonl", booked, b'"sampled_tokens": %d' % (row["sampled_tokens"] + 3))
    twice = judged()
    assert twice.tokens_off == 6, "too many in one step, too few in the next"
    assert twice.bytes_lost > 0
    assert any("metrics.jsonl" in text for text in twice.findings)
    (job / "metrics.jsonl").write_bytes(metrics)
    shutil.rmtree(job / "checkpoints" / "rl_000002")
    (job / ".partial.rl_000002").mkdir()
    behind = judged()
    assert (behind.steps_lost, behind.bytes_lost) == (1, 0)
    assert "checkpoints, left behind" in behind.findings[0]
    shutil.rmtree(job / "checkpoints")
    assert judged().steps_lost == 3, "a pool and two steps"


def test_what_counts_as_one_line(faults: ModuleType) -> None:
    warned = "/x.py:3: UserWarning: going on from a\n  warnings.warn(\nselfcest: a line\n"
    assert faults.Ended(3, warned).one_line
    assert faults.Ended(3, "selfcest: a line\n").one_line
    for said in (
        "",
        "selfcest: a line\nand another\n",
        "selfcest: a line\n  and another\n",
        "Warning: this is none of Python's\nselfcest: a line\n",
        "/x.py:3: UserWarning: a\n  warnings.warn(\n  another\nselfcest: a line\n",
        "/x.py:3: UserWarning: a\n",
        "another: a line\n",
        "Traceback (most recent call last):\n  here\nselfcest: a line\n",
    ):
        assert not faults.Ended(3, said).one_line, said


def test_the_evidence_counts_every_fault_and_what_was_not_measured(faults: ModuleType) -> None:
    held = faults.Fault("kill", 0, "SIGKILL", "same bits", hits=["update", "credit"], cpu_s=1.0, drawn_again=1)
    broke = faults.Fault("kill", 1, "SIGKILL", "", ["another end"], ["update"], None, 2, 3, 4, 1, 0, 1.0)
    served = faults.Fault("server", 1, "20%", "counted", hits=["tries fail"], failed={"500": 3}, tokens_off=0)
    found = faults.summary([held, broke, served], None)
    kill = found["kinds"]["kill"]
    assert kill.pop("not_hit") == [name for name in (*faults.PLACES, faults.MOMENT) if name not in ("update", "credit")]
    assert kill == {
        "runs": 2, "injected": 3, "failed": None, "survived": 1, "ended": {"finding": 1, "same bits": 1},
        "steps_lost": 2, "tokens_off": 3, "bytes_lost": 4,
        "measured": {"steps_lost": 1, "tokens_off": 1, "bytes_lost": 1},
        "crashes": 1, "drawn_again": 1, "hits": {"update": 2, "credit": 1}, "cpu_s": 2.0,
    }  # fmt: skip
    server = found["kinds"]["server"]
    assert (server["injected"], server["failed"]) == (1, {"500": 3})
    assert (server["steps_lost"], server["tokens_off"], server["bytes_lost"]) == (None, 0, None)
    assert found["findings"] == ["kill:1 (SIGKILL): another end"]
    assert json.loads(json.dumps(found)) == found
