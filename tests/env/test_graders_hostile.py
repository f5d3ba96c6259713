"""The corpus of the benchmark, against every grader that needs no worker: nothing raises, nothing is executed."""

import re
import runpy
import time
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


def test_answers_in_odd_forms_are_judged_as_a_reader_would_but_for_the_rows_of_the_page() -> None:
    answers = BENCHMARK.odd_answers()
    assert (sum(odd.right for odd in answers), sum(not odd.right for odd in answers)) == (2000, 2000)
    assert {odd.grader for odd in answers if odd.right} == {odd.grader for odd in answers if not odd.right}
    page = (FILE.parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
    for odd in BENCHMARK.disagreements(symbolic=False):
        form = odd.form.split("\n")[-1].strip("| ").format(*[".*"] * 2) if "{" in odd.form else odd.form
        row = rf"^\| `{odd.grader}` \| `[^`]*` \| `{form}` \| {'right' if odd.right else 'wrong'} \|"
        assert re.search(row, page, re.MULTILINE), (odd.grader, odd.task.answer, odd.answer)
