"""The batches that a study times: which instances they have, what is stored, and the table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import study_players
from rich.console import Console
from test_study_run import small

from selfcest_cli.study import run_study
from selfcest_env.errors import ConfigError, RecordError
from selfcest_eval.play.batch_timing import AT_ONCE, FILE, StudyTiming, check_batches, read_study_timings, time_study
from selfcest_eval.play.config import StudyConfig, parse_study
from selfcest_eval.play.study import Study
from selfcest_eval.report import study_report

NUM_INSTANCES = 4 * (AT_ONCE + 1)


def make_config(tmp_path: Path, **changes: Any) -> StudyConfig:
    data = small(
        tmp_path,
        strategies={"delegate": {}, "monolithic": {}},
        budgets=[None],
        seeds=[0, 1],
        episodes=NUM_INSTANCES,
        timed_batches=3,
    )
    data["eval_sets"] = data["eval_sets"][:1]
    return parse_study({**data, **changes})


def count_seconds() -> Iterator[float]:
    """Yield times at which batch n, from 0, takes n + 1 seconds."""
    now = 0.0
    for number in range(10**6):
        yield now
        now += number % 4 + 1
        yield now


def test_batches_have_a_warm_up_and_their_instances_differ(tmp_path: Path) -> None:
    study = Study(make_config(tmp_path))
    check_batches(study)
    times = count_seconds()
    study_players.roots.clear()
    lines: list[str] = []
    timings = time_study(study, tmp_path, lines.append, lambda: next(times))
    # Only the first seed, with four batches of one and of sixteen requests for each strategy.
    assert [(timing.strategy, timing.requests) for timing in timings] == [
        ("delegate", 1),
        ("delegate", 16),
        ("monolithic", 1),
        ("monolithic", 16),
    ]
    # Every instance plays once for each strategy: 64 in four batches of sixteen, four alone.
    assert list(study_players.roots.values()) == [2] * NUM_INSTANCES
    # The warm-up took one second.
    assert all(timing.seconds == (2.0, 3.0, 4.0) for timing in timings)
    assert timings[1].per_request() == (3 / 16, 2 / 16, 4 / 16)
    assert len(lines) == 4
    # Stored timings are not measured again, and another number of batches is.
    study_players.roots.clear()
    assert time_study(study, tmp_path, lines.append, lambda: next(times)) == timings
    assert not study_players.roots
    other = Study(make_config(tmp_path, timed_batches=4, episodes=85, strategies={"monolithic": {}}))
    assert len(time_study(other, tmp_path, lines.append, lambda: next(times))) == 2
    assert {len(timing.seconds) for timing in read_study_timings(tmp_path)} == {4}


def test_the_table_has_latency_beside_throughput(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_report, "draw_frontiers", lambda *_: None)
    folder = run_study(make_config(tmp_path, seeds=[0]), resume=False, console=Console(quiet=True))
    report = (folder / "table.md").read_text(encoding="utf-8")
    assert "## Latency and throughput\n\nMedian, minimum and maximum of 3 batches after a warm-up" in report
    number = r"[\d.e+-]+ \[[\d.e+-]+, [\d.e+-]+\]"
    assert re.search(r"\| latency of one request \| seconds per request, 16 at once \|", report)
    for strategy in ("delegate", "monolithic"):
        assert re.search(rf"\| its limits \| {strategy} \| {number} \| {number} \|", report)


def test_too_few_instances_or_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"timed_batches is 2; expected at least 3, or 0 for none"):
        make_config(tmp_path, timed_batches=2)
    with pytest.raises(ConfigError, match=r"has 67 instances; expected at least 68: raise episodes and the limit"):
        run_study(make_config(tmp_path, episodes=67), resume=False, console=Console(quiet=True))
    check_batches(Study(make_config(tmp_path, episodes=4, timed_batches=0)))


def test_a_damaged_file_of_timings_is_refused(tmp_path: Path) -> None:
    assert read_study_timings(tmp_path) == []
    (tmp_path / FILE).write_text('{"key": 1}\n', encoding="utf-8")
    with pytest.raises(RecordError, match=r"timings.jsonl cannot be read: .*; remove it, and the study is timed again"):
        read_study_timings(tmp_path)
    assert StudyTiming("k", "f", "s", "a", None, 2, (4.0,)).per_request() == (2, 2, 2)
