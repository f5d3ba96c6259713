"""GSM8K, MATH, MATH-500, AIME and Countdown files: invented records in the official formats, and wrong files."""

import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, DataError, TaskError
from selfcest_env.graders import Grader
from selfcest_env.graders.by_source import BySource
from selfcest_env.graders.latex import normalise, parse_words
from selfcest_env.graders.math import MathMatch, SymbolicComparison
from selfcest_env.graders.rational import parse_rational
from selfcest_env.tasks import make_source
from selfcest_env.tasks.aime import AIME
from selfcest_env.tasks.countdown import CountdownFile
from selfcest_env.tasks.finite import squeeze
from selfcest_env.tasks.gsm8k import GSM8K
from selfcest_env.tasks.math import Math

SAMPLES = os.environ.get("SELFCEST_DATA")
MATH = os.environ.get("SELFCEST_MATH")

GSM = [
    {"question": "A hen lays 3 eggs a day. And in 2 days?", "answer": "She lays 3 * 2 = <<3*2=6>>6.\n#### 6"},
    {"question": "2000 + 125 stamps?", "answer": "2000 + 125 = $<<2000+125=2125>>2,125.\n#### 2,125"},
    {"question": "It was 2 degrees and fell by 12.", "answer": "Now 2 - 12 = <<2-12=-10>>-10.\n#### -10"},
]
PROBLEM = {
    "problem": "What is $1+1$?",
    "level": "Level 1",
    "type": "Prealgebra",
    "solution": "Not $\\boxed{3}$ but $\\boxed{\\frac{4}{2}}$.",
}
DRAWN = {**PROBLEM, "problem": "Area? [asy] draw((0,0)--(1,1)); [/asy]", "level": "Level ?", "type": "Geometry"}
FIVE_HUNDRED = {
    "problem": "Solve $x^2=2$ for $x>0$.",
    "solution": "So $x = \\boxed{\\sqrt{2}}$.",
    "answer": "\\sqrt{2}",
    "subject": "Algebra",
    "level": 5,
    "unique_id": "test/algebra/7.json",
}
AIME_CSV = """ID,Year,Problem Number,Question,Answer,Part
1983-1,1983,1,"Let $x$ , $y$ be two.\nFind ""their"" product.",60,
2022-II-8,2022,8,How many are there?,080 or 081 (both were accepted),II
2023-I-3,2023,3,"[asy] dot((0,0)); [/asy] Find it.",0,I
"""
NUMBERS = {"nums": [39, 9, 4], "target": 12, "solution": ["39+9=48", "48/4=12"], "optimal_path": "?", "start_size": 3}


def write(place: Path, *records: object) -> str:
    place.parent.mkdir(parents=True, exist_ok=True)
    lines = place.suffix == ".jsonl"
    text = "\n".join(map(json.dumps, records)) if lines else json.dumps(records[0] if len(records) == 1 else records)
    place.write_text(text, encoding="utf-8")
    return str(place)


def test_gsm8k(tmp_path: Path) -> None:
    source = GSM8K(write(tmp_path / "gsm.jsonl", *GSM))
    assert [task.answer for task in source.tasks()] == ["6", "2125", "-10"]
    first = source.tasks()[0]
    assert first.prompt == GSM[0]["question"]
    assert (first.source, first.metadata["steps"], first.metadata["record"]) == ("gsm8k", 1, 1)


def test_math_folder(tmp_path: Path) -> None:
    write(tmp_path / "MATH/test/prealgebra/10.json", PROBLEM)
    write(tmp_path / "MATH/test/geometry/2.json", DRAWN)
    source = Math(str(tmp_path / "MATH"))
    drawn, plain = source.tasks()
    assert (plain.answer, plain.metadata["level"], plain.metadata["subject"]) == (r"\frac{4}{2}", 1, "Prealgebra")
    assert drawn.metadata["drawing"]
    assert "level" not in drawn.metadata
    assert Math(str(tmp_path / "MATH"), drawings=False).tasks() == (plain,)
    assert Math(str(tmp_path / "MATH"), subjects=("Geometry",)).tasks() == (drawn,)
    assert Math(str(tmp_path / "MATH"), levels=(1, 2)).tasks() == (plain,)


def test_an_empty_box_is_skipped_and_counted(tmp_path: Path) -> None:
    """The official training folder has two such records, number_theory/7115 and 7117."""
    write(tmp_path / "MATH/train/prealgebra/10.json", PROBLEM)
    for number in (7115, 7117):
        unanswered = {**PROBLEM, "level": "Level 5", "solution": "First $\\boxed{3}$, in all $2+4=\\boxed{}$."}
        write(tmp_path / f"MATH/train/number_theory/{number}.json", unanswered)
    source = Math(str(tmp_path / "MATH/train"))
    with pytest.warns(UserWarning, match=r"math: left out 2 records of .*: an empty box \(.*/7115\.json.*/7117\.json"):
        assert len(source) == 1
    assert {why: len(places) for why, places in source.skipped.items()} == {"an empty box": 2}
    # What an option leaves out is no loss.
    assert Math(str(tmp_path / "MATH"), levels=(1,)).skipped == {}


def test_math_500_and_the_layout_of_the_hub(tmp_path: Path) -> None:
    path = write(tmp_path / "mixed.jsonl", FIVE_HUNDRED, {**PROBLEM, "level": "Level 5"}, PROBLEM)
    hard = make_source("math", path=path, levels=[5])
    assert isinstance(hard, Math)
    assert [task.answer for task in hard.tasks()] == [r"\sqrt{2}", r"\frac{4}{2}"]
    assert {task.metadata["level"] for task in hard.tasks()} == {5}


def test_aime_csv(tmp_path: Path) -> None:
    file = tmp_path / "AIME.csv"
    file.write_bytes(AIME_CSV.replace("\nFind", "\r\nFind").encode())
    first, ambiguous, drawn = AIME(str(file)).tasks()
    assert (first.answer, first.aliases, first.metadata["year"]) == ("60", (), 1983)
    assert first.prompt == 'Let $x$ , $y$ be two.\r\nFind "their" product.'
    assert (ambiguous.answer, ambiguous.aliases) == ("80", ("81",))
    assert drawn.answer == "0"
    assert AIME(str(file), last_year=1999).tasks() == (first,)
    assert AIME(str(file), first_year=2000, drawings=False).tasks() == (ambiguous,)


def test_aime_json_lines(tmp_path: Path) -> None:
    records = [
        {"id": 60, "problem": "How many?", "answer": "025"},
        {"problem": "And now?", "answer": 7, "year": "2025"},
    ]
    path = write(tmp_path / "aime.jsonl", *records)
    assert [task.answer for task in AIME(path).tasks()] == ["25", "7"]
    with pytest.raises(DataError, match=r"record 1: year is missing; expected a year, since first_year"):
        AIME(path, first_year=2024).tasks()


def test_countdown_file(tmp_path: Path) -> None:
    (task,) = CountdownFile(write(tmp_path / "val.json", [NUMBERS])).tasks()
    assert task.answer == "(39+9)/4"
    assert (task.metadata["numbers"], task.metadata["target"]) == ("39 9 4", 12)


def test_a_puzzle_is_its_numbers_and_its_target(tmp_path: Path) -> None:
    """Numbers that ran together were the same puzzle, and the same puzzle in another order was another one."""

    def identify(numbers: list[int], *steps: str) -> str:
        puzzle = {"nums": numbers, "target": 16, "solution": steps}
        source = CountdownFile(write(tmp_path / "p.json", [puzzle]))
        return source.identity(source.tasks()[0])

    assert identify([1, 12, 3], "1+12=13", "13+3=16") == identify([3, 12, 1], "1+12=13", "13+3=16")
    assert identify([1, 12, 3], "1+12=13", "13+3=16") != identify([11, 2, 3], "11+2=13", "13+3=16")


BROKEN = [
    (GSM8K, {"question": "q", "answer": "no mark"}, r"record 2: answer is 'no mark'; expected a solution that ends in"),
    (GSM8K, {"question": "q", "answer": "#### a lot"}, r"record 2: answer is '#### a lot'"),
    (GSM8K, {"question": "q"}, r"record 2: answer is missing; expected a string\. Keys found: question"),
    (Math, {**PROBLEM, "solution": "no box"}, r"record 2: solution is 'no box'; expected a text with a last"),
    (Math, {**PROBLEM, "answer": " "}, r"record 2: answer is ' '; expected a text with a last"),
    (Math, {**PROBLEM, "answer": "7" * 5000}, r"record 2: answer holds an answer of 5000 characters; expected at most"),
    (GSM8K, {"question": "q", "answer": "#### " + "7" * 5000}, r"record 2: answer is '#### 777"),
    (Math, {**PROBLEM, "level": 6}, r"record 2: level is 6; expected 'Level 1' to 'Level 5'"),
    (Math, {**PROBLEM, "level": "hard"}, r"record 2: level is 'hard'"),
    (Math, {"problem": "p", "level": 1, "solution": "s"}, r"record 2: type is missing"),
    (AIME, {"problem": "p", "answer": "1000"}, r"record 2: answer is '1000'; expected an integer from 0 to 999"),
    (AIME, {"problem": "p", "answer": r"\frac12"}, r"record 2: answer is "),
    (AIME, {"question": "p", "answer": "1"}, r"record 2: problem is missing"),
    (AIME, {"problem": " ", "answer": "1"}, r"record 2: the question is empty; expected a text"),
    (AIME, {"problem": "p", "answer": "1", "year": "last"}, r"record 2: year is 'last'; expected a year"),
    (CountdownFile, {**NUMBERS, "nums": [39, "9", 4]}, r"record 2: nums is \[39, '9', 4\]; expected a list of two"),
    (CountdownFile, {**NUMBERS, "nums": [39, 9, 4, 1]}, r"record 2: solution is .*expected steps such as"),
    (CountdownFile, {**NUMBERS, "solution": ["39+9=49", "48/4=12"]}, r"record 2: solution is"),
    (CountdownFile, {**NUMBERS, "solution": ["39+9=48", "48/4=13"]}, r"record 2: solution is"),
    (CountdownFile, {**NUMBERS, "target": 13}, r"record 2: solution is"),
    (CountdownFile, {**NUMBERS, "target": "12"}, r"record 2: target is '12'; expected a whole number"),
]
GOOD = {GSM8K: GSM[0], Math: PROBLEM, AIME: {"problem": "p", "answer": "1"}, CountdownFile: NUMBERS}


@pytest.mark.parametrize(("source", "record", "message"), BROKEN)
def test_a_wrong_record_is_named_by_file_number_and_key(
    source: type[GSM8K], record: object, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "data.jsonl", GOOD[source], record)
    with pytest.raises(DataError, match=r"data\.jsonl:2, " + message):
        source(path).tasks()


@pytest.mark.parametrize("source", GOOD)
def test_a_truncated_file_is_named(source: type[GSM8K], tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    text = json.dumps(GOOD[source])
    file.write_text(f"{text}\n{text[:-9]}")
    with pytest.raises(DataError, match=r"data\.jsonl:2, record 2: not valid JSON.*truncated"):
        source(str(file)).tasks()


def test_wrong_options() -> None:
    with pytest.raises(ConfigError, match=r"Math\.levels\[0\] is 6; expected a whole number from 1 to 5"):
        Math("MATH", levels=(6,))
    with pytest.raises(ConfigError, match=r"Math\.subjects\[0\] is 'Algebar'.*Did you mean 'Algebra'"):
        Math("MATH", subjects=("Algebar",))
    with pytest.raises(ConfigError, match=r"first_year is 2024, above last_year = 2000"):
        AIME("a.csv", first_year=2024, last_year=2000)
    with pytest.raises(ConfigError, match=r"CountdownFile\.phrasing is 'loud'"):
        CountdownFile("c.json", phrasing="loud")


def test_options_that_leave_nothing_out_of_a_file_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="math: no task in"):
        Math(write(tmp_path / "data.jsonl", PROBLEM), levels=(4,)).tasks()


def test_the_fitting_grader_takes_every_truth(tmp_path: Path) -> None:
    sources = [
        GSM8K(write(tmp_path / "g.jsonl", *GSM)),
        AIME(write(tmp_path / "a.jsonl", {"problem": "p", "answer": "025"})),
        CountdownFile(write(tmp_path / "c.json", [NUMBERS])),
    ]
    grader: Grader = BySource()
    for source in sources:
        for task in source.tasks():
            assert grader.grade(task, task.answer).correct, task
            assert grader.grade(task, f"Hence $\\boxed{{{task.answer}}}$.").correct, task
            assert not grader.grade(task, task.answer + "1").correct, task


@pytest.mark.skipif(SAMPLES is None, reason="SELFCEST_DATA is not set: no folder with samples of the official files")
def test_the_official_gsm8k_sample() -> None:
    source = GSM8K(f"{SAMPLES}/gsm8k")
    tasks = source.tasks()
    assert len(tasks) == 1000
    assert all(BySource().grade(task, f"\\boxed{{{int(task.answer):,}}}").correct for task in tasks)
    assert not any(BySource().grade(task, str(int(task.answer) + 1)).correct for task in tasks)
    parts = [GSM8K(f"{SAMPLES}/gsm8k", part=part) for part in ("train", "test")]
    assert sum(len(part) for part in parts) == 1000
    assert not {task.prompt for task in parts[0].tasks()} & {task.prompt for task in parts[1].tasks()}
    rngs = (np.random.default_rng(5), np.random.default_rng(5))
    assert source.draw(rngs[0]) == source.draw(rngs[1])


@pytest.mark.skipif(MATH is None, reason="SELFCEST_MATH is not set: no folder or file with the MATH problems")
def test_truths_of_math_equal_themselves_and_few_others() -> None:
    """5000 truths: each against itself, by the grader and by math-verify alone, and against the one after it."""
    pytest.importorskip("math_verify")
    tasks, grader = Math(str(MATH)).tasks()[:5000], MathMatch()
    assert all(grader.grade(task, f"\\boxed{{{task.answer}}}").correct for task in tasks)
    truths = [normalise(task.answer) for task in tasks]
    alone = [truth for truth in truths if parse_rational(truth) is None and parse_words(truth) is None]
    assert sum(SymbolicComparison(5.0).equal(truth, truth) for truth in alone) >= 0.95 * len(alone)
    neighbours = [(task, other) for task, other in pairwise(tasks) if squeeze(task.answer) != squeeze(other.answer)]
    equal = [(task.answer, other.answer) for task, other in neighbours if grader.grade(task, other.answer).correct]
    assert len(equal) <= 0.01 * len(neighbours), equal
