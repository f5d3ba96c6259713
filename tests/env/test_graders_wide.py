"""Tables: how they are read, aligned and counted, against numbers by hand and a reference of its own."""

import json
import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from growth import growth

from selfcest_env.errors import RewardError
from selfcest_env.graders import NO_ANSWER, AnswerPart
from selfcest_env.graders.wide import (
    Hits,
    Table,
    TableRules,
    Wide,
    read_row,
    read_table,
    wide_scores,
    write_row,
    write_table,
)
from selfcest_env.reward import make_reward
from selfcest_env.types import Task

TEXT = {"preprocess": ["norm_str"], "metric": ["exact_match"]}
NUMBER = {"preprocess": ["extract_number"], "metric": ["number_near"], "criterion": 0.1}
EVALUATION: dict[str, Any] = {
    "required": ["name", "people", "river"],
    "unique_columns": ["name"],
    "eval_pipeline": {"name": TEXT, "people": NUMBER, "river": TEXT},
}
GOLD = """| Name | People | River |
| --- | --- | --- |
| Ulm | 100 | Danube |
| Bonn | 200 | Rhine |
| Jena | 50 | Saale |"""


def table_task(gold: str = GOLD, evaluation: dict[str, Any] = EVALUATION, **metadata: str) -> Task:
    return Task("t", "?", gold, "wide_tables", metadata={"evaluation": json.dumps(evaluation), **metadata})


TASK = table_task()
FOUND = """Here it is.
| name | people | river |
|---|:-:|--:|
| ulm | 1,05 people | **DANUBE** |
| Bonn | 250 | rhine |
| Trier | 70 | Mosel |
"""


def one_cell(truth: str, answer: str, step: dict[str, Any]) -> bool:
    """Whether a cell is right, beside a key that is."""
    evaluation = {"required": ["k", "v"], "unique_columns": ["k"], "eval_pipeline": {"v": step}}
    task = table_task(write_table(["k", "v"], [("x", truth)]), evaluation)
    return wide_scores(task, write_table(["k", "v"], [("x", answer)])).items.right == 2


# By hand


def one_cell_is_strictly_right(truth: str, answer: str, step: dict[str, Any]) -> bool:
    evaluation = {"required": ["k", "v"], "unique_columns": ["k"], "eval_pipeline": {"v": step}}
    task = table_task(write_table(["k", "v"], [("x", truth)]), evaluation)
    return Wide(strict=True).grade(task, write_table(["k", "v"], [("x", answer)])).correct


EXACT_NUMBER = {"preprocess": ["extract_number"], "metric": ["number_near"], "criterion": 0.0}


@pytest.mark.parametrize(
    ("truth", "answer", "step", "correct"),
    [
        *(("100", text, EXACT_NUMBER, False) for text in ("100 or 5", "100 million", "–100", "−100", "-100", "100%")),
        *(
            ("100", text, EXACT_NUMBER, False)
            for text in ("not 100", "100k", "100-200", "half of 100", "100²", "< 100")
        ),
        *(("100", text, EXACT_NUMBER, True) for text in ("100", "100 people", "**100**", "100.0", "about 100")),
        ("-100", "–100", EXACT_NUMBER, False),  # the official rule reads 100
        ("-100", "-100 m", EXACT_NUMBER, True),
        ("1,000", "1000", EXACT_NUMBER, True),
        ("100 (2010)", "100 in 2010", EXACT_NUMBER, True),  # a truth of two numbers is left to the official rule
    ],
)
def test_the_strict_rule_of_cells(truth: str, answer: str, step: dict[str, Any], correct: bool) -> None:
    assert one_cell_is_strictly_right(truth, answer, step) is correct


def test_the_official_rule_of_cells_is_the_default() -> None:
    assert all(one_cell("100", text, EXACT_NUMBER) for text in ("100 or 5", "100 million", "–100"))


def test_scores_worked_out_by_hand() -> None:
    # Ulm: 105 is within a tenth of 100, and the river is the same. Bonn: 250 is not within a tenth of 200. Trier is
    # nobody's row and Jena is missing.
    scores = wide_scores(TASK, FOUND)
    assert (scores.items.right, scores.items.answered, scores.items.true) == (3 + 2, 9, 9)
    assert (scores.rows.right, scores.rows.answered, scores.rows.true) == (1, 3, 3)
    assert scores.by_row == (3, 2, 0)
    assert (scores.items.precision, scores.items.recall, scores.items.f1) == (5 / 9, 5 / 9, 5 / 9)
    assert (scores.rows.precision, scores.rows.recall, scores.rows.f1) == (1 / 3, 1 / 3, 1 / 3)
    assert not scores.success
    # Two rows of three, one of them right: precision 5/6, recall 5/9, F1 = 10 / (6 + 9).
    scores = wide_scores(TASK, FOUND.replace("| Trier | 70 | Mosel |\n", ""))
    assert (scores.items.precision, scores.items.recall) == (5 / 6, 5 / 9)
    assert scores.items.f1 == pytest.approx(10 / 15)
    assert scores.rows.f1 == pytest.approx(2 / 5)


def test_nothing_has_no_precision() -> None:
    empty = wide_scores(TASK, "| name | people | river |\n| --- | --- | --- |")
    assert (empty.readable, empty.items) == (True, Hits(0, 0, 9))
    assert (empty.items.precision, empty.items.recall, empty.items.f1) == (0.0, 0.0, 0.0)
    assert Hits(0, 3, 0).recall == 0.0


@pytest.mark.parametrize(("options", "score"), [({}, 5 / 9), ({"score": "row_f1"}, 1 / 3), ({"score": "success"}, 0.0)])
def test_the_score_is_chosen(options: dict[str, str], score: float) -> None:
    reward = make_reward("correct", grader={"name": "wide", **options})
    reward.check([TASK], "here")
    grade = reward.grader.grade(TASK, FOUND)
    assert (grade.score, grade.correct, grade.well_formed) == (pytest.approx(score), False, True)
    whole = reward.grader.grade(TASK, TASK.answer)
    assert (whole.score, whole.correct, whole.well_formed) == (1.0, True, True)


def test_order_of_rows_and_columns_does_not_matter() -> None:
    scores = wide_scores(TASK, "River | NAME | pe ople\nSaale | Jena | 52\nRhine | Bonn | 200\nDanube | Ulm | 100")
    assert scores.success
    assert Wide().grade(TASK, "River | NAME | people\nSaale | Jena | 52").score == pytest.approx(2 * 3 / 12)


def test_of_rows_with_one_key_the_first_counts() -> None:
    twice = GOLD + "\n| ULM | 999 | Rhine |\n| Ulm | 100 | Danube |"
    assert wide_scores(TASK, twice).success
    late = GOLD.replace("| Ulm | 100 | Danube |", "| Ulm | 1 | x |\n| Ulm | 100 | Danube |")
    assert wide_scores(TASK, late).by_row == (1, 3, 3)


def test_several_unique_columns_align_together() -> None:
    evaluation = {
        "required": ["team", "year", "place"],
        "unique_columns": ["team", "year"],
        "eval_pipeline": {"place": TEXT},
    }
    gold = write_table(["team", "year", "place"], [("A", "1", "x"), ("A", "2", "y"), ("B", "1", "z")])
    scores = wide_scores(
        table_task(gold, evaluation), "team|year|place\nA|2|y\nB|2|z\na|1|x\nA|1|no"
    )  # of a key without a step the letters count
    assert (scores.by_row, scores.rows.answered) == ((2, 3, 0), 4)


# The reference: rows as dicts, every pair of them looked at, F1 from precision and recall


def reference(gold: list[dict[str, str]], found: list[dict[str, str]], keys: list[str]) -> dict[str, float]:
    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c not in " *")

    def first(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        kept: list[dict[str, str]] = []
        for row in rows:
            if not any(all(plain(row[k]) == plain(other[k]) for k in keys) for other in kept):
                kept.append(row)
        return kept

    gold, found = first(gold), first(found)
    items = rows = 0
    for left, right in product(gold, found):
        if all(plain(left[key]) == plain(right[key]) for key in keys):
            agree = [
                abs(float(right[c]) - float(left[c])) <= 0.1 * abs(float(left[c]))
                if c == "n"
                else plain(left[c]) == plain(right[c])
                for c in left
            ]
            items += sum(agree)
            rows += all(agree)
    width = len(gold[0])
    out = {}
    for what, right, size in (("items", items, width), ("rows", rows, 1)):
        precision = right / (len(found) * size) if found else 0.0
        recall = right / (len(gold) * size)
        f1 = 2 * precision * recall / (precision + recall) if precision + recall > 1e-9 else 0.0
        out |= {f"{what}.precision": precision, f"{what}.recall": recall, f"{what}.f1": f1}
    out["success"] = float(all(value == 1.0 for value in out.values()))
    return out


def test_scores_agree_with_the_reference() -> None:
    rng, successes = random.Random(0), 0
    for trial in range(1000):
        keys = rng.choice([["a"], ["a", "b"]])
        evaluation = {
            "required": ["a", "b", "n", "c"],
            "unique_columns": keys,
            "eval_pipeline": {"a": TEXT, "b": TEXT, "n": NUMBER, "c": TEXT},
        }

        def row(rng: random.Random = rng) -> dict[str, str]:
            return {
                "a": rng.choice("xyzXY"),
                "b": rng.choice(["p", "q r", "**P**"]),
                "n": str(rng.choice([-10, 9, 10, 11, 12])),
                "c": rng.choice("uv"),
            }

        gold = [row() for _ in range(rng.randint(1, 5))]
        gold = [
            r for i, r in enumerate(gold) if all(any(plainly(r[k]) != plainly(o[k]) for k in keys) for o in gold[:i])
        ]
        found = [dict(r) if rng.random() < 0.8 else row() for r in gold] + [row() for _ in range(rng.choice([0, 0, 2]))]
        rng.shuffle(found)
        wanted = reference(gold, found, keys)
        scores = wide_scores(
            table_task(write_table([*gold[0]], [[*r.values()] for r in gold]), evaluation),
            write_table(["c", "n", "B ", "A"], [[r[c] for c in "cnba"] for r in found]),
        )
        assert float(scores.success) == wanted.pop("success"), trial
        successes += scores.success
        for name, value in wanted.items():
            what, measure = name.split(".")
            assert getattr(getattr(scores, what), measure) == pytest.approx(value, abs=1e-12), (trial, name)
    assert 100 < successes < 900


def plainly(text: str) -> str:
    return text.lower().replace(" ", "").replace("*", "")


# Reading


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("a|b\n1|2", ("a", "b"), (("1", "2"),)),
        ("| A A | b |\n|:--|--:|\n| 1 1 | 2 |", ("aa", "b"), (("1 1", "2"),)),
        ("so: x|y\n\nmore\n| a | b |\n| 1 | 2 |\nend | of\nit", ("a", "b"), (("1", "2"), ("end", "of"))),
        ("| a | b |\n| 1 | 2 |\n\n| c | d |\n| 3 | 4 |", ("a", "b"), (("1", "2"),)),
        ("x|y\nz|w\n```markdown\n\n| a |\n\n| 1 |\n```\n```markdown\n| b |\n| 2 |\n```", ("a",), (("1",),)),
        ("```markdown\n| a | b |\n| 1 | 2 |", ("a", "b"), (("1", "2"),)),
        ("```\r\n| a | b |\r\n| 1 | 2 |\r\n```", ("a", "b"), (("1", "2"),)),
        ("| a | b |\n| 1 |\n| | 2 |", ("a", "b"), (("1",), ("", "2"))),
        ("| a | b\\|c |\n| 1 | \\|2\\| |", ("a", "b|c"), (("1", "|2|"),)),
        ("| a | b |\n| --- | --- |", ("a", "b"), ()),
    ],
)
def test_a_table_is_read(text: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> None:
    assert read_table(text) == Table(columns, rows)


@pytest.mark.parametrize(
    "text",
    ["", "none", "a | b", "a | b\n\n1 | 2", "a|b\n1|2|3", "a|A\n1|2", "| --- |\n| --- |", "```markdown```"],
)
def test_what_is_no_table(text: str) -> None:
    assert read_table(text) is None
    scores = wide_scores(TASK, text)
    assert (scores.readable, scores.items.f1, scores.items.true) == (False, 0.0, 9)
    assert Wide().grade(TASK, text) == NO_ANSWER


@pytest.mark.parametrize(
    "columns", [("name", "people"), ("name", "people", "river", "more"), ("name", "people", "sea")]
)
def test_other_columns_are_no_answer(columns: tuple[str, ...]) -> None:
    answer = write_table(columns, [("Ulm", "100", "Danube", "x")[: len(columns)]])
    assert Wide().grade(TASK, answer) == NO_ANSWER
    assert Wide().grade(TASK, None) == NO_ANSWER


def test_a_column_without_a_name_is_none() -> None:
    assert wide_scores(TASK, "| | name | people | river |\n| 1 | Ulm | 100 | Danube |").by_row == (3, 0, 0)


@pytest.mark.parametrize("cells", [("a", "b"), ("a|b", "\\"), ("", "x"), ("a\\|b", "|")])
def test_rows_are_written_and_read_back(cells: tuple[str, ...]) -> None:
    assert read_row(write_row(cells)) == cells
    assert "\n" not in write_row(["two\nlines"])


# Cells


@pytest.mark.parametrize(
    ("step", "truth", "answer", "right"),
    [
        (TEXT, "New York", "new york ", True),
        (TEXT, "New York", "**NewYork**", True),
        (TEXT, "New York", "York", False),
        (TEXT, "N/A", "", True),
        (TEXT, "null", "None", True),
        (TEXT, "", "-", False),
        ({"metric": ["exact_match"]}, "New York", "NEW YORK", True),
        ({"metric": ["exact_match"]}, "New York", "NewYork", False),
        ({"metric": ["exact_match"]}, "1", "1.0", False),
        (NUMBER, "1,000 km", "about 1100", True),
        (NUMBER, "1,000 km", "1101", False),
        (NUMBER, "1000", "900", True),
        (NUMBER, "-10", "10", False),
        (NUMBER, "50%", "0.5", True),
        (NUMBER, "50%", "50", False),
        (NUMBER, "0", "0.0", True),
        (NUMBER, "0", "0.01", False),
        (NUMBER, ".5", "+0.5", True),
        (NUMBER, "none at all", "unknown", True),
        (NUMBER, "none at all", "7", False),
        ({**NUMBER, "preprocess": []}, "about 10", "10", False),
        ({**NUMBER, "preprocess": []}, "about 10", "about 10", True),
        ({**NUMBER, "preprocess": []}, "10", "inf", False),
        ({**NUMBER, "preprocess": []}, "inf", "10", False),
        ({**NUMBER, "preprocess": []}, "10", "1" * 5000, False),
        ({"preprocess": ["norm_str", "extract_number"], "metric": ["exact_match"]}, "No 7", "7", True),
    ],
)
def test_cells(step: dict[str, Any], truth: str, answer: str, right: bool) -> None:
    assert one_cell(truth, answer, step) == right


# What cannot be graded


def changed(**keys: Any) -> dict[str, Any]:
    return {**EVALUATION, **keys}


def step(**keys: Any) -> dict[str, Any]:
    return changed(eval_pipeline={**EVALUATION["eval_pipeline"], "river": {**TEXT, **keys}})


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        (changed(required=[]), r"required is \[\]; expected a list of column names"),
        (changed(required=["name", "Na me"]), "required is name, Na me; expected each column once"),
        (changed(unique_columns="name"), "unique_columns is 'name'; expected a list of column names"),
        (
            changed(unique_columns=["nam"]),
            r"unique_columns names 'nam', which is no required column\. Did you mean 'name'",
        ),
        (changed(eval_pipeline=[]), r"eval_pipeline is \[\]; expected an object of columns"),
        (changed(eval_pipeline={"people": NUMBER}), "eval_pipeline.river is None; expected an object"),
        (changed(required=["name", "people"]), "eval_pipeline names 'river', which is no required column"),
        (step(preprocess=["lower"]), r"river.preprocess is \['lower'\]; expected a list of names among norm_str, "),
        (step(metric="exact_match"), "river.metric is 'exact_match'; expected a list of names among exact_match, "),
        (step(metric=[]), r"river.metric is \[\]; expected at least one of exact_match"),
        (step(metric=["number_near"]), "river.criterion is None; expected a number >= 0 for number_near"),
        (step(metric=["number_near"], criterion=-1), "river.criterion is -1; expected a number >= 0"),
    ],
)
def test_rules_that_cannot_be_followed_are_named(evaluation: dict[str, Any], said: str) -> None:
    reward = make_reward("correct", grader={"name": "wide"})
    with pytest.raises(RewardError, match=f"here: .* cannot judge task t of wide_tables: .*{said}"):
        reward.check([table_task(evaluation=evaluation)], "here")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (replace(TASK, metadata={}), "has no metadata 'evaluation'"),
        (replace(TASK, metadata={"evaluation": "{"}), "Expecting property name"),
        (replace(TASK, metadata={"evaluation": "[]"}), r"evaluation is \[\]; expected an object"),
        (replace(TASK, answer="42"), "answer '42'; expected a Markdown table of the columns name, people, river"),
        (replace(TASK, answer="| name |\n| x |"), "expected a Markdown table of the columns name, people, river"),
        (replace(TASK, answer=GOLD.split("\n| Ulm")[0]), "expected a Markdown table of"),
        (replace(TASK, answer=GOLD + "\n| ulm | 1 | x |"), "4 rows, but 3 different values of name; expected keys"),
        (replace(TASK, answer=GOLD + " " * 300_000), "an answer of 3001.. characters; expected at most 300000"),
        (table_task(row_documents='["Ulm"]'), r"row_documents is \['Ulm'\]; expected a key for each of the 3 rows"),
    ],
)
def test_tasks_that_cannot_be_graded_are_named(task: Task, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        make_reward("correct", grader={"name": "wide"}).check([task], "here")


def test_rules_are_those_of_the_official_object() -> None:
    rules = TableRules.of(EVALUATION)
    assert [column.name for column in rules.columns] == ["name", "people", "river"]
    assert rules.unique == ("name",)
    assert (rules.columns[1].metrics, rules.columns[1].criterion) == (("number_near",), 0.1)


# Parts


def test_the_parts_of_an_f1_add_up() -> None:
    task = table_task(row_documents=json.dumps(["U", "B", "J"]))
    grade = Wide().grade(task, FOUND)
    assert grade.parts == (AnswerPart("U", 6 / 18), AnswerPart("B", 4 / 18), AnswerPart("J", 0.0))
    assert sum(part.score for part in grade.parts) == pytest.approx(grade.score)
    rows = Wide(score="row_f1").grade(task, FOUND)
    assert rows.parts == (AnswerPart("U", 2 / 6), AnswerPart("B", 0.0), AnswerPart("J", 0.0))
    assert Wide(score="success").grade(task, FOUND).parts == ()
    assert Wide().grade(TASK, FOUND).parts == ()
    # One document may be that of several rows.
    shared = table_task(row_documents=json.dumps(["U", "B", "U"]))
    assert Wide().grade(shared, GOLD).parts == (AnswerPart("U", 12 / 18), AnswerPart("B", 6 / 18))


def test_a_further_row_lowers_the_parts_of_all() -> None:
    """Why credit by parts asks for a fixed number of rows: whoever brings one more moves what others answer for."""
    task = table_task(row_documents=json.dumps(["U", "B", "J"]))
    more = Wide().grade(task, FOUND + "| Kiel | 1 | Schwentine |\n")
    assert [part.score for part in more.parts] == pytest.approx([6 / 21, 4 / 21, 0.0])


# Cost

HOSTILE = {
    "pipes": lambda n: "|" * n,
    "lines of pipes": lambda n: "|\n" * (n // 2),
    "one key": lambda n: "name|people|river\n" + "Ulm|1|x\n" * (n // 8),
    "many keys": lambda n: "name|people|river\n" + "".join(f"{i}|1|x\n" for i in range(n // 11)),
    "many columns": lambda n: "|".join(map(str, range(n // 8))) + "\n" + "x|\n" * (n // 6),
    "digits": lambda n: "name|people|river\nUlm|" + "1" * n + "|x",
    "points": lambda n: "name|people|river\nUlm|" + "1." * (n // 2) + "|x",
    "signs": lambda n: "name|people|river\nUlm|" + "-" * n + "|x",
    "fences": lambda n: "```markdown" * (n // 11),
    "backslashes": lambda n: "a|b\n" + "\\|" * (n // 2),
    "spaces": lambda n: "a|b\n" + " |" * (n // 4) + " " * (n // 2),
    "blanks": lambda n: "name|people|river\nUlm|" + " " * n + "x",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_cost_of_hostile_tables_is_linear(kind: str) -> None:
    def work(size: int) -> None:
        scores = wide_scores(TASK, HOSTILE[kind](size))
        assert not scores.success

    assert growth(work, 20_000) < 8


def test_an_answer_that_is_too_long_is_not_read() -> None:
    longest = GOLD + " " * (Wide.max_characters - len(GOLD))
    assert Wide().grade(TASK, longest).correct
    grade = Wide().grade(TASK, longest + " ")
    assert (grade.score, grade.correct, grade.note) == (0.0, False, "answer too long")
