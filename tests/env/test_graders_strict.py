"""The strict rules of graders for training, on forms of a second author: nothing wrong earns a reward."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from selfcest_env.graders.boxed import extract_final_answer
from selfcest_env.graders.by_source import BySource
from selfcest_env.graders.countdown import CountdownMatch
from selfcest_env.graders.math import MathMatch
from selfcest_env.graders.number import NumberMatch
from selfcest_env.graders.qa import QuestionAnswer
from selfcest_env.graders.vocabulary import has_only_known_words
from selfcest_env.types import Task

sys.path.insert(0, str(Path(__file__).parent))
from growth import growth

QUESTION = "Tom and Mary have two brothers. How many dollars do they make every day if half of the eggs are not sold?"


def number_is_right(answer: str, truth: str = "18", question: str = QUESTION, strict: bool = True) -> bool:
    return NumberMatch(strict).grade(Task("t", question, truth, "gsm8k"), answer).correct


@pytest.mark.parametrize(
    "answer",
    [
        "18, a wrong result", "wrong: 18", "Wrong answer: 18", "18, just kidding", "18 or XIX", "18 | nineteen",
        "18 doubled", "18 reversed", "18 fails", "18 with a minus sign", "18 take away two", "18 ❌", "[18, ∞)",
        "the successor of 18", "page 18", "e.g. 18", "18. Actually, nineteen.", "18 dollars and fifty cents",
        "18 two", "two, 18", "18 eggs or two", "18 eggs are not it", "18 == x", "18 + x",
    ],
)  # fmt: skip
def test_a_word_that_the_question_does_not_have_makes_a_strict_number_wrong(answer: str) -> None:
    assert not number_is_right(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "18", "$18", "**18**", "18 dollars", "They make 18 dollars every day.", "x = 18", "1.8 × 10^1", "18 cm²",
        "Tom's brothers make 18 dollars", "The two brothers make 18 dollars.",
        "So the answer is $18$.", "<answer>18</answer>",
        "Making 18 dollars in total.", r"\boxed{18\text{ dollars}}", "(18)", "+18", "18 ✓",
    ],
)  # fmt: skip
def test_words_of_the_question_units_and_plain_words_leave_a_strict_number_right(answer: str) -> None:
    assert number_is_right(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "18, a wrong result", "wrong: 18", "18, which is false", "18. That is wrong.", "I don't think it is 18",
        "She does not have 18 apples", "18 or XIX", "18; nineteen", "18 ١٩", "(18)²", "Σ18", "<!-- 18 -->", "❌ 18",
        "18 zillion", "18 halved", "two subtracted from 18", "18 (in thousands)", "twice as many as 18",
        "the number after 18", "18, perhaps seventeen",
    ],
)  # fmt: skip
def test_forms_of_a_second_author_are_wrong_without_strict_too(answer: str) -> None:
    assert not number_is_right(answer, strict=False)


def test_a_group_of_thousands_does_not_begin_with_zero() -> None:
    assert not number_is_right("0,250", "250", strict=False)
    assert number_is_right("1,250", "1250", strict=False)


def ordinary_answers() -> list[tuple[str, str, str]]:
    """1,000 triples of a question, its true number and a sentence that answers it in the question's words."""
    rng = random.Random(31)
    people = ["Janet", "Tom", "The baker", "Mr. Lee", "Her brother", "Each child", "The two friends", "Every student"]
    things = [
        "apples",
        "dollars",
        "boxes of pens",
        "cookies",
        "seats",
        "miles",
        "marbles",
        "pages",
        "half-liter bottles",
    ]
    verbs = [
        ("sell", "sells"),
        ("need", "needs"),
        ("read", "reads"),
        ("buy", "buys"),
        ("walk", "walks"),
        ("save", "saves"),
    ]
    times = [
        "every day",
        "in two weeks",
        "per hour",
        "after lunch",
        "on the third day",
        "more than Ann",
        "in the market",
    ]
    answers: list[tuple[str, str, str]] = []
    while len(answers) < 1000:
        who, thing, time = rng.choice(people), rng.choice(things), rng.choice(times)
        verb, inflected = rng.choice(verbs)
        truth = rng.choice([3, 7, 18, 45, 120, 1250, 18000])
        shown = rng.choice([f"{truth}", f"{truth:,}", f"**{truth}**", f"${truth}$"])
        question = f"How many {thing} does {who} {verb} {time}?"
        sentence = rng.choice(
            [
                f"{who} {inflected} {shown} {thing} {time}.",
                f"{shown} {thing}",
                f"So {who} {inflected} {shown} {thing}.",
                f"In total, {who} {inflected} {shown} {thing} {time}.",
                f"{who} will {verb} {shown} {thing} {time}!",
                f"The answer is {shown} {thing}.",
                f"There are {shown} {thing} in all.",
                f"It is {shown}.",
                f"Therefore, {who} {inflected} exactly {shown} {thing} {time}.",
                f"They have {shown} {thing} left.",
            ]
        )
        answers.append((question, str(truth), sentence))
    return answers


@pytest.mark.parametrize("strict", [False, True])
def test_of_a_thousand_ordinary_sentences_none_becomes_wrong(strict: bool) -> None:
    answers = ordinary_answers()
    assert len({sentence for _, _, sentence in answers}) > 800
    refused = [row for row in answers if not number_is_right(row[2], row[1], row[0], strict)]
    assert refused == []


def test_the_words_of_an_answer_are_looked_up_in_linear_time() -> None:
    assert growth(lambda size: has_only_known_words("eggs two brothers " * size, QUESTION), 500) < 8
    assert growth(lambda size: has_only_known_words("x = " * size + "18", QUESTION), 500) < 8


def test_the_preset_for_training_has_a_strict_number() -> None:
    task = Task("t", "How many?", "18", "gsm8k")
    assert BySource().grade(task, "18 doubloons").correct
    assert not BySource(strict=True).grade(task, "18 doubloons").correct


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>18</answer>", "18"),
        ("<answer>17</answer> no: <answer> 18 </answer>", "18"),
        ("**Answer**: 18", "18"),
        ("The final answer is $18$. I hope it is correct.", "$18$"),
        ("Wrong answer: 18", "Wrong answer: 18"),
        ("<answer>18", "<answer>18"),
        (r"<answer>17</answer> \boxed{18}", "18"),
    ],
)
def test_where_models_put_their_answers(text: str, answer: str) -> None:
    assert extract_final_answer(text) == answer


def test_a_final_answer_in_tags_is_looked_for_in_linear_time() -> None:
    assert growth(lambda size: extract_final_answer("<answer>" * size), 500) < 8


@pytest.mark.parametrize(
    ("truth", "answer"),
    [
        ("A", "A A"), ("A", "A the A"), ("A", "a, a"), ("AT&T", "ATT"), ("~5", "5"), ("a/b", "ab"), ("Ulm", "~~Ulm~~"),
        ("Ulm", "-Ulm"), ("Ulm", "!Ulm"), ("Ulm", "!= Ulm"), ("Ulm", "<Ulm"), ("Ulm", "<!--Ulm-->"), ("C#", "C#+"),
        ("U.S.", "U.S.+"), ("50%", "50%#"), ("Ulm", "+Ulm"), ("Ulm", "#Ulm"), ("-5", "--5"), ("Ulm", "@Ulm"),
    ],
)  # fmt: skip
def test_the_strict_rule_of_words_keeps_symbols(truth: str, answer: str) -> None:
    assert (
        not QuestionAnswer(strict=True, extract_answer=True).grade(Task("t", "?", truth, "questions"), answer).correct
    )


@pytest.mark.parametrize(
    "answer", ["“Ulm”", "‘Ulm’", "_Ulm_", "<b>Ulm</b>", "- Ulm", "> Ulm", "# Ulm", "**Answer**: Ulm"]
)
def test_the_strict_rule_of_words_takes_markup(answer: str) -> None:
    assert QuestionAnswer(strict=True, extract_answer=True).grade(Task("t", "?", "Ulm", "questions"), answer).correct


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        (r"3\text{ million}", False), (r"3\text{ is wrong}", False), (r"3\text{ doubled}", False),
        (r"3\text{ half}", False), ("3'", False),
        (r"\phantom{3}", False), (r"3 \ldots", False), ("3^T", False), ("3_2", False), (r"3 \bmod 7", False),
        (r"\gcd(3, 99)", False), (r"3\text{ cm}", True), (r"\boldsymbol{3}", True), (r"\mathbf{\frac{6}{2}}", True),
        (r"\therefore 3", True), (r"3 \checkmark", True), ("{3}", True), (r"3\text{ thousandths}", True),
    ],
)  # fmt: skip
def test_what_math_verify_leaves_out_is_no_part_of_a_right_answer(answer: str, correct: bool) -> None:
    pytest.importorskip("math_verify")
    assert MathMatch().grade(Task("t", "?", "3", "math"), answer).correct is correct


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("6*4 = 2400%", False), ("(6*4)°", False), ("6*4 = 6*4", False), ("6*4 = 24", True), ("**6*4 = 24**", True),
        ("<answer>6*4</answer>", True), ("6*4 = (24)", True), ("6*4 = 4!", False),
    ],
)  # fmt: skip
def test_the_result_of_an_equation_is_the_target_as_a_plain_number(answer: str, correct: bool) -> None:
    task = Task("t", "?", "6*4", "countdown", metadata={"numbers": "4 6", "target": 24})
    assert CountdownMatch().grade(task, answer).correct is correct


@pytest.mark.parametrize(
    "answer",
    [
        "**Answer: 18**", "**Final Answer: $18**", "**The answer is 18.**", "**Answer: 18**.", "*Answer: 18*",
        "***Answer: 18***",
    ],
)  # fmt: skip
def test_emphasis_that_opens_before_the_word_answer_closes_after_the_number(answer: str) -> None:
    assert number_is_right(answer)
    assert number_is_right(answer, strict=False)
    assert MathMatch(symbolic=False).grade(Task("t", "?", "18", "math"), answer).correct


@pytest.mark.parametrize("answer", ["I cannot answer: 18", "No answer: 18", "This is not an answer: 18"])
def test_a_denied_answer_is_no_answer(answer: str) -> None:
    assert not number_is_right(answer)
    assert not MathMatch(symbolic=False).grade(Task("t", "?", "18", "math"), answer).correct


@pytest.mark.parametrize("answer", ["~18~", "~$18~", "~18 dollars~"])
def test_a_number_struck_out_with_single_tildes_is_no_answer(answer: str) -> None:
    assert not number_is_right(answer)
    assert not number_is_right(answer, strict=False)


def test_about_a_number_and_its_amount_are_right() -> None:
    assert number_is_right("~18")
    assert number_is_right("The amount of dollars is 18.")


@pytest.mark.parametrize(
    "expression",
    [
        "**Answer: 6*3+4+2**", "**Answer: 6 * 3 + 4 + 2 = 24**", "6 x 3 + 4 + 2", "(6 X 3) + 4 + 2 = 24", "6⋅3+4+2",
        "6∙3+4+2", "6∗3+4+2", "6*4*(3–2)", '"6*3+4+2"', "“6 × 3 + 4 + 2”",
    ],
)  # fmt: skip
def test_ordinary_signs_of_multiplication_and_quotes_leave_a_countdown_solution_right(expression: str) -> None:
    puzzle = Task("t", "?", "", "countdown", metadata={"numbers": "2 3 4 6", "target": 24})
    assert CountdownMatch().grade(puzzle, expression).correct


@pytest.mark.parametrize("expression", ["6 x 4", "x 6*3+4+2", "6*3+4+2 x", "6xx3+4+2", "6 x 3 + 4 + 3", "6–3+4+2"])
def test_a_letter_x_elsewhere_solves_no_countdown(expression: str) -> None:
    puzzle = Task("t", "?", "", "countdown", metadata={"numbers": "2 3 4 6", "target": 24})
    assert not CountdownMatch().grade(puzzle, expression).correct


@pytest.mark.parametrize(
    ("truth", "answer", "right"),
    [
        ("(1, 5]", "1<x<=5", True), ("[3,\\infty)", "x>=3", True), ("(1, 5]", "1<=x<=5", False),
        ("(3,\\infty)", "x>=3", False), ("3", "3 <=> 4", False), ("3", "=>3", False),
    ],
)  # fmt: skip
def test_comparisons_written_in_ascii_are_inequalities(truth: str, answer: str, right: bool) -> None:
    assert MathMatch(symbolic=False).grade(Task("t", "?", truth, "math"), answer).correct is right
