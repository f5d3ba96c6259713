"""Exact match, F1 and supporting facts: by hand, by the rules of each data set, and against torchmetrics."""

import random

import pytest

from selfcest_env.errors import RewardError
from selfcest_env.graders.qa import QuestionAnswer, answer_overlap, normalize_answer, set_overlap
from selfcest_env.reward import make_reward
from selfcest_env.types import Task


def task(answer: str, *aliases: str, rule: str = "squad") -> Task:
    return Task("t", "?", answer, "x", aliases=aliases, metadata={"qa_rule": rule})


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Answer!", "answer"), ("U.S.", "us"), ("an A-team", "ateam"), ("theatre", "theatre"), ("", ""),
        ("Ångström’s", "ångström’s"), ("the a an", ""), ("1,204", "1204"), ("Paris.", "paris"),
    ],
)  # fmt: skip
def test_normalisation(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


def test_f1_by_hand() -> None:
    # Common words: the two of "new york", once each. 2 of 3 words, 2 of 4 words: F1 = 2 * (2/3) * (1/2) / (2/3 + 1/2).
    found = answer_overlap("New York City", "new york, new jersey")
    assert (found.exact, found.precision, found.recall) == (0.0, 2 / 3, 2 / 4)
    assert found.f1 == pytest.approx(4 / 7)
    assert answer_overlap("The U.S.", "US").exact == 1.0
    assert answer_overlap("Paris", "London").f1 == 0.0


@pytest.mark.parametrize(
    ("prediction", "truth", "squad", "hotpotqa"),
    [
        ("yes it is", "yes", 0.5, 0.0),  # HotpotQA: a closed answer agrees with itself alone
        ("no", "no way", 2 / 3, 0.0),
        ("yes", "Yes.", 1.0, 1.0),
        ("noanswer here", "noanswer", 2 / 3, 0.0),
        ("no man", "no mans", 0.5, 0.5),
        ("the", "a", 1.0, 0.0),  # no word on either side
        ("the", "cat", 0.0, 0.0),
    ],
)
def test_rules(prediction: str, truth: str, squad: float, hotpotqa: float) -> None:
    assert answer_overlap(prediction, truth, "squad").f1 == pytest.approx(squad)
    assert answer_overlap(prediction, truth, "hotpotqa").f1 == pytest.approx(hotpotqa)


def test_the_grader() -> None:
    exact, partial = QuestionAnswer(), QuestionAnswer("f1")
    truth = task("New York", "NYC")
    assert exact.grade(truth, " the NYC. ") == partial.grade(truth, "NYC")
    assert exact.grade(truth, "NYC").correct
    grade = partial.grade(truth, "New York City")
    assert (grade.score, grade.correct, grade.well_formed) == (pytest.approx(0.8), False, True)
    assert exact.grade(truth, "New York City").score == 0.0
    for nothing in (None, "", "  "):
        assert not exact.grade(truth, nothing).well_formed
    assert partial.grade(task("yes", rule="hotpotqa"), "yes indeed").score == 0.0
    assert partial.grade(task("yes"), "yes indeed").score > 0.0
    assert exact.grade(truth, "x" * 2_000_000).note == "answer too long"
    with pytest.raises(RewardError, match="qa_rule is 'other'; expected one of squad, hotpotqa"):
        exact.grade(task("x", rule="other"), "x")
    assert make_reward("default", grader={"name": "question_answer", "score": "f1"}).grader == partial


def test_supporting_facts() -> None:
    # 1 of 2 predicted is right, 1 of 3 true is found: F1 = 2 * (1/2) * (1/3) / (1/2 + 1/3).
    found = set_overlap({("A", 0), ("B", 1)}, {("A", 0), ("C", 0), ("D", 2)})
    assert (found.exact, found.precision, found.recall) == (0.0, 1 / 2, 1 / 3)
    assert found.f1 == pytest.approx(0.4)
    assert set_overlap({1, 2}, {2, 1}).exact == 1.0
    assert set_overlap(set(), {1}).f1 == 0.0
    assert set_overlap(set(), set()).f1 == 1.0
    joint = answer_overlap("New York City", "New York") * found
    # Precision 2/3 * 1/2, recall 1 * 1/3.
    assert (joint.exact, joint.precision, joint.recall) == (0.0, pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert joint.f1 == pytest.approx(1 / 3)


def test_against_torchmetrics() -> None:
    text = pytest.importorskip("torchmetrics.functional.text", reason="torchmetrics is not installed")
    rng = random.Random(0)
    vocabulary = ["the", "a", "New", "york,", "U.S.", "1999", "May", "é", "-", "“x”", "cat", "", "Cat's", "no"]
    pairs = [tuple(" ".join(rng.choices(vocabulary, k=rng.randint(0, 5))) for _ in range(3)) for _ in range(400)]
    pairs += [("Paris.", "paris", "London"), ("", "", "x"), ("the", "a", "cat")]
    for prediction, *truths in pairs:
        reference = text.squad(
            [{"prediction_text": prediction, "id": "1"}],
            [{"answers": {"answer_start": [0] * len(truths), "text": truths}, "id": "1"}],
        )
        found = [answer_overlap(prediction, truth) for truth in truths]
        assert 100 * max(overlap.exact for overlap in found) == float(reference["exact_match"]), (prediction, truths)
        assert 100 * max(overlap.f1 for overlap in found) == pytest.approx(float(reference["f1"])), (prediction, truths)
