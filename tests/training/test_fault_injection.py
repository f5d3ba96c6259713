"""`benchmarks/faults.py`: some of its faults, and that it sees a run that does not keep its promise."""

from __future__ import annotations

import json
import shutil
import sys
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
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import faults

    whole = faults.RUN, faults.STEPS
    faults.RUN, faults.STEPS = deepcopy(faults.RUN), 2
    arm = faults.RUN["arms"]["delegating"]
    arm["rl"]["steps"] = 2
    arm["warmstart"]["phases"][0]["tokens"] = arm["warmstart"]["pool_tokens"] = 1000
    faults.RUN["evaluation"]["episodes"] = 2
    yield faults
    faults.RUN, faults.STEPS = whole
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def bench(faults: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    bench = faults.Bench(tmp_path_factory.mktemp("faults"))
    bench.base()
    return bench


def test_a_killed_run_comes_to_the_same_bits(faults: ModuleType, bench: Any) -> None:
    fault = faults.inject(bench, "kill", 0)
    assert "update 0" in fault.what
    assert (fault.findings, fault.ended, fault.injected) == ([], "same bits", 1)
    assert fault.steps_lost <= 1
    assert fault.tokens_off == fault.bytes_lost == fault.crashes == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kill:1", "term:1", "whole:0", "disk:0", "rot:0", "engine:0", "server:0", "server:1"])
def test_a_fault_of_every_kind_ends_as_is_promised(faults: ModuleType, bench: Any, name: str) -> None:
    kind, number = name.split(":")
    fault = faults.inject(bench, kind, int(number))
    assert fault.findings == []
    assert fault.ended


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
    assert not faults.Ended(3, "").one_line
    assert not faults.Ended(3, "selfcest: a line\nand another\n").one_line
    assert not faults.Ended(4, "Traceback (most recent call last):\n  here\nselfcest: a line\n").one_line


def test_the_evidence_counts_every_fault(faults: ModuleType) -> None:
    held = faults.Fault("kill", 0, "SIGKILL", "same bits", injected=2, cpu_s=1.0)
    broke = faults.Fault("kill", 1, "SIGKILL", "", ["another end"], 2, 3, 4, 1, 1, 1.0)
    found = faults.summary([held, broke], None)
    assert found["kinds"]["kill"] == {
        "runs": 2, "injected": 3, "survived": 1, "ended": {"finding": 1, "same bits": 1}, "steps_lost": 2,
        "tokens_off": 3, "bytes_lost": 4, "crashes": 1, "cpu_s": 2.0,
    }  # fmt: skip
    assert found["findings"] == ["kill:1 (SIGKILL): another end"]
    assert json.loads(json.dumps(found)) == found
