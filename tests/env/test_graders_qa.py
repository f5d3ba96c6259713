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


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("A", "..."), ("A", "the"), ("A", "an"), ("A", "!"), ("5", "-5"), ("-5", "5"), ("C#", "C++"), ("C++", "C#"),
        ("C", "C++"), ("C", "C#"), ("5", "5%"), ("15", "1.5"), ("12", "1/2"), ("130", "1:30"),
        ("vitamin A", "vitamin"), ("A+", "A"), ("5", "5!"), ("199091", "1990-91"), ("5", "-$5"), ("the", "..."),
        ("5", ".5"), ("Paris", "The answer is not Paris"), ("Paris", r"\boxed{London} Paris"), ("25", "2^5"),
        ("F", "F#"), ("$5", "-$5"), ("B", "B+"), ("24", "2*4"), ("Type A", "type"), ("B-", "B+"), ("U", "U2"),
        ("2", "2!"), ("1000", "1.000"),
    ],
)  # fmt: skip
def test_the_strict_rule_refuses_what_the_official_normalisation_confuses(truth: str, answer: str) -> None:
    strict = QuestionAnswer(strict=True, extract_answer=True)
    assert not strict.grade(task(truth), answer).correct
    assert strict.grade(task(truth), answer).score == 0.0


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("A", "A"), ("A", "A."), ("A", '"a"'), ("Paris", "The answer is Paris."), ("Paris", r"\boxed{Paris}"),
        ("Paris", r"\boxed{\text{Paris}}"), ("Paris", "**Paris**"), ("Paris", "Answer: Paris!"),
        ("New York", "the new york"), ("-5", "-5"), ("-5", "- 5"), ("C++", "c++"), ("C#", "C#."), ("1,204", "1204"),
        ("U.S.", "US"), ("5%", "5%"), ("5", "5."), ("1.5", "1.5"), ("The Beatles", "beatles"), ("A-team", "A-Team"),
        ("Paris", "paris"), ("yes", "Yes!"), ("O'Brien", "OBrien"), ("$5", "5"), ("AT&T", "AT&T"),
        ("Who is it", "Who is it?"), ("the answer is blowing", "the answer is blowing"),
        ("Paris", "My final answer is $Paris$"), ("house in the woods", "house in woods"),
        ("June 5, 1999", "June 5 1999"), ("1990-91", "1990-91"), ("+5", "5"), ("St. John", "St John"),
        ("C++", r"\boxed{C++}"), ("1/2", "1/2"), ("Rocky (film)", "Rocky film"), ("the", "The"), ('"Help!"', "Help"),
        ("Paris", "Answer: **Paris**"), ("5th", "5th"), ("1:30", "1:30"), ("A Bridge Too Far", "bridge too far"),
        ("10,000,000", "10000000"), ("C#", "The answer is C#."),
    ],
)  # fmt: skip
def test_the_strict_rule_keeps_what_is_right(truth: str, answer: str) -> None:
    assert QuestionAnswer(strict=True, extract_answer=True).grade(task(truth), answer).correct


def test_the_official_rule_is_the_default() -> None:
    official = QuestionAnswer()
    for truth, answer in (("A", "..."), ("A", "the"), ("5", "-5"), ("C#", "C++")):
        assert official.grade(task(truth), answer).correct
    assert not official.grade(task("Paris"), r"\boxed{Paris}").correct
    assert not official.grade(task("Paris"), "The answer is Paris.").correct


def test_the_strict_rule_is_never_right_where_the_official_one_is_not() -> None:
    rng = random.Random(0)
    pieces = ["the", "a", "C++", "C#", "-5", "5", "5%", "1.5", "15", "1,204", "1204", "U.S.", "é", "...", "!", "-", "+"]
    for _ in range(5000):
        truth, answer = (" ".join(rng.choices(pieces, k=rng.randint(0, 2))) for _ in range(2))
        if QuestionAnswer(strict=True).grade(task(truth), answer).correct:
            assert QuestionAnswer().grade(task(truth), answer).correct, (truth, answer)


def test_the_preset_for_training_by_source_is_strict_and_the_grader_alone_is_official() -> None:
    asked = Task("t", "?", "A", "musique", metadata={"qa_rule": "squad"})
    assert make_reward("by_source").grader.grade(asked, "the").score == 0.0
    assert make_reward("by_source").grader.grade(asked, r"\boxed{A}").correct
    assert make_reward("correct", grader={"name": "by_source"}).grader.grade(asked, "the").correct
    assert make_reward("by_source", grader={"strict": False}).grader.grade(asked, "the").correct


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
