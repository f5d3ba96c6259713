"""The corpus of the benchmark, against every grader that needs no worker: nothing raises, nothing is executed."""

import runpy
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from selfcest_env.graders import GRADERS
from selfcest_env.graders.math import MathMatch

FILE = Path(__file__).parents[2] / "benchmarks" / "graders.py"
BENCHMARK = SimpleNamespace(**runpy.run_path(str(FILE), run_name="benchmark"))


@pytest.mark.parametrize("name", sorted({*GRADERS} - {"by_source"}))
def test_hostile_answers(name: str, tmp_path: Path) -> None:
    sentinel = tmp_path / "s"
    options = {"symbolic": False} if name == "math" else {}
    grader = GRADERS.make(name, options, where="")
    for kind, answer in BENCHMARK.hostile_answers(sentinel):
        start = time.process_time()
        grade = grader.grade(BENCHMARK.task_for(name), answer)
        assert time.process_time() - start < 1.0, (kind, answer[:40])
        assert not grade.correct, (kind, answer[:40])
    assert not sentinel.exists()


def test_code_reaches_math_verify_and_is_not_executed(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    sentinel, grader = tmp_path / "s", MathMatch(timeout_s=10)
    assert len(BENCHMARK.code(sentinel)) < 300  # short enough not to be refused for its length
    for kind, answer in BENCHMARK.hostile_answers(sentinel):
        if kind == "code":
            assert not grader.grade(BENCHMARK.SYMBOLIC_TASK, answer).correct
    assert not sentinel.exists()
    exec(compile(BENCHMARK.code(sentinel), "control", "eval"))
    assert sentinel.exists()


@pytest.mark.slow
def test_answers_in_odd_forms_are_judged_as_a_reader_would_but_for_the_rows_of_the_page() -> None:
    labels = Counter((odd.grader, odd.right) for odd in BENCHMARK.odd_answers())
    assert len(labels) == 12
    assert min(labels.values()) >= 300
    page = (FILE.parents[1] / "docs" / "reference" / "odd_answers.md").read_text(encoding="utf-8")
    disagreements = BENCHMARK.disagreements(symbolic=False)
    for row in {BENCHMARK.row_start(odd) for odd in disagreements}:
        assert f"\n{row} " in page
    # As it trains, no grader takes a wrong answer for right.
    assert {odd.grader for odd in disagreements if not odd.right} == {BENCHMARK.LENIENT_NUMBER}
