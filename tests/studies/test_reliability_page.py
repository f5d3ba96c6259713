"""The page of `tests/stress/reliability.py`: what stands in the documentation is what it prints of the evidence."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reliability() -> ModuleType:
    import reliability

    return reliability


def test_the_page_is_what_the_evidence_says(reliability: ModuleType) -> None:
    evidence = reliability.stored()
    assert {"soak", "faults"} <= evidence.keys()
    assert reliability.page(evidence) == (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_a_part_that_was_not_made_is_said_not_to_be_there(reliability: ModuleType, tmp_path: Path) -> None:
    assert reliability.stored(tmp_path) == {}
    said = reliability.page({})
    for part in ("fuzz", "soak", "faults"):
        assert f"`tests/stress/{part}.py` has stored nothing yet" in said
    assert "not measured" in said


def test_findings_and_shortfalls_stand_on_the_page(reliability: ModuleType) -> None:
    kind = {"runs": 3, "injected": 4, "failed": None, "survived": 2, "ended": {"finding": 1, "same bits": 2},
            "steps_lost": 5, "tokens_off": 7, "bytes_lost": 11,
            "measured": {"steps_lost": 3, "tokens_off": 3, "bytes_lost": 2}, "crashes": 1, "drawn_again": 1,
            "hits": {"update": 3, "credit": 1}, "not_hit": ["report"], "cpu_s": 1.0}  # fmt: skip
    server = {**kind, "steps_lost": None, "tokens_off": 0, "bytes_lost": None, "failed": {"500": 40, "drip": 2},
              "measured": {"steps_lost": 0, "tokens_off": 3, "bytes_lost": 0}, "not_hit": []}  # fmt: skip
    cost = {"commit": "c", "config": "quick.yaml", "arm": "a", "steps": 3, "checkpoint_bytes": 2_000_000,
            "checkpoint_wall_s": 0.2, "step_wall_s": 1.0, "share_wall": 0.2, "share_cpu": 0.1,
            "checkpoint_every": 20}  # fmt: skip
    faults = {"commit": "c", "kinds": {"kill": kind, "server": server}, "runs": 6, "steps": 4, "checkpoint_every": 1,
              "cpu_s": 9.0, "checkpoint": cost,
              "findings": ["kill:3 (SIGKILL in update 1): another end"]}  # fmt: skip
    target = {"inputs": 10, "refusals": 4, "findings": 1, "first_findings": ["seed 3 hangs"],
              "longest_ms": 12.5, "exponent": None}  # fmt: skip
    said = reliability.page({"faults": faults, "fuzz": {"commit": "d", "executed": 0, "targets": {"terse": target}}})
    for text in (
        "| Steps lost, at most (not measured in all runs of: server that fails) | 5 | 1 |",
        "| SIGKILL | 3 | 4 | - | 2 | 5 | 7 | 11 (of 2 runs) | 1 | finding 1, same bits 2 |",
        "| server that fails | 3 | 4 | 42 | 2 | - | 0 | - | 1 |",
        "- SIGKILL: update 3, credit 1. **Not hit:** report.",
        "Requests failed: 500 40, drip 2.",
        "(`checkpoint_every: 1`)",
        "| Tokens lost or counted twice | 7 | 0 |",
        "| Survivors of these | 4 | all |",
        "- faults: kill:3 (SIGKILL in update 1): another end",
        "- fuzz `terse`: seed 3 hangs",
        "| `terse` | 10 | 4 | 1 | 12.5 | - |",
        "not less than 5%",
    ):
        assert text in said
