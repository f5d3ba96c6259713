"""Scores as models write them: read as they were meant, or not at all."""

from __future__ import annotations

import time

import pytest

from selfcest_methods.score_text import read_scores


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("7", 7.0), ("+7", 7.0), ("7.", 7.0), ("**7.5**", 7.5), (".5", 0.5), ("-0", 0.0), ("- 7", 7.0),
        ("2/10", 2.0), ("2 / 10", 2.0), ("2 out of 10", 2.0), ("2 of 10", 2.0), ("3 of 10", 3.0),
        ("3/5", 6.0), ("3 out of 5", 6.0), ("20%", 2.0), ("10", 10.0), ("0", 0.0),
        ("1. score: 7", 7.0), ("1) 7", 7.0), ("Assessed:\n1. score: 7/10\n", 7.0), ("1. 7 out of 10", 7.0),
        ("from 0 to 10: 5", 5.0), ("On a scale of 0-10: 5", 5.0), ("Score (out of 10): 5", 5.0), ("(/10) 5", 5.0),
    ],
)  # fmt: skip
def test_a_score_from_0_to_10(text: str, score: float) -> None:
    assert read_scores(text, 1, 10) == (score,)


@pytest.mark.parametrize(
    "text",
    [
        None, "", "hard", "-3", "−3", "11", "12/10", "-2/10", "7/0", "7/-10", "150%", "7-8", "7 or 8", "7,5", "nan",
        "inf", "1e1", "7th", "x7", "3/5/10", "1.2.3", "7. Two of 2 steps", "1. It is trivial, 2 steps", "2. score: 7",
        "Part 2 of 3", "3 of 4 clones can do it", "2 of 100", "2 of 10%",
        "７", "7²", "9" * 400, "7/" + "9" * 400, "0-10", "from 0 to 10",
    ],
)  # fmt: skip
def test_what_could_mean_something_else_is_not_read(text: str | None) -> None:
    assert read_scores(text, 1, 10) is None


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("0.8 1", (0.8, 1.0)), ("value 0.8, sure 0.9", (0.8, 0.9)), ("0.8,0.9", (0.8, 0.9)), ("0 1", (0.0, 1.0)),
        ("1. 0.8\n2. 0.9", (0.8, 0.9)), ("1. Value: 80%\n2. Sure: 9/10", (0.8, 0.9)), ("0.8 (sure: 90%)", (0.8, 0.9)),
        ("0.8", None), ("0.5 0.5 0.5", None), ("7 1", None), ("-0.5 1", None), ("2. 0.8\n3. 0.9", None), ("0-1", None),
    ],
)  # fmt: skip
def test_two_scores_from_0_to_1(text: str, scores: tuple[float, ...] | None) -> None:
    assert read_scores(text, 2, 1) == (scores and pytest.approx(scores))


def test_long_texts_are_read_in_no_time() -> None:
    began = time.process_time()
    for text in (
        "7" * 50_000 + "x",
        "7 " * 20_000,
        "1." * 20_000,
        "1. 7" + " " * 50_000 + "x",
        "1. 7" + "out" * 20_000,
    ):
        assert read_scores(text, 1, 10) is None or text.endswith(" x")
    assert time.process_time() - began < 5  # it takes a fraction of a second; a pattern that backtracks takes hours
